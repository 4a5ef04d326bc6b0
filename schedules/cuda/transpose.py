"""Data-parallel kernels that read a tensor in another order than they write: through tiles in shared memory.

Read directly, neighbouring threads would fetch from different lines of memory and use four bytes of each. A tile is
read along one axis and written along the other; its rows are one element longer than they need be, so that a column
lies in different banks.
"""

from __future__ import annotations

from math import prod

import tvm
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import IntImm, PrimFunc

from tvm_ext.schedules.cuda.machine import WARP
from tvm_ext.schedules.kernel.access import axes_of
from tvm_ext.schedules.kernel.inline import inline_producers
from tvm_ext.schedules.kernel.operations import data_parallel_blocks, has_condition
from tvm_ext.schedules.knobs import choose
from tvm_ext.schedules.rule import new_schedule

SIDE = 32
"""Rows and columns of a tile at most."""

SHORTEST = 8
"""Elements side by side below which a tile is not worth its barrier: a sector of memory is 32 bytes."""

THREADS = 256


class Transpose:
    """Schedule a kernel that comes down to one data-parallel block which reads one tensor across its rows."""

    name = "cuda.transpose"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when tiles of at least 8 x 8 divide the two axes."""
        schedule = new_schedule(func, tunable)
        blocks = data_parallel_blocks(schedule)
        if not blocks:
            return None
        (block, *rest) = inline_producers(schedule)
        found = None if rest or has_condition(schedule, block) else _turned(schedule, block)
        if found is None:
            return None
        try:
            _schedule(schedule, block, *found)
        except ScheduleError:
            return None
        return schedule


def _turned(schedule: Schedule, block: SBlockRV) -> tuple[int, int] | None:
    """Find the one tensor that is read across: its number, and the axis of the block that its neighbours are along."""
    axes = axes_of(schedule, block)
    reads = [access for access in axes.accesses if not access.written]
    found = []
    for number, access in enumerate(reads):
        if access.strides is None or None in access.strides:
            return None
        if not access.strides or access.strides[-1] in (0, 1) or axes.extents[-1] == 1:
            continue
        along = [axis for axis, step in enumerate(access.strides) if step == 1 and axes.extents[axis] != 1]
        if len(along) != 1:
            return None
        found.append((number, along[0]))
    if len(found) != 1:
        return None
    number, axis = found[0]
    sides = _side(axes.extents[axis] or 1), _side(axes.extents[-1] or 1)
    return (number, axis) if min(sides) >= SHORTEST else None


def _side(size: int) -> int:
    return max(side for side in range(1, SIDE + 1) if size % side == 0)


def _threads(rows: int, columns: int) -> int:
    """Choose threads that take whole rows of a tile: such as divide it, whole warps if there are.

    What a thread reads along its row is then the same each time, which TVM needs to know to find the tile.
    """
    whole = [rows * part for part in range(1, columns + 1) if 2 * WARP <= rows * part <= THREADS]
    return max(whole, key=lambda count: (rows * columns % count == 0, count % WARP == 0, count))


def _schedule(schedule: Schedule, block: SBlockRV, number: int, axis: int) -> None:
    axes = axes_of(schedule, block)
    loops = list(schedule.get_loops(block))
    column, row = loops[axis], loops[-1]
    column0, column1 = schedule.split(column, [None, _side(axes.extents[axis] or 1)])
    row0, row1 = schedule.split(row, [None, _side(axes.extents[-1] or 1)])
    outer = [loop for place, loop in enumerate(loops[:-1]) if place != axis]
    schedule.reorder(*outer, column0, row0, column1, row1)
    grid = schedule.fuse(*outer, column0, row0)
    schedule.bind(grid, "blockIdx.x")
    shared = schedule.cache_read(block, number, "shared")
    schedule.compute_at(shared, grid, preserve_unit_loops=True)
    sides = _side(axes.extents[-1] or 1), _side(axes.extents[axis] or 1)
    filled = [schedule.get(loop).extent for loop in schedule.get_loops(shared)[1:]]
    if not all(isinstance(size, IntImm) for size in filled) or prod(map(int, filled)) != prod(sides):
        # Behind a reshape the elements of a tile are not known to be a tile of the tensor.
        raise ScheduleError("what a tile reads is no tile")
    usual = _threads(*sides)
    threads = choose(schedule, sorted({64, 128, THREADS, 512, 1024, usual}), usual)
    # The tile is filled in the order of the tensor, whose last axis with more than one element is the columns.
    for item, inner in ((shared, list(schedule.get_loops(shared))[1:]), (block, [column1, row1])):
        fused = schedule.fuse(*inner)
        _, thread = schedule.split(fused, [None, threads])
        schedule.bind(thread, "threadIdx.x")
        if item is shared:
            schedule.storage_align(shared, 0, axis=-2, factor=2, offset=1)
