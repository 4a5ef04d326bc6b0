"""Kernels whose elements are computed by loops and blocks of their own, as in RoiAlign: a thread an element.

The number of steps of such a loop may be known at run time alone, so that no other rule knows what to do with it.
"""

from __future__ import annotations

import tvm
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import IterVar, PrimFunc

from tvm_ext.schedules.cuda.machine import machine_of
from tvm_ext.schedules.cuda.window import THREADS
from tvm_ext.schedules.kernel.blocks import static_extents, top_blocks
from tvm_ext.schedules.knobs import choose
from tvm_ext.schedules.rule import new_schedule


class Nested:
    """Schedule a kernel by the elements of its outer blocks, whatever is in them."""

    name = "cuda.nested"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when each of its blocks has known extents, and an axis at least that it does not reduce."""
        schedule = new_schedule(func, tunable)
        blocks = top_blocks(schedule)
        if not blocks or not all(_elements_apart(schedule, block) for block in blocks):
            return None
        multiprocessors = machine_of(target).multiprocessors
        try:
            for block in blocks:
                loops = _parallel_loops(schedule, block)
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


def _parallel_loops(schedule: Schedule, block: SBlockRV) -> list[LoopRV]:
    """List the loops of a block along which it does not reduce, and put them in front of those along which it does."""
    kinds = [int(axis.iter_type) for axis in schedule.get(block).iter_vars]
    loops = schedule.get_loops(block)
    parallel = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == IterVar.DataPar]
    schedule.reorder(*parallel, *(loop for loop, kind in zip(loops, kinds, strict=True) if kind != IterVar.DataPar))
    return parallel


def _elements_apart(schedule: Schedule, block: SBlockRV) -> bool:
    kinds = [int(axis.iter_type) for axis in schedule.get(block).iter_vars]
    if len(kinds) != len(schedule.get_loops(block)) or not static_extents(schedule, block):
        return False
    return IterVar.DataPar in kinds and set(kinds) <= {IterVar.DataPar, IterVar.CommReduce}
