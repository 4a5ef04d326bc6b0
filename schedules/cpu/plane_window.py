"""Depthwise convolutions of planes: a task pads a channel in its cache, and computes it in vectors along rows."""

from __future__ import annotations

from math import prod

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.schedules.cpu.elementwise import vectorize_and_divide
from tvm_ext.schedules.cpu.machine import WINDOW_SHARE, machine_of
from tvm_ext.schedules.cpu.prologue import inline_prologue
from tvm_ext.schedules.kernel.blocks import annotated_block, inline_epilogue, loop_extents
from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.simd.loops import mark_simd

UNROLLED_VECTORS, UNROLLED_TAPS, UNROLLED_PRODUCTS = 8, 25, 800
"""Vectors of a row, taps of a filter, and products of a plane, up to which they are written out.

Where all of a plane is written out, LLVM knows which taps fall on padding, and loads each vector once.
"""


class PlaneWindow:
    """Schedule a depthwise convolution of planes with its epilogue; a task is a channel of an image."""

    name = "cpu.plane_window"

    def apply(self, func: PrimFunc, target: object, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it holds one; nothing of it is tuned."""
        schedule = new_schedule(func, tunable)
        window, pad = annotated_block(schedule, "plane_depthwise"), annotated_block(schedule, "pad")
        if window is None or pad is None:
            return None
        machine = machine_of(target)
        extents = loop_extents(schedule, window)
        lanes = min(machine.lanes("float32"), _power_of_two(extents[3]))
        pad, _ = inline_prologue(schedule, window, pad)
        schedule.compute_inline(pad)
        store, rest = inline_epilogue(schedule, window)
        if rest is not None:
            vectorize_and_divide(schedule, rest, machine)
        *outer, row, column = schedule.get_loops(store)
        if len(outer) != 2:
            return None
        task = schedule.fuse(*outer)
        if machine.divides(2 * prod(extents) / WINDOW_SHARE):
            schedule.parallel(task)
        vector, lane = schedule.split(column, [None, lanes])
        mark_simd(schedule, lane, lanes)
        if extents[3] // lanes <= UNROLLED_VECTORS:
            schedule.unroll(vector)
        if prod(extents[2:]) // lanes <= UNROLLED_PRODUCTS:
            schedule.unroll(row)
        schedule.compute_at(window, vector, preserve_unit_loops=True)
        _accumulate(schedule, window)
        return schedule


def _power_of_two(extent: int) -> int:
    """Give the largest power of two that divides an extent."""
    return extent & -extent


def _accumulate(schedule: Schedule, window: SBlockRV) -> None:
    """Sum a vector over all taps, in a register."""
    *_, lane, tap_row, tap_column = schedule.get_loops(window)
    schedule.reorder(tap_row, tap_column, lane)
    mark_simd(schedule, lane, int(schedule.get(lane).extent))
    if int(schedule.get(tap_row).extent) * int(schedule.get(tap_column).extent) <= UNROLLED_TAPS:
        schedule.unroll(tap_row)
        schedule.unroll(tap_column)
    initial = schedule.decompose_reduction(window, tap_row)
    schedule.vectorize(schedule.get_loops(initial)[-1])
