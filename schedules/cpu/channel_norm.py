"""Normalisation of a blocked tensor over channels: a few pixels at a time, whose channels stay in the L1 cache.

```
for a few neighbouring pixels (parallel):
    sums of their blocks, means;  squares of what is left without these, scales;  normalise and store
```
"""

from __future__ import annotations

from math import prod

import tvm
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvm_ext.schedules.compute.channel_norm import CHANNEL_NORM, CHANNEL_SUMS, CHANNEL_TOTALS
from tvm_ext.schedules.cpu.blocked_norm import OPERATIONS
from tvm_ext.schedules.cpu.elementwise import vectorize_and_divide
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.divisors import divisors
from tvm_ext.schedules.kernel.blocks import annotated_block, inline_epilogue, loop_extents
from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.simd.loops import mark_simd

MOST_PIXELS = 8
"""Pixels that are summed side by side, at most, each in a vector: an addition waits for the one before it."""


class ChannelNorm:
    """Schedule a normalisation of a blocked tensor over its channels with its epilogue."""

    name = "cpu.channel_norm"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it holds one; nothing of it is tuned."""
        schedule = new_schedule(func, tunable)
        norm = annotated_block(schedule, CHANNEL_NORM)
        if norm is None:
            return None
        machine = machine_of(target)
        sums, squares = (annotated_block(schedule, name) for name in CHANNEL_SUMS)
        means, scales = (annotated_block(schedule, name) for name in CHANNEL_TOTALS)
        assert sums is not None
        assert squares is not None
        assert means is not None
        assert scales is not None
        store, rest = inline_epilogue(schedule, norm)
        if rest is not None:
            vectorize_and_divide(schedule, rest, machine)
        schedule.compute_inline(norm)
        extents = loop_extents(schedule, store)
        pixels = max(part for part in divisors(extents[-2]) if part <= MOST_PIXELS)
        batch, chunk, *rows, column, lane = schedule.get_loops(store)
        strip, column = schedule.split(column, [None, pixels])
        schedule.reorder(batch, *rows, strip, chunk, column, lane)
        task = schedule.fuse(batch, *rows, strip)
        for block in (scales, squares, means, sums):
            schedule.compute_at(block, task, preserve_unit_loops=True)
        if machine.divides(OPERATIONS * prod(extents)):
            schedule.parallel(task)
        schedule.vectorize(lane)
        for block in (sums, squares):
            schedule.set_scope(block, 0, "local")
            *_, column, lane, chunk = schedule.get_loops(block)
            schedule.reorder(chunk, column, lane)
            schedule.unroll(column)
            schedule.vectorize(lane)
            *_, column, lane = schedule.get_loops(schedule.decompose_reduction(block, chunk))
            schedule.unroll(column)
            schedule.vectorize(lane)
        for block in (means, scales):
            *_, column, lane = schedule.get_loops(block)
            schedule.decompose_reduction(block, lane)
            schedule.unroll(column)
            mark_simd(schedule, lane, extents[-1])
        return schedule
