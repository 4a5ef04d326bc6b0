"""Normalisations of a blocked tensor: a task takes whole groups of channels, and reads them again from its cache.

```
for groups in whole blocks of channels (parallel):
    sums, means;  squares of what pixels differ by from them, deviations;  normalise and store
```

Where there are too few of these for the cores, or one is more than a cache holds, each pass over the pixels is divided
among the cores by itself.
"""

from __future__ import annotations

from math import prod

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.schedules.compute.blocked_norm import NORM, NORM_GROUPS, NORM_LANES, NORM_SUMS
from tvm_ext.schedules.cpu.elementwise import vectorize_and_divide
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.cpu.tasks import EVEN_SHARES
from tvm_ext.schedules.kernel.blocks import annotated_block, inline_epilogue, loop_extents
from tvm_ext.schedules.rule import new_schedule

OPERATIONS = 8
"""Operations for each element, about: three passes of two and the loads."""

WIDTH = 4
"""Bytes of an element."""


class BlockedNorm:
    """Schedule a group or an instance normalisation of a blocked tensor with its epilogue."""

    name = "cpu.blocked_norm"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it holds one; nothing of it is tuned."""
        schedule = new_schedule(func, tunable)
        norm = annotated_block(schedule, NORM)
        if norm is None:
            return None
        machine = machine_of(target)
        first, second = (_block(schedule, name) for name in NORM_SUMS)
        steps = [_block(schedule, name) for pair in zip(NORM_GROUPS, NORM_LANES, strict=True) for name in pair]
        store, rest = inline_epilogue(schedule, norm)
        if rest is not None:
            vectorize_and_divide(schedule, rest, machine)
        schedule.compute_inline(norm)
        batch, units, unit, *_ = loop_extents(schedule, first)
        tasks = batch * units
        extents = loop_extents(schedule, store)
        size = WIDTH * prod(extents) // tasks
        divides = machine.divides(OPERATIONS * prod(extents))
        is_even = tasks % machine.cores == 0 or tasks >= EVEN_SHARES * machine.cores
        sums = [_own_sums(schedule, block) for block in (first, second)]
        n, chunk, *pixels, lane = schedule.get_loops(store)
        if not divides or (is_even and size <= machine.l2):
            part, chunk = schedule.split(chunk, [units, unit])
            task = schedule.fuse(n, part)
            if divides:
                schedule.parallel(task)
            for block in (*steps[:1:-1], *sums[1], *steps[1::-1], *sums[0]):
                schedule.compute_at(block, task, preserve_unit_loops=True)
        else:
            schedule.parallel(schedule.fuse(n, chunk, *pixels[:-1]))
            for copy, _ in sums:
                schedule.parallel(schedule.fuse(*schedule.get_loops(copy)[:3]))
        schedule.vectorize(lane)
        for copy, total in sums:
            _sum(schedule, copy, total)
        return schedule


def _block(schedule: Schedule, name: str) -> SBlockRV:
    block = annotated_block(schedule, name)
    assert block is not None
    return block


def _own_sums(schedule: Schedule, block: SBlockRV) -> tuple[SBlockRV, SBlockRV]:
    """Take the sums of a block of channels in a buffer of their own; gives the block that copies them, and theirs."""
    copy = schedule.cache_write(block, 0, "global")
    schedule.set_scope(block, 0, "local")
    return copy, block


def _sum(schedule: Schedule, copy: SBlockRV, total: SBlockRV) -> None:
    """Take sums in registers: a vector for each of those side by side."""
    *outer, part, lane = schedule.get_loops(copy)
    schedule.compute_at(total, outer[-1], preserve_unit_loops=True)
    schedule.unroll(part)
    schedule.vectorize(lane)
    reduced = sum(int(axis.iter_type) == tvm.tirx.IterVar.CommReduce for axis in schedule.get(total).iter_vars)
    part, lane, *over = list(schedule.get_loops(total))[-2 - reduced :]
    schedule.reorder(*over, part, lane)
    schedule.unroll(part)
    schedule.vectorize(lane)
    initial = schedule.decompose_reduction(total, over[0])
    *_, part, lane = schedule.get_loops(initial)
    schedule.unroll(part)
    schedule.vectorize(lane)
