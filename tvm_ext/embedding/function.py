"""A strategy as TIR: the operator on stored operands, with the axes of the instruction innermost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from tvm import te, tirx

from tvm_ext.embedding.packing import pack_te, unpack_te
from tvm_ext.embedding.strategy import Strategy

BLOCK = "embedded"
"""Name of the block that becomes the instruction."""


def stored_function(found: Strategy) -> tirx.PrimFunc:
    """Write the operator on stored operands.

    Returns
    -------
    PrimFunc
        Parameters: the instruction's left and right factor and result, each stored as :func:`stored_shape` says, in
        the types that the instruction takes.
    """
    left, right = (
        te.placeholder(stored_shape(found, number), found.embedding.instruction.operands[number].dtype, name=name)
        for number, name in ((0, "left"), (1, "right"))
    )
    return te.create_prim_func([left, right, product_te(found, [left, right])])


def whole_function(found: Strategy) -> tirx.PrimFunc:
    """Write the operator with its operands as they were: stored anew before, and the result read back after."""
    operator = found.embedding.operator
    tensors = [te.placeholder(access.shape, access.dtype, name=access.tensor) for access in operator.inputs]
    packed = [
        pack_te(tensor, stored, f"stored{number}")
        for number, (tensor, stored) in enumerate(zip(tensors, found.operands[:2], strict=True))
    ]
    flat = [fused_te(packed[found.embedding.operand(number)], found, number, f"operand{number}") for number in range(2)]
    split = split_te(product_te(found, flat), found)
    return te.create_prim_func([*tensors, unpack_te(split, found, operator.output.tensor)])


def split_te(result: Any, found: Strategy) -> Any:
    """Give a result in the shape of the instruction's the dimensions of the stored one: an axis becomes its parts."""
    return te.compute(found.operands[2].shape, lambda *at: result(*fused_index(found, 2, at)), name="split")


def stored_shape(found: Strategy, number: int) -> tuple[int, ...]:
    """Shape of an operand of the instruction (0, 1: factors, 2: result): loops and windows, then the instruction's."""
    stored = found.operands[_operator(found, number)]
    outer = tuple(dimension.extent for dimension in stored.dimensions if dimension.lane is None)
    return (*outer, *found.embedding.instruction.operands[number].shape)


def _operator(found: Strategy, number: int) -> int:
    return found.embedding.operand(number)


def product_te(
    found: Strategy,
    tensors: Sequence[Any],
    direct: Sequence[bool] = (False, False),
    attributes: Mapping[str, Any] | None = None,
) -> Any:
    """Sum up products over loops and axes of the instruction, those over outputs first.

    Parameters
    ----------
    found : Strategy
    tensors : sequence of te.Tensor
        The instruction's left and right factor.
    direct : sequence of bool
        For each, whether it is the operator's tensor as it is, instead of one that :func:`stored_shape` describes.
    attributes : mapping, optional
        Annotations of the block.
    """
    instruction = found.embedding.instruction
    sums: dict[Any, Any] = {
        number: te.reduce_axis((0, loop.extent), loop.name) for number, loop in enumerate(found.loops) if loop.reduces
    }
    inner: dict[Any, Any] = {
        number: te.reduce_axis((0, axis.extent), axis.name)
        for number, axis in enumerate(instruction.axes)
        if axis.reduces
    }
    output = found.operands[2]
    outer = [dimension.loops[0][0] for dimension in output.dimensions if dimension.lane is None]

    def element(*at: Any) -> Any:
        turns = sums | dict(zip(outer, at[: len(outer)], strict=True))
        lanes = dict(inner)
        for row, value in zip(instruction.output.index, at[len(outer) :], strict=True):
            lanes.update({axis: value for axis, step in enumerate(row) if step})
        factors = []
        for number, tensor in enumerate(tensors):
            place = _direct_index if direct[number] else _stored_index
            index = place(found, number, turns, lanes)
            factors.append(tensor(*index).astype(instruction.output.dtype))
        axes = [*sums.values(), *inner.values()]
        return te.sum(factors[0] * factors[1], axes) if axes else factors[0] * factors[1]

    return te.compute(stored_shape(found, 2), element, name=BLOCK, attrs=dict(attributes or {}))


def _stored_index(found: Strategy, number: int, turns: Mapping[int, Any], lanes: Mapping[int, Any]) -> list[Any]:
    """Find where the instruction's factor is in what :func:`stored_shape` describes."""
    index = [
        sum((turns[loop] * step for loop, step in dimension.loops), tirx.const(0, "int32"))
        for dimension in found.operands[_operator(found, number)].dimensions
        if dimension.lane is None
    ]
    for row in found.embedding.instruction.operands[number].index:
        axis = next((axis for axis, step in enumerate(row) if step), None)
        index.append(tirx.const(0, "int32") if axis is None else lanes[axis])
    return index


def _direct_index(found: Strategy, number: int, turns: Mapping[int, Any], lanes: Mapping[int, Any]) -> list[Any]:
    """Find where the instruction's factor is in the operator's tensor."""
    access = found.operands[_operator(found, number)].access
    values: dict[int, Any] = {}
    for at, loop in enumerate(found.loops):
        if access.uses(loop.axis):
            values[loop.axis] = values.get(loop.axis, 0) + turns[at] * loop.step
    for axis, fused in enumerate(found.embedding.digits):
        below = 1
        for digit in reversed(fused):
            if access.uses(digit.axis) and digit.size > 1:
                part = lanes[axis] if len(fused) == 1 else lanes[axis] // below % digit.size
                values[digit.axis] = values.get(digit.axis, 0) + part * digit.stride
            below *= digit.size
    zero = [tirx.const(start, "int32") for start in access.offset]
    return [
        sum((values[axis] * step for axis, step in enumerate(row) if step and axis in values), start)
        for row, start in zip(access.index, zero, strict=True)
    ]


def fused_te(tensor: Any, found: Strategy, number: int, name: str, attributes: Mapping[str, Any] | None = None) -> Any:
    """Give a stored operand the shape that the instruction takes: parts of an axis become one."""
    stored, dtype = found.operands[_operator(found, number)], found.embedding.instruction.operands[number].dtype

    def element(*at: Any) -> Any:
        outer = sum(dimension.lane is None for dimension in stored.dimensions)
        lanes, place = list(at[outer:]), 0
        parts: list[Any] = []
        for row in found.embedding.instruction.operands[number].index:
            axis = next((axis for axis, step in enumerate(row) if step), None)
            if axis is not None:
                sizes = [digit.size for digit in found.embedding.digits[axis]]
                for level, size in enumerate(sizes):
                    below = prod(sizes[level + 1 :])
                    parts.append(lanes[place] // below % size)
            place += 1
        return tensor(*at[:outer], *parts).astype(dtype)

    return te.compute(stored_shape(found, number), element, name=name, attrs=dict(attributes or {}))


def fused_index(found: Strategy, number: int, at: tuple[Any, ...]) -> list[Any]:
    """Find where an element of a stored operand is in the shape that the instruction takes."""
    stored = found.operands[_operator(found, number)]
    index = [value for value, dimension in zip(at, stored.dimensions, strict=True) if dimension.lane is None]
    values = {
        dimension.lane: value
        for value, dimension in zip(at, stored.dimensions, strict=True)
        if dimension.lane is not None
    }
    for row in found.embedding.instruction.operands[number].index:
        axis = next((axis for axis, step in enumerate(row) if step), None)
        value: Any = tirx.const(0, "int32")
        if axis is not None:
            for level, digit in enumerate(found.embedding.digits[axis]):
                value = value * digit.size + values[axis, level]
        index.append(value)
    return index
