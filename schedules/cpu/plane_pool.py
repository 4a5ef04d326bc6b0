"""Poolings of planes: a task joins the rows of a window in its cache, and takes columns of what they gave."""

from __future__ import annotations

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.schedules.cpu.cost import block_seconds
from tvm_ext.schedules.cpu.elementwise import vectorize_and_divide
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.cpu.tasks import share_out
from tvm_ext.schedules.kernel.blocks import annotated_block, inline_epilogue
from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.simd.loops import mark_simd

UNROLLED_TAPS, UNROLLED_VECTORS = 9, 8
"""Taps along an axis, and vectors of a row, up to which they are written out; LLVM then knows which meet padding."""


class PlanePool:
    """Schedule a pooling of planes or volumes with its epilogue; a task is some rows of the result."""

    name = "cpu.plane_pool"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it holds one; nothing of it is tuned."""
        schedule = new_schedule(func, tunable)
        rows, window = annotated_block(schedule, "pool_rows"), annotated_block(schedule, "plane_pool")
        if rows is None or window is None:
            return None
        machine = machine_of(target)
        lanes = machine.lanes(str(schedule.get(window).writes[0].source.dtype))
        seconds = block_seconds(schedule, rows, machine)
        store, rest = inline_epilogue(schedule, window)
        if rest is not None:
            vectorize_and_divide(schedule, rest, machine)
        *outer, column = schedule.get_loops(store)
        share_out(schedule, outer, seconds, machine)
        vector, lane = schedule.split(column, [None, lanes])
        mark_simd(schedule, lane, lanes)
        _unroll_few(schedule, vector)
        schedule.compute_at(window, vector, preserve_unit_loops=True)
        *_, row, _, _ = schedule.get_loops(store)
        schedule.compute_at(rows, row, preserve_unit_loops=True)
        _reduce(schedule, window, 1, lanes)
        taps = len(schedule.get(rows).iter_vars) - len(schedule.get(window).iter_vars) + 1
        _reduce(schedule, rows, taps, lanes)
        return schedule


def _reduce(schedule: Schedule, block: SBlockRV, taps: int, lanes: int) -> None:
    """Reduce a vector over all taps, in a register."""
    loops = schedule.get_loops(block)
    column, reduced = loops[-taps - 1], loops[-taps:]
    # The last vector is computed whole: its surplus lanes have room, and read nothing outside of the tensor.
    vector, lane = schedule.split(column, [None, lanes], disable_predication=True)
    schedule.reorder(*reduced, lane)
    mark_simd(schedule, lane, lanes)
    _unroll_few(schedule, vector)
    if int(schedule.get(reduced[-1]).extent) <= UNROLLED_TAPS:
        schedule.unroll(reduced[-1])
    initial = schedule.decompose_reduction(block, reduced[0])
    schedule.vectorize(schedule.get_loops(initial)[-1])


def _unroll_few(schedule: Schedule, vector: LoopRV) -> None:
    if int(schedule.get(vector).extent) <= UNROLLED_VECTORS:
        schedule.unroll(vector)
