"""Local response normalisation: a task squares the channels of some pixels in its cache, and sums and divides there."""

from __future__ import annotations

from math import prod

import tvm
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvm_ext.schedules.cpu.elementwise import vectorize_and_divide
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.divisors import divisors
from tvm_ext.schedules.kernel.blocks import annotated_block, inline_epilogue, loop_extents
from tvm_ext.schedules.rule import new_schedule

OPERATIONS = 32
"""Operations for each element, about: a window of five, a power and a division."""


class LocalResponse:
    """Schedule a local response normalisation with its epilogue; a task is a row of an image, or a part of one."""

    name = "cpu.local_response"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it holds one; nothing of it is tuned."""
        schedule = new_schedule(func, tunable)
        total, squares = annotated_block(schedule, "local_response"), annotated_block(schedule, "squares")
        if total is None or squares is None:
            return None
        machine = machine_of(target)
        store, rest = inline_epilogue(schedule, total)
        if rest is not None:
            vectorize_and_divide(schedule, rest, machine)
        extents = loop_extents(schedule, store)
        chunks, width, block = extents[1], extents[-2], extents[-1]
        pixel = (chunks + 2) * block * tvm.DataType(schedule.get(squares).writes[0].source.dtype).itemsize
        pixels = max((part for part in divisors(width) if part * pixel <= machine.l2 // 4), default=1)
        batch, chunk, *rows, column, lane = schedule.get_loops(store)
        part, column = schedule.split(column, [None, pixels])
        schedule.reorder(batch, *rows, part, chunk, column, lane)
        task = schedule.fuse(batch, *rows, part)
        if machine.divides(OPERATIONS * prod(extents)):
            schedule.parallel(task)
        schedule.vectorize(lane)
        schedule.compute_at(total, column, preserve_unit_loops=True)
        schedule.set_scope(total, 0, "local")
        schedule.compute_at(squares, task, preserve_unit_loops=True)
        schedule.vectorize(schedule.get_loops(squares)[-1])
        *_, sum_lane, near = schedule.get_loops(total)
        schedule.reorder(near, sum_lane)
        schedule.unroll(near)
        schedule.vectorize(sum_lane)
        initial = schedule.decompose_reduction(total, near)
        schedule.vectorize(schedule.get_loops(initial)[-1])
        return schedule
