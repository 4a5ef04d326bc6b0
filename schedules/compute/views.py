"""Operands that are read where they lie: through slices, reshapes and transposes that are no tensors in memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import te, tirx
from tvm.ir import Expr

from tvm_ext.schedules.compute.matmul import flatten, unflatten

View = tuple[tuple[str, tuple[Any, ...]], ...]
"""Steps from an operand back to the tensor in memory; each names what the operand is of the tensor before it:

``("slice", begins)``
    From these places on, with a step of 1.
``("select", (axis, place))``
    The part at a place of an axis, which the operand does not have.
``("permute", axes)``
    Axis ``i`` is axis ``axes[i]`` of the tensor.
``("reshape", (before, after))``
    The same elements, in another shape.
``("broadcast", before)``
    The same for all places of an axis of 1, and of further axes in front.
``("scale", (factor,))``
    Multiplied by a number.
"""


def viewed(data: te.Tensor, shape: Sequence[int], view: View) -> te.Tensor:
    """Make the operand of a kernel out of a tensor in memory; to be inlined where it is read.

    Parameters
    ----------
    data : te.Tensor
        In memory.
    shape : sequence of int
        Of the operand.
    view : View
        The tensor itself where there are no steps.
    """
    if not view:
        return data

    def element(*index: tirx.Var) -> Expr:
        places: list[Expr] = list(index)
        factors = [float(argument[0]) for name, argument in view if name == "scale"]
        for name, argument in view:
            places = _before(str(name), argument, places)
        value = data(*places)
        for factor in reversed(factors):  # as they were multiplied
            value = value * tirx.const(factor, data.dtype)
        return value

    return te.compute(tuple(map(int, shape)), element, name="operand")


def _before(name: str, argument: Any, index: list[Expr]) -> list[Expr]:
    """Give the index into the tensor that a step is made of."""
    if name == "slice":
        return [place + int(begin) if int(begin) else place for place, begin in zip(index, argument, strict=True)]
    if name == "select":
        axis, place = map(int, argument)
        return [*index[:axis], tirx.const(place, "int64"), *index[axis:]]
    if name == "permute":
        places: list[Expr] = [0] * len(index)
        for place, axis in zip(index, argument, strict=True):
            places[int(axis)] = place
        return places
    if name == "broadcast":
        before = [int(extent) for extent in argument]
        zero = tirx.const(0, "int64")
        kept = index[len(index) - len(before) :]
        return [zero if extent == 1 else place for place, extent in zip(kept, before, strict=True)]
    return (
        _reshaped([int(e) for e in argument[0]], [int(e) for e in argument[1]], index) if name == "reshape" else index
    )


def _reshaped(before: list[int], after: list[int], index: list[Expr]) -> list[Expr]:
    """Give the index in front of a reshape, by groups of axes that hold the same elements before and behind it."""
    places: list[Expr] = []
    start = [0, 0]
    while start[0] < len(before):
        end = [start[0] + 1, min(start[1] + 1, len(after))]
        while prod(before[start[0] : end[0]]) != prod(after[start[1] : end[1]]):
            short = prod(before[start[0] : end[0]]) > prod(after[start[1] : end[1]])
            end[short] += 1
        group = flatten(index[start[1] : end[1]], after[start[1] : end[1]])
        places += unflatten(group, before[start[0] : end[0]])
        start = end
    return [tirx.const(place, "int64") if isinstance(place, int) else place for place in places]
