"""Reads what some features of a tensor are computed of: a range along an axis, operator by operator, back to a product.

A range of the columns of ``matmul(x, w)`` is ``matmul(x, w[:, range])``; activations, sums, reshapes that keep ranges
together, softmax along another axis and products of many matrices (heads of an attention) carry a range back to their
operands. Which blocks are worth computing range by range is decided by :mod:`tvm_ext.memory.relax.feature_groups`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import tvm
from tvm import relax

from tvm_ext.memory.relax.partial_convolution import BINARY, UNARY
from tvm_ext.memory.relax.sliced_convolutions import Range
from tvm_ext.relax_utils import constant, static_shape

ALIKE = frozenset(f"relax.{name}" for name in (*UNARY, "astype"))
BROADCAST = frozenset(f"relax.{name}" for name in (*BINARY, "power", "where"))
VIEWS = frozenset({"relax.reshape", "relax.expand_dims", "relax.squeeze"})
SOFTMAX = frozenset({"relax.nn.softmax", "relax.nn.log_softmax"})


@dataclass(frozen=True)
class Sliced:
    """How a range of a result is computed.

    Attributes
    ----------
    operands : tuple of (relax.Expr, Range or None)
        What is read, and which range of it; None: all of it.
    make : callable
        Gives the call for operands of which these ranges are left.
    """

    operands: tuple[tuple[Any, Range | None], ...]
    make: Callable[[Sequence[Any]], Any]


def sliced(value: Any, wanted: Range, values: Mapping[Any, Any]) -> Sliced | None:
    """Describe a range of what a binding computes; None where it depends on more than ranges of the operands.

    Parameters
    ----------
    values : mapping of relax.Var to relax.Expr
        What variables are bound to.
    """
    if isinstance(value, relax.TupleGetItem):
        return _part_of_split(value, wanted, values)
    shape = static_shape(value) if isinstance(value, relax.Call) else None
    if shape is None:
        return None
    rule = _RULES.get(getattr(value.op, "name", ""))
    return None if rule is None else rule(value, shape, wanted)


def slice_constant(tensor: Any, wanted: Range) -> Any:
    """Give a range of a constant."""
    array = constant(tensor)
    assert array is not None
    places = array[(slice(None),) * wanted.axis + (slice(wanted.begin, wanted.end),)]
    return relax.const(places, str(array.dtype))


def _again(call: Any, others: Sequence[Any] = ()) -> Callable[[Sequence[Any]], Any]:
    return lambda operands: relax.Call(call.op, [*operands, *others], call.attrs, call.ty_args)


def _alike(call: Any, shape: Sequence[int], wanted: Range) -> Sliced | None:
    if any(isinstance(item, tvm.ir.Var) for item in call.args[1:]):
        return None
    return Sliced(((call.args[0], wanted),), _again(call, list(call.args)[1:]))


def _aligned(operand: Any, shape: Sequence[int], wanted: Range) -> tuple[Any, Range | None] | None:
    """Give the range of an operand that is broadcast to a shape, axes counted from the last one."""
    extents = static_shape(operand)
    if extents is None:
        return None
    axis = wanted.axis - (len(shape) - len(extents))
    if axis < 0 or extents[axis] != shape[wanted.axis]:
        return operand, None
    return operand, Range(axis, wanted.begin, wanted.end)


def _broadcast(call: Any, shape: Sequence[int], wanted: Range) -> Sliced | None:
    operands = [_aligned(item, shape, wanted) for item in call.args]
    if any(item is None for item in operands):
        return None
    return Sliced(tuple(item for item in operands if item is not None), _again(call))


def _product(call: Any, shape: Sequence[int], wanted: Range) -> Sliced | None:
    """Of columns, which are columns of the second operand, or of some of many matrices."""
    left, right = call.args
    shapes = static_shape(left), static_shape(right)
    if shapes[0] is None or shapes[1] is None or min(map(len, (shapes[0], shapes[1]))) < 2:
        return None
    if wanted.axis == len(shape) - 1:
        return Sliced(((left, None), (right, Range(len(shapes[1]) - 1, wanted.begin, wanted.end))), _again(call))
    if wanted.axis == len(shape) - 2:
        return None
    return _broadcast(call, shape, wanted)


def _softmax(call: Any, shape: Sequence[int], wanted: Range) -> Sliced | None:
    return None if int(call.attrs.axis) % len(shape) == wanted.axis else _alike(call, shape, wanted)


def _transpose(call: Any, shape: Sequence[int], wanted: Range) -> Sliced | None:
    axes = [int(axis) for axis in call.attrs.axes] if call.attrs.axes is not None else list(range(len(shape)))[::-1]
    return Sliced(((call.args[0], Range(axes[wanted.axis] % len(shape), wanted.begin, wanted.end)),), _again(call))


def _view(call: Any, shape: Sequence[int], wanted: Range) -> Sliced | None:
    """Elements lie in the same order: a range is one where as many of them lie in front of the axis, and behind it."""
    before = static_shape(call.args[0])
    if before is None or not prod(shape):
        return None
    inner = prod(shape[wanted.axis + 1 :])
    for axis, extent in enumerate(before):
        step = prod(before[axis + 1 :])
        ends = wanted.begin * inner, wanted.end * inner
        same = prod(before[:axis]) == prod(shape[: wanted.axis]) and extent > 1
        if same and not any(end % step for end in ends):
            read = Range(axis, ends[0] // step, ends[1] // step)
            left = [*shape[: wanted.axis], wanted.end - wanted.begin, *shape[wanted.axis + 1 :]]
            return Sliced(((call.args[0], read),), partial(_reshaped, left))
    return None


def _reshaped(shape: Sequence[int], operands: Sequence[Any]) -> Any:
    return relax.op.reshape(operands[0], shape)


def _slice(call: Any, shape: Sequence[int], wanted: Range) -> Sliced | None:
    """Of a slice of a row of places, along the axis of the range alone."""
    fields = [item.fields if isinstance(item, relax.Tuple) else None for item in call.args[1:]]
    if len(fields) < 3 or any(item is None or len(item) != 1 for item in fields):
        return None
    numbers = [item[0] for item in fields if item is not None]
    if not all(isinstance(number, tvm.tirx.IntImm) for number in numbers):
        return None
    axis, first, _, *step = (int(number) for number in numbers)
    if axis % len(shape) != wanted.axis or first < 0 or step not in ([], [1]):
        return None
    return _shifted(call.args[0], wanted, first)


def _shifted(operand: Any, wanted: Range, first: int) -> Sliced:
    moved = Range(wanted.axis, first + wanted.begin, first + wanted.end)
    return Sliced(((operand, moved),), lambda operands: operands[0])


def _part_of_split(value: Any, wanted: Range, values: Mapping[Any, Any]) -> Sliced | None:
    split = values.get(value.tuple_value)
    if not isinstance(split, relax.Call) or getattr(split.op, "name", "") != "relax.split":
        return None
    operand, sections = split.args[0], split.attrs.indices_or_sections
    shape, part = static_shape(operand), static_shape(value)
    if shape is None or part is None:
        return None
    axis = int(split.attrs.axis) % len(shape)
    if isinstance(sections, int | tvm.tirx.IntImm):
        first = value.index * -(-shape[axis] // int(sections))
    else:
        first = [0, *(int(place) for place in sections)][value.index]
    if axis == wanted.axis:
        return _shifted(operand, wanted, first)
    last = first + part[axis]
    return Sliced(((operand, wanted),), lambda operands: relax.op.strided_slice(operands[0], [axis], [first], [last]))


_RULES: dict[str, Callable[[Any, Sequence[int], Range], Sliced | None]] = {
    **dict.fromkeys(ALIKE, _alike),
    **dict.fromkeys(BROADCAST, _broadcast),
    **dict.fromkeys(VIEWS, _view),
    **dict.fromkeys(SOFTMAX, _softmax),
    "relax.matmul": _product,
    "relax.permute_dims": _transpose,
    "relax.strided_slice": _slice,
}
