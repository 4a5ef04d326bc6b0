"""Containers that a program takes and returns: names for the tensors in them, and plain ones in place of foreign ones.

Retracing a program, which decomposing it does, makes the containers it returns. One that computes while it is made, as
caches of keys and values do (``transformers.DynamicCache``), adds what it computes to the program; torch loses the
constants among that. Tuples compute nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch.utils import _pytree as pytree

_PLAIN = ("builtins", "collections")
"""Modules of containers that are made without computing anything."""


def with_plain_containers(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Give the same program with tuples in place of containers of other packages; the one given is not changed."""
    entry, *others = program.module_call_graph
    if entry.signature is None:
        return program
    taken, returned = _plain(entry.signature.in_spec), _plain(entry.signature.out_spec)
    plain = copy.copy(program)
    plain._module_call_graph = [
        replace(entry, signature=replace(entry.signature, in_spec=taken, out_spec=returned)),
        *others,
    ]
    return plain


def output_names(program: torch.export.ExportedProgram) -> tuple[str, ...]:
    """Name the outputs of a program by their place in what its module returns.

    A lone tensor is ``output``. Otherwise: keys of dictionaries and fields of data classes as they are, positions in
    tuples and lists as numbers, ``output_`` before a leading number, joined by underscores. Containers that cannot be
    made without tensors count as tuples.
    """
    leaves = _with_numbers(program.call_spec.out_spec, count())
    names = []
    for path, _ in pytree.tree_flatten_with_path(leaves)[0]:
        keys = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", "")))) for key in path]
        name = "_".join(keys)
        names.append(f"output_{name}" if name[:1].isdigit() else name or "output")
    if len(set(names)) < len(names):
        return tuple(f"output_{index}" for index in range(len(names)))
    # A container with one tensor in it is as good as the tensor.
    return ("output",) if names == ["output_0"] else tuple(names)


def _plain(spec: Any) -> Any:
    if spec.is_leaf():
        return spec
    children = [_plain(child) for child in spec.children()]
    if spec.type.__module__ in _PLAIN:
        return pytree.TreeSpec(spec.type, spec.context, children)
    return pytree.TreeSpec(tuple, None, children)


def _with_numbers(spec: Any, numbers: Iterator[int]) -> Any:
    if spec.is_leaf():
        return next(numbers)
    children = [_with_numbers(child, numbers) for child in spec.children()]
    try:
        made = pytree.SUPPORTED_NODES[spec.type].unflatten_fn(children, spec.context)
        same = len(pytree.tree_leaves(made)) == spec.num_leaves
    except Exception:  # whatever the container's own code raises
        same = False
    return made if same else tuple(children)
