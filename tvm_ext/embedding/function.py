"""A strategy as TIR: the operator on stored operands, with the axes of the instruction innermost."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import te, tirx

from tvm_ext.embedding.packing import pack_te, unpack_te
from tvm_ext.embedding.strategy import Strategy
from tvm_ext.schedules.rule import new_schedule

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
    return te.create_prim_func([left, right, _product(found, left, right)])


def whole_function(found: Strategy) -> tirx.PrimFunc:
    """Write the operator with its operands as they were: stored anew before, and the result read back after."""
    operator = found.embedding.operator
    tensors = [te.placeholder(access.shape, access.dtype, name=access.tensor) for access in operator.inputs]
    packed = [
        pack_te(tensor, stored, f"stored{number}")
        for number, (tensor, stored) in enumerate(zip(tensors, found.operands[:2], strict=True))
    ]
    flat = [_fused(packed[found.embedding.operand(number)], found, number) for number in range(2)]
    result = _product(found, *flat)
    stored = found.operands[2]
    split = te.compute(stored.shape, lambda *at: result(*_fused_index(found, 2, at)), name="split")
    return te.create_prim_func([*tensors, unpack_te(split, found, operator.output.tensor)])


def pack_function(found: Strategy, number: int) -> tirx.PrimFunc:
    """Write the storing of a factor of the instruction (0 or 1): from the operator's tensor to :func:`stored_shape`."""
    stored = found.operands[_operator(found, number)]
    source = te.placeholder(stored.access.shape, stored.access.dtype, name=stored.access.tensor)
    packed = pack_te(source, stored, "packed")
    return _inlined(te.create_prim_func([source, _fused(packed, found, number)]), "packed")


def unpack_function(found: Strategy) -> tirx.PrimFunc:
    """Write the reading of the result: from :func:`stored_shape` to the operator's tensor."""
    operator, stored = found.embedding.operator, found.operands[2]
    result = te.placeholder(stored_shape(found, 2), operator.output.dtype, name="result")
    split = te.compute(stored.shape, lambda *at: result(*_fused_index(found, 2, at)), name="split")
    return _inlined(te.create_prim_func([result, unpack_te(split, found, operator.output.tensor)]), "split")


def _inlined(func: tirx.PrimFunc, block: str) -> tirx.PrimFunc:
    schedule = new_schedule(func)
    schedule.compute_inline(schedule.get_sblock(block))
    return schedule.mod["main"]


def stored_shape(found: Strategy, number: int) -> tuple[int, ...]:
    """Shape of an operand of the instruction (0, 1: factors, 2: result): loops and windows, then the instruction's."""
    stored = found.operands[_operator(found, number)]
    outer = tuple(dimension.extent for dimension in stored.dimensions if dimension.lane is None)
    return (*outer, *found.embedding.instruction.operands[number].shape)


def _operator(found: Strategy, number: int) -> int:
    return found.embedding.operand(number)


def _product(found: Strategy, left: Any, right: Any) -> Any:
    """Sum up products over loops and axes of the instruction, those over outputs first."""
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
        for number, tensor in enumerate((left, right)):
            stored = found.operands[_operator(found, number)]
            index = [
                sum((turns[loop] * step for loop, step in dimension.loops), tirx.const(0, "int32"))
                for dimension in stored.dimensions
                if dimension.lane is None
            ]
            for row in instruction.operands[number].index:
                axis = next((axis for axis, step in enumerate(row) if step), None)
                index.append(tirx.const(0, "int32") if axis is None else lanes[axis])
            factors.append(tensor(*index).astype(instruction.output.dtype))
        axes = [*sums.values(), *inner.values()]
        return te.sum(factors[0] * factors[1], axes) if axes else factors[0] * factors[1]

    return te.compute(stored_shape(found, 2), element, name=BLOCK)


def _fused(tensor: Any, found: Strategy, number: int) -> Any:
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

    return te.compute(stored_shape(found, number), element, name=f"operand{number}")


def _fused_index(found: Strategy, number: int, at: tuple[Any, ...]) -> list[Any]:
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
