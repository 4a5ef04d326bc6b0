"""Stores operands as a strategy says, and reads results back: in numpy, for constants and as the meaning; and as TE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import te, tirx

from tvm_ext.embedding.strategy import Loop, Stored, Strategy


def pack(values: NDArray, stored: Stored) -> NDArray:
    """Store an operand; what lies beyond a tensor or an axis is zero.

    Parameters
    ----------
    values : NDArray
        Of the shape of the operator's tensor.
    stored : Stored
    """
    grid = np.ogrid[tuple(slice(0, extent) for extent in stored.shape)]
    index, inside = [], np.ones((1,) * len(grid), bool)
    for at, (start, extent) in enumerate(zip(stored.access.offset, values.shape, strict=True)):
        place = np.full((1,) * len(grid), start)
        for coordinate, dimension in zip(grid, stored.dimensions, strict=True):
            if dimension.steps[at]:
                place = place + coordinate * dimension.steps[at]
        inside = inside & (place >= 0) & (place < extent)
        index.append(np.clip(place, 0, extent - 1))
    for parts, limit in stored.limits:
        inside = inside & (sum(grid[place] * factor for place, factor in parts) < limit)
    found = np.where(inside, values[tuple(np.broadcast_arrays(*index))] if index else values, 0)
    return np.ascontiguousarray(np.broadcast_to(found, stored.shape).astype(values.dtype))


def unpack(values: NDArray, found: Strategy) -> NDArray:
    """Read the operator's result from the stored one."""
    stored = found.operands[2]
    grid = np.ogrid[tuple(slice(0, extent) for extent in stored.access.shape)]
    places = _coordinates(found, list(grid))
    result = values[tuple(np.broadcast_arrays(*places))] if places else values
    return np.ascontiguousarray(np.broadcast_to(result, stored.access.shape))


def pack_te(tensor: Any, stored: Stored, name: str) -> Any:
    """Store an operand, as a tensor expression."""

    def element(*at: Any) -> Any:
        index = []
        conditions = []
        for place, (start, extent) in enumerate(zip(stored.access.offset, stored.access.shape, strict=True)):
            moves = [(coordinate, dimension) for coordinate, dimension in zip(at, stored.dimensions, strict=True)
                     if dimension.steps[place]]  # fmt: skip
            index.append(sum((coordinate * dimension.steps[place] for coordinate, dimension in moves), start))
            if start + sum(dimension.steps[place] * (dimension.extent - 1) for _, dimension in moves) >= extent:
                conditions.append(index[-1] < extent)
        for parts, limit in stored.limits:
            conditions.append(sum(at[place] * factor for place, factor in parts) < limit)
        value = tensor(*index)
        return te.if_then_else(te.all(*conditions), value, tirx.const(0, tensor.dtype)) if conditions else value

    return te.compute(wide(stored.shape), element, name=name)


def unpack_te(tensor: Any, found: Strategy, name: str) -> Any:
    """Read the operator's result from the stored one, as a tensor expression."""
    shape = found.operands[2].access.shape
    return te.compute(wide(shape), lambda *at: tensor(*_coordinates(found, list(at))), name=name)


def wide(shape: Sequence[int]) -> list[Any]:
    """Give extents the type that those of Relax tensors have."""
    return [tirx.IntImm("int64", int(extent)) for extent in shape]


def _coordinates(found: Strategy, output: Sequence[Any]) -> list[Any]:
    """Find where an element of the operator's result is stored, from its place in the operator's tensor."""
    embedding, stored = found.embedding, found.operands[2]
    values = {}
    for axis, it in enumerate(embedding.operator.axes):
        for place, row in enumerate(stored.access.index):
            if row[axis]:
                value = output[place] if row[axis] == 1 else output[place] // row[axis]
                is_outermost = all(abs(step) <= row[axis] for step in row)
                values[axis] = value if is_outermost else value % it.extent
    parts: list[Any] = []
    for dimension in stored.dimensions:
        if dimension.lane is None:
            loop: Loop = found.loops[dimension.loops[0][0]]
            axis, step, extent, span = loop.axis, loop.step, loop.extent, loop.span
        else:
            digit = embedding.digits[dimension.lane[0]][dimension.lane[1]]
            axis, step, extent, span = digit.axis, digit.stride, digit.size, digit.stride * digit.size
        value = values[axis]
        if span < embedding.padded[axis]:
            value = value % span
        if step > 1:
            value = value // step
        parts.append(value % extent if step * extent < span else value)
    return parts
