"""Small helpers of the CUDA rules: extents, storages, binding loops to threads."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import tvm
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import IntImm

VECTOR_BYTES = 16
"""Bytes of the widest access of a thread."""

MOST_BLOCKS = 65535
"""Blocks along the second or third axis of a grid."""

TRUTH = "bool"
"""Type of truth values, which take a byte each."""


def extent(schedule: Schedule, loop: LoopRV) -> int:
    """Extent of a loop, which must be known."""
    return int(schedule.get(loop).extent)


def bind_grid(schedule: Schedule, batch: LoopRV, rows: LoopRV, columns: LoopRV, together: bool = False) -> None:
    """Bind the loops over tiles to the axes of the grid; the first may be long, the others have 65,535 blocks.

    With ``together``, eight rows of tiles at most run side by side, so that they read the same columns from the L2
    cache. A batch of open extent may be long, and so may open rows or columns, of which any has its part of that axis;
    of known ones the columns are more.
    """
    is_open = [not isinstance(schedule.get(loop).extent, IntImm) for loop in (batch, rows, columns)]
    if together and not is_open[1]:
        rows, inner = schedule.split(rows, [None, _side_by_side(extent(schedule, rows))])
        schedule.reorder(rows, columns, inner)
        columns = schedule.fuse(columns, inner)
    known = [loop for loop, unknown in zip((rows, columns), is_open[1:], strict=True) if not unknown]
    if not any(is_open):
        order = [columns, rows, batch]
    elif all(extent(schedule, loop) <= MOST_BLOCKS for loop in known):
        long = [batch, *(loop for loop, unknown in zip((rows, columns), is_open[1:], strict=True) if unknown)]
        # The long axis is outermost: TVM gives parts of its extent names there, which the launch knows then.
        schedule.reorder(*long, *known)
        order = [schedule.fuse(*long) if len(long) > 1 else batch, *reversed(known)]
    else:
        raise ScheduleError("a product whose tiles are more than an axis of the grid has")
    for loop, thread in zip(order, ("blockIdx.x", "blockIdx.y", "blockIdx.z"), strict=False):
        schedule.bind(loop, thread)


def _side_by_side(blocks: int) -> int:
    """Count the rows of tiles whose blocks run side by side."""
    return next(count for count in (8, 4, 2, 1) if blocks % count == 0)


def elements(buffer: Any) -> int:
    """Elements of a buffer of known shape; 0 of one of open extents."""
    return prod(int(size) for size in buffer.shape) if all(isinstance(size, IntImm) for size in buffer.shape) else 0


def element_bytes(dtype: Any) -> int:
    """Bytes of an element; a boolean takes one."""
    return max(1, tvm.DataType(str(dtype)).bits // 8)


def longest_vector(buffers: Iterable[Any]) -> int:
    """Count the elements of the longest access of threads that move these tensors.

    TVM prints a vector of truth values as one of 16-bit integers, which is twice as long in memory: there are none.
    """
    types = {str(buffer.dtype) for buffer in buffers}
    return 1 if TRUTH in types else max(1, VECTOR_BYTES // max(map(element_bytes, types)))


def touched(schedule: Schedule, block: SBlockRV) -> list[Any]:
    """Buffers that a block reads or writes, each once."""
    body = schedule.get(block)
    found: list[Any] = []
    for region in (*body.reads, *body.writes):
        if not any(region.source.same_as(buffer) for buffer in found):
            found.append(region.source)
    return found


def moved_bytes(schedule: Schedule, block: SBlockRV) -> int:
    """Bytes of a block's tensors, each counted once, as far as the block has points to touch them."""
    points = prod(int(axis.dom.extent) for axis in schedule.get(block).iter_vars)
    return sum(min(elements(buffer), points) * element_bytes(buffer.dtype) for buffer in touched(schedule, block))


def power_of_two(number: int) -> int:
    """Find the largest power of two that divides ``number``."""
    return number & -number
