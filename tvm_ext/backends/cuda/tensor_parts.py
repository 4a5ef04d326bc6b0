"""Finds operands of an attention that are equal parts of one tensor, as queries, keys and values of one projection are.

before: ``q = squeeze(strided_slice(permute_dims(x, [2, 0, 3, 1, 4]), 0, 0, 1))``, of x (batch, row, 3, head, feature)
after:  element (batch, row, 0, head, feature) of x
before: ``q = reshape(split(x, 3)[0], (batch, row, head, feature))``, of x (batch, row, features)
after:  element (batch, row, 0, head, feature) of ``reshape(x, (batch, row, 3, head, feature))``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import relax, tirx

from tvm_ext.passes.bindings import Bindings, Operand, calls
from tvm_ext.relax_utils import open_shape, same_extents


@dataclass(frozen=True)
class TensorPart:
    """A tensor in memory, read through a transpose, at one index of one of its axes.

    Attributes
    ----------
    expr : relax.Expr
        The whole tensor.
    shape : tuple of int or PrimExpr
        As what it is read.
    axes : tuple of int
        For each logical axis, which axis of ``shape`` it is.
    fixed : tuple of (int, int)
        Other axes, and where they are read.
    """

    expr: relax.Expr
    shape: tuple[Any, ...]
    axes: tuple[int, ...]
    fixed: tuple[tuple[int, int], ...] = ()


def tensor_part(bindings: Bindings, user: relax.Var, operand: Operand) -> TensorPart:
    """Find the tensor that an operand is a part of, where ``user`` is bound; otherwise it is one of its own."""
    whole = TensorPart(operand.expr, open_shape(operand.expr) or (), operand.axes)
    value = _value(bindings, user, operand.expr)
    found = None
    if calls(value, "relax.squeeze") or calls(value, "relax.reshape"):
        found = _one_of_an_axis(bindings, user, value.args[0], operand)
    if found is None and calls(value, "relax.reshape"):
        found = _columns(bindings, user, value.args[0], operand)
    return whole if found is None else found


def _value(bindings: Bindings, user: relax.Var, expr: relax.Expr) -> Any:
    """Give what a variable is bound to, if that is seen where ``user`` is bound."""
    return bindings.values.get(expr) if bindings.is_visible(expr, user) else None


def _one_of_an_axis(bindings: Bindings, user: relax.Var, expr: relax.Expr, operand: Operand) -> TensorPart | None:
    """Find what a slice of one element of an axis, which is gone then, is taken of."""
    cut, shape = _slice(_value(bindings, user, expr)), open_shape(operand.expr)
    if cut is None or shape is None or cut.end != cut.begin + 1:
        return None
    rest = (*cut.shape[: cut.axis], *cut.shape[cut.axis + 1 :])
    if not same_extents(rest, shape) or not bindings.is_visible(cut.whole, user):
        return None
    source = bindings.operand(user, cut.whole, cut.shape)
    memory = open_shape(source.expr)
    if memory is None or not bindings.is_visible(source.expr, user):
        return None
    axes = tuple(source.axes[axis if axis < cut.axis else axis + 1] for axis in operand.axes)
    return TensorPart(source.expr, memory, axes, ((source.axes[cut.axis], cut.begin),))


def _columns(bindings: Bindings, user: relax.Var, expr: relax.Expr, operand: Operand) -> TensorPart | None:
    """Find what heads are taken of as some of equally many columns each."""
    cut, shape, part = _columns_cut(bindings, user, expr), open_shape(operand.expr), open_shape(expr)
    if cut is None or shape is None or part is None or len(shape) < 3:
        return None
    if not all(isinstance(extent, int) for extent in (part[-1], cut.shape[-1], *shape[-2:])):
        return None
    columns, count = part[-1], cut.shape[-1] // max(part[-1], 1)
    if not columns or cut.shape[-1] != columns * count or cut.begin % columns or prod(shape[-2:]) != columns:
        return None
    whole, value = cut.whole, _value(bindings, user, cut.whole)
    if calls(value, "relax.reshape") and bindings.is_visible(value.args[0], user):
        whole = value.args[0]  # read as another shape in any case
    if not bindings.is_visible(whole, user):
        return None
    at = len(shape) - 2
    axes = tuple(axis if axis < at else axis + 1 for axis in operand.axes)
    return TensorPart(whole, (*shape[:at], count, *shape[at:]), axes, ((at, cut.begin // columns),))


@dataclass(frozen=True)
class _Cut:
    """A tensor, and which elements of an axis are taken."""

    whole: relax.Expr
    shape: tuple[Any, ...]
    axis: int
    begin: int
    end: int


def _columns_cut(bindings: Bindings, user: relax.Var, expr: relax.Expr) -> _Cut | None:
    value = _value(bindings, user, expr)
    if isinstance(value, relax.TupleGetItem):
        split = _value(bindings, user, value.tuple_value)
        shape = open_shape(split.args[0]) if calls(split, "relax.split") else None
        part = open_shape(expr)
        if (
            shape is None
            or part is None
            or not isinstance(part[-1], int)
            or int(split.attrs.axis) % len(shape) != len(shape) - 1
        ):
            return None
        sizes = [open_shape(field) for field in split.ty.fields]
        if any(size is None or not same_extents(size, part) for size in sizes):
            return None
        begin = value.index * part[-1]
        return _Cut(split.args[0], shape, len(shape) - 1, begin, begin + part[-1])
    cut = _slice(value)
    return cut if cut is not None and cut.axis == len(cut.shape) - 1 else None


def _slice(value: Any) -> _Cut | None:
    """Read a slice of neighbours along one axis."""
    if not calls(value, "relax.strided_slice"):
        return None
    shape, numbers = open_shape(value.args[0]), [_integers(argument) for argument in value.args[1:]]
    if shape is None or len(numbers) < 3 or any(found is None or len(found) != 1 for found in numbers):
        return None
    ((axis,), (begin,), (end,), *steps) = numbers  # type: ignore[misc]
    axis %= len(shape)
    if not isinstance(shape[axis], int):
        return None
    begin, end = (max(0, min(place + shape[axis] * (place < 0), shape[axis])) for place in (begin, end))
    return None if steps and steps[0] != [1] else _Cut(value.args[0], shape, axis, begin, end)


def _integers(argument: Any) -> Sequence[int] | None:
    """Read a tuple of numbers that are known."""
    fields = list(argument.fields) if isinstance(argument, relax.Tuple) else []
    return [int(field) for field in fields] if all(isinstance(field, tirx.IntImm) for field in fields) else None
