"""Kernels that reduce and have open extents: vectors along an axis of known extent, all else in the order it has.

No tile or number of tasks can be chosen for an extent that is only known at run time, but a product of an open number
of rows with a matrix still has a known number of columns, which lie side by side.
"""

from __future__ import annotations

from math import prod

import tvm
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import IntImm, IterVar, PrimFunc

from tvm_ext.schedules.cpu.elementwise import vector_lanes, vectorize_and_divide
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.row_reduction import vectorize_along
from tvm_ext.schedules.kernel.access import Axes, axes_of
from tvm_ext.schedules.kernel.blocks import is_spatial, static_extents, top_blocks
from tvm_ext.schedules.kernel.inline import inline_producers
from tvm_ext.schedules.kernel.one_axis import with_axes_as_one
from tvm_ext.schedules.kernel.operations import is_simple
from tvm_ext.schedules.kernel.rejoin import with_initial_values
from tvm_ext.schedules.kernel.rows import NotRows, row_loops
from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.simd.loops import mark_simd
from tvm_ext.schedules.simd.widen import uses

LONG_ROW = 256
"""Elements of a row from which on rows are shared out among threads, as are those of open length: how many rows there
are is not known."""


class OpenExtents:
    """Schedule a kernel with open extents, block by block."""

    name = "cpu.open_extents"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when its blocks compute single elements and not all of its extents are known.

        There is nothing to tune.
        """
        if tunable:
            return None
        schedule = new_schedule(func, tunable)
        blocks = top_blocks(schedule)
        if not blocks or not all(is_simple(schedule, block) for block in blocks):
            return None
        if all(static_extents(schedule, block) for block in blocks):
            return None
        machine = machine_of(target)
        rows = _row_by_row(func, machine)
        if rows is not None:
            return rows
        for block in blocks:
            if is_spatial(schedule, block):
                vectorize_and_divide(schedule, block, machine)
            else:
                _reduce_side_by_side(schedule, block, machine)
                _initialize(schedule, block)
        return schedule


def _row_by_row(func: PrimFunc, machine: Machine) -> Schedule | None:
    """Run all blocks for one row after another, as :mod:`tvm_ext.schedules.cpu.row_reduction` does; None: no rows.

    A row may be a picture of open height and width.
    """
    merged, restore = with_axes_as_one(with_initial_values(func))
    schedule = new_schedule(merged)
    try:
        blocks = inline_producers(schedule)
        reductions = [block for block in blocks if not is_spatial(schedule, block)]
        outputs = schedule.get_output_blocks(schedule.get_sblock("root"))
        if len(outputs) != 1 or not reductions or not all(_reads_along(schedule, block) for block in reductions):
            return None
        if not is_spatial(schedule, blocks[-1]):
            schedule.cache_write(blocks[-1], 0, "global")
            blocks = top_blocks(schedule)
        rows, inside = row_loops(schedule, blocks)
        if not rows:
            return None
        long = _is_long(schedule, reductions[0])
        schedule.reorder(*rows, *inside)
        if not inside:
            schedule.add_unit_loop(blocks[-1])
        row = schedule.fuse(*rows)
        for block in reversed(blocks[:-1]):
            schedule.compute_at(block, row, preserve_unit_loops=True)
        if long:
            schedule.parallel(row)
        for block in blocks:
            vectorize_along(schedule, block, 1, machine)
    except (ScheduleError, NotRows):
        return None
    return new_schedule(restore(schedule.mod["main"]))


def _is_long(schedule: Schedule, block: SBlockRV) -> bool:
    """Whether a block reduces many elements, or so many as are only known at run time."""
    axes = axes_of(schedule, block)
    reduced = [extent for extent, reduces in zip(axes.extents, axes.reduces, strict=True) if reduces]
    return None in reduced or prod(extent or 1 for extent in reduced) >= LONG_ROW


def _reads_along(schedule: Schedule, block: SBlockRV) -> bool:
    """Whether a block reduces along its last axis, along which what it reads lies side by side."""
    axes = axes_of(schedule, block)
    last = [None if access.strides is None else access.strides[-1] for access in axes.accesses if not access.written]
    return axes.reduces[-1] and 1 in last and all(stride in (0, 1) for stride in last)


def _initialize(schedule: Schedule, block: SBlockRV) -> None:
    """Initialise results apart from loops that may have no iteration, where that is not done yet."""
    body = schedule.get(block)
    if body.init is None:
        return
    realize = schedule.get(schedule.get_loops(block)[-1]).body
    reduced = [
        value
        for value, axis in zip(realize.iter_values, realize.block.iter_vars, strict=True)
        if int(axis.iter_type) == IterVar.CommReduce
    ]
    loops = [
        loop for loop in schedule.get_loops(block) if any(uses(value, schedule.get(loop).loop_var) for value in reduced)
    ]
    if any(not isinstance(schedule.get(loop).extent, IntImm) for loop in loops):
        schedule.decompose_reduction(block, loops[0])


def _reduce_side_by_side(schedule: Schedule, block: SBlockRV, machine: Machine) -> None:
    """Compute the results along one axis as vectors, and add all that is reduced to them in turn."""
    axes = axes_of(schedule, block)
    column = _columns(axes)
    loops = list(schedule.get_loops(block))
    if len(loops) != len(axes.extents):
        return
    if column is None:
        _reduce_along(schedule, block, axes, loops, machine)
        return
    reduced = [loop for loop, reduces in zip(loops, axes.reduces, strict=True) if reduces]
    outer = [loop for number, loop in enumerate(loops) if not axes.reduces[number] and number != column]
    try:
        schedule.reorder(*outer, *reduced, loops[column])
    except ScheduleError:
        return  # what is reduced over an open extent begins in a loop that the results are in
    lanes = vector_lanes(schedule, block, machine)
    if schedule.get(block).init is not None:
        initial = schedule.decompose_reduction(block, reduced[0])
        mark_simd(schedule, schedule.get_loops(initial)[-1], lanes)
    mark_simd(schedule, schedule.get_loops(block)[-1], lanes)


def _reduce_along(schedule: Schedule, block: SBlockRV, axes: Axes, loops: list[LoopRV], machine: Machine) -> None:
    """Reduce vectors along the last axis, where what is read lies side by side along it."""
    last = len(loops) - 1
    strides = [
        None if access.strides is None else access.strides[last] for access in axes.accesses if not access.written
    ]
    if axes.reduces[last] and 1 in strides and all(stride in (0, 1) for stride in strides):
        mark_simd(schedule, loops[last], vector_lanes(schedule, block, machine))


def _columns(axes: Axes) -> int | None:
    """Find an axis of known extent along which results lie side by side, and operands do or stay the same."""
    for axis, extent in enumerate(axes.extents):
        if axes.reduces[axis] or extent is None or extent == 1:
            continue
        if all(
            access.strides is not None and access.strides[axis] in ((1,) if access.written else (0, 1))
            for access in axes.accesses
        ):
            return axis
    return None
