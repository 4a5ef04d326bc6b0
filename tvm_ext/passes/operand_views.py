"""Finds what an operand of a kernel is a view of: a tensor in memory, through slices, reshapes and transposes.

before: ``q = reshape(strided_slice(qkv, axis 2, 0 to 1), (1, 17, 4, 16)); y = attention(permute_dims(q), k, v)``
after:  ``y = attention(qkv, k, v)``, which reads its queries there

Products that make queries, keys and values at once, and keys that several heads share, are written so; each step would
be a copy in memory.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from tvm_ext.passes.bindings import Bindings, calls, permutation
from tvm_ext.relax_utils import scalar, slice_begins, static_shape
from tvm_ext.schedules.compute.views import View

_MOST_STEPS = 12

_FREE = frozenset(["reshape", "scale"])
"""Steps that are nothing in memory, or part of the kernel in front of them."""


def operand_view(bindings: Bindings, user: relax.Var, expr: relax.Expr) -> tuple[relax.Expr, View]:
    """Find the tensor in memory that an operand is a view of, and the steps that make it.

    Parameters
    ----------
    user : relax.Var
        What is bound to the kernel's result: the tensor must be visible there.
    expr : relax.Expr
        The operand, of known shape.

    Returns
    -------
    relax.Expr, View
        The operand itself, and no steps, where they are no copies anyway.
    """
    found, steps = [expr], list[tuple[str, tuple[Any, ...]]]()
    while len(steps) < _MOST_STEPS:
        step = _step(bindings, found[-1])
        if step is None or not bindings.is_visible(step[0], user):
            break
        found.append(step[0])
        steps.append(step[1:])
    while steps and steps[-1][0] in _FREE:
        steps.pop()
        found.pop()
    return found[-1], tuple(steps)


def _step(bindings: Bindings, expr: relax.Expr) -> tuple[relax.Expr, str, tuple[Any, ...]] | None:
    """Give the tensor that a variable is a step from, and the step."""
    value = bindings.values.get(expr) if isinstance(expr, relax.Var) else None
    shape = static_shape(expr)
    if shape is None or 0 in shape:
        return None
    if isinstance(value, relax.TupleGetItem):
        return _part(bindings, value)
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return None
    before = static_shape(value.args[0])
    if before is None or not before:
        return None
    source, name = value.args[0], value.op.name
    if name in ("relax.reshape", "relax.squeeze", "relax.expand_dims"):
        return source, "reshape", (before, shape)
    if name == "relax.permute_dims":
        return source, "permute", permutation(value) or ()
    if name == "relax.broadcast_to":
        return source, "broadcast", before
    if name == "relax.strided_slice":
        begins = slice_begins(value, before)
        return None if begins is None else (source, "slice", begins)
    if name == "relax.take":
        return _selected(value, before)
    return _scaled(value, shape)


def _part(bindings: Bindings, item: relax.TupleGetItem) -> tuple[relax.Expr, str, tuple[Any, ...]] | None:
    """See a part of a tensor that is split as a slice."""
    split = bindings.values.get(item.tuple_value) if isinstance(item.tuple_value, relax.Var) else None
    if not calls(split, "relax.split"):
        return None
    source = split.args[0]  # type: ignore[union-attr]
    shape = static_shape(source)
    parts = [static_shape(field) for field in split.ty.fields[: item.index]]  # type: ignore[union-attr]
    if shape is None or None in parts:
        return None
    axis = int(split.attrs.axis) % len(shape)  # type: ignore[union-attr]
    begins = [0] * len(shape)
    begins[axis] = sum(part[axis] for part in parts if part is not None)
    return source, "slice", tuple(begins)


def _selected(call: relax.Call, shape: tuple[int, ...]) -> tuple[relax.Expr, str, tuple[Any, ...]] | None:
    """See what is taken at one known place as a part."""
    place = scalar(call.args[1])
    if place is None or static_shape(call.args[1]) != () or call.attrs.axis is None:
        return None
    axis = int(call.attrs.axis) % len(shape)
    return (call.args[0], "select", (axis, int(place))) if 0 <= place < shape[axis] else None


def _scaled(call: relax.Call, shape: tuple[int, ...]) -> tuple[relax.Expr, str, tuple[Any, ...]] | None:
    """See a product with a number as a view."""
    if call.op.name != "relax.multiply":
        return None
    for source, factor in (call.args, reversed(call.args)):
        number = scalar(factor)
        if number is not None and static_shape(source) == shape and str(source.ty.dtype) == str(call.ty.dtype):
            return source, "scale", (float(number),)
    return None
