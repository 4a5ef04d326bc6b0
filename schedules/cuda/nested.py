"""Kernels whose elements are computed by loops and blocks of their own, as in RoiAlign: a thread an element.

The number of steps of such a loop may be known at run time alone, so that no other rule knows what to do with it.
"""

from __future__ import annotations

import tvm
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.schedules.cuda.machine import machine_of
from tvm_ext.schedules.cuda.window import THREADS
from tvm_ext.schedules.kernel.blocks import is_spatial, static_extents, top_blocks
from tvm_ext.schedules.knobs import choose
from tvm_ext.schedules.rule import new_schedule


class Nested:
    """Schedule a kernel whose outer blocks are data-parallel, whatever is in them."""

    name = "cuda.nested"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when each of its blocks has known extents, an axis at least, and reduces along none."""
        schedule = new_schedule(func, tunable)
        blocks = top_blocks(schedule)
        if not blocks or not all(_elements_apart(schedule, block) for block in blocks):
            return None
        multiprocessors = machine_of(target).multiprocessors
        try:
            for block in blocks:
                loops = schedule.get_loops(block)
                fused = schedule.fuse(*loops) if len(loops) > 1 else loops[0]
                total = int(schedule.get(fused).extent)
                threads = 256
                while threads > 32 and total < threads * multiprocessors:
                    threads //= 2
                grid, thread = schedule.split(fused, [None, choose(schedule, THREADS, threads)])
                schedule.bind(grid, "blockIdx.x")
                schedule.bind(thread, "threadIdx.x")
        except ScheduleError:
            return None
        return schedule


def _elements_apart(schedule: Schedule, block: SBlockRV) -> bool:
    loops = len(schedule.get_loops(block)) if schedule.get(block).iter_vars else 0
    return loops > 0 and is_spatial(schedule, block) and static_extents(schedule, block)
