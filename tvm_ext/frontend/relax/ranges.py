"""Ranges of the open extents of a Relax module, as attributes of ``main`` that TVM's memory planner reads too."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.dynamic import ALL, OpenDimension
from tvm_ext.errors import InputError

LOWER, UPPER = "tir_var_lower_bound", "tir_var_upper_bound"
"""Attributes of a function: bounds of symbolic variables by name, both included."""


def with_ranges(mod: tvm.IRModule, ranges: Mapping[str, tuple[int, int | None]]) -> tvm.IRModule:
    """Note ranges of symbolic variables in a copy of a module."""
    if not ranges:
        return mod
    main = mod["main"]
    lower, upper = declared(main, LOWER), declared(main, UPPER)
    for name, (low, high) in ranges.items():
        lower[name] = low
        upper.pop(name, None)
        if high is not None:
            upper[name] = high
    for attribute, bounds in ((LOWER, lower), (UPPER, upper)):
        main = main.with_attr(attribute, bounds) if bounds else main.without_attr(attribute)
    changed = mod.clone()
    changed.update_func(mod.get_global_var("main"), main)
    return changed


def narrowed(
    mod: tvm.IRModule, dynamic: Mapping[str, OpenDimension], names: Sequence[str], source: str
) -> tvm.IRModule:
    """Give the open extents of a module the ranges that were asked for.

    Parameters
    ----------
    mod : tvm.IRModule
    dynamic : mapping from name to OpenDimension
        By the names of variables, by ``INPUT:AXIS``, or ``*`` for all.
    names : sequence of str
        Of the inputs.
    source : str
        Begins the error messages.

    Raises
    ------
    InputError
        If there is no such open dimension, or the model is not made for any extent of the range.
    """
    main = mod["main"]
    places = {name: list(parameter.ty.shape) for name, parameter in zip(names, main.params, strict=True)
              if getattr(parameter.ty, "shape", None) is not None}  # fmt: skip
    variables = {dim.name for dims in places.values() for dim in dims if isinstance(dim, tirx.Var)}
    lower, upper = declared(main, LOWER), declared(main, UPPER)
    ranges: dict[str, tuple[int, int | None]] = {}
    for name, asked in dynamic.items():
        for variable in sorted(variables) if name == ALL else [_variable(name, variables, places, source)]:
            if name == ALL and variable in dynamic:
                continue
            low, high = asked.limits
            ends = [end for end in (high, upper.get(variable)) if end is not None]
            allowed = max(low, lower.get(variable, 0)), min(ends, default=None)
            if allowed[1] is not None and allowed[1] < allowed[0]:
                raise InputError(
                    f"{source}: dimension {name!r} is to be {low} to {high}, and the model is made for "
                    f"{lower.get(variable, 0)} to {upper.get(variable)}; give a range inside, or export the model anew"
                )
            ranges[variable] = allowed
    return with_ranges(mod, ranges)


def declared(main: Any, attribute: str) -> dict[str, int]:
    """Bounds that a function has by now."""
    return {str(name): int(end) for name, end in ((main.attrs or {}).get(attribute) or {}).items()}


def _variable(name: str, variables: set[str], places: Mapping[str, Sequence[Any]], source: str) -> str:
    if name in variables:
        return name
    input_name, _, axis = name.rpartition(":")
    if input_name in places and re.fullmatch("[0-9]+", axis) and int(axis) < len(places[input_name]):
        dim = places[input_name][int(axis)]
        if isinstance(dim, tirx.Var):
            return str(dim.name)
        raise InputError(
            f"{source}: dimension {name!r} is to stay open, and the model fixes it to {dim}; export it with that "
            "dimension open (torch.export.export(..., dynamic_shapes=...))"
        )
    listed = sorted(variables) + [
        f"{found}:{axis}"
        for found, dims in places.items()
        for axis, dim in enumerate(dims)
        if isinstance(dim, tirx.Var)
    ]
    near = difflib.get_close_matches(name, listed, n=1)
    raise InputError(
        f"{source}: the model has no open dimension {name!r}{f', did you mean {near[0]!r}?' if near else ';'} its open "
        f"dimensions are {', '.join(listed) or 'none'}"
    )
