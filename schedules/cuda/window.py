"""Pooling, depthwise and grouped convolutions, and any other reduction: a thread an element of the result.

Neighbouring threads have neighbouring elements, so that what a window reads again comes from the L1 cache; padding is a
condition on the load, and what was fused behind is computed on the sum in its register.
"""

from __future__ import annotations

from math import prod

import tvm
from tvm.ir.prim import expr as prim
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import IntImm, IterVar, PrimFunc

from tvm_ext.schedules.cuda.blocks import extent
from tvm_ext.schedules.cuda.elementwise import bind_flat
from tvm_ext.schedules.cuda.machine import GpuMachine, machine_of
from tvm_ext.schedules.cuda.open_extents import OPEN_ROWS, estimated
from tvm_ext.schedules.cuda.product import inline_behind
from tvm_ext.schedules.cuda.row_reduction import MOST_SERIAL
from tvm_ext.schedules.kernel.blocks import is_spatial, static_extents, top_blocks
from tvm_ext.schedules.kernel.inline import inline_producers
from tvm_ext.schedules.kernel.operations import expensive_operations, is_simple
from tvm_ext.schedules.knobs import choose
from tvm_ext.schedules.rule import new_schedule

LARGEST_UNROLLED = 64
"""Elements of a window up to which its loops are unrolled: addresses become offsets that the compiler knows."""


LARGEST_OF_OPEN = 256
"""Elements of a window in a kernel of open extents; TVM's own rules share larger ones among threads, of which they give
each result a block."""


RESULTS_EACH = 16
"""Results for each element of a larger window from which on there are threads enough without that."""


MANY = 1 << 30
"""What an open number of elements counts as: enough for every multiprocessor."""


THREADS = (32, 64, 128, 256, 512)
"""Threads of a block, of which a tuner may choose."""


class Window:
    """Schedule any kernel that reduces, each reduction with what is computed from it as one kernel.

    Where extents are open it is one that slides a small window, as poolings and depthwise convolutions do, or that
    reduces a few elements to each result.
    """

    name = "cuda.window"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when every block computes single elements."""
        schedule = new_schedule(func, tunable)
        blocks = top_blocks(schedule)
        if not blocks or not all(is_simple(schedule, block) for block in blocks):
            return None
        reductions = [block for block in blocks if not is_spatial(schedule, block)]
        if not reductions:
            return None
        is_open = not all(static_extents(schedule, block) for block in blocks)
        if is_open and (tunable or not all(_is_small(schedule, block) for block in reductions)):
            return None
        machine = machine_of(target)
        try:
            _inline_padding(schedule)
            done: set[str] = set()
            while waiting := [block for block in top_blocks(schedule) if _name(schedule, block) not in done]:
                done |= _schedule_next(schedule, waiting[0], machine)
        except ScheduleError:
            return None
        return schedule


def _inline_padding(schedule: Schedule) -> None:
    """Inline producers; those under a condition as well, which a GPU computes again for less than it would store."""
    inline_producers(schedule)
    outputs = {_name(schedule, block) for block in schedule.get_output_blocks("root")}
    for block in top_blocks(schedule):
        if not is_spatial(schedule, block) or _name(schedule, block) in outputs:
            continue
        reads_sums = any(not is_spatial(schedule, producer) for producer in schedule.get_producers(block))
        if not reads_sums and not expensive_operations(schedule, block):
            try:
                schedule.compute_inline(block)
            except ScheduleError:
                continue


def _schedule_next(schedule: Schedule, block: SBlockRV, machine: GpuMachine) -> set[str]:
    """Make the next block of a kernel a grid of threads; gives the names of the blocks that are so done."""
    if is_spatial(schedule, block):
        bind_flat(schedule, block, machine)
        return {_name(schedule, block)}
    if len(schedule.get(block).writes) > 1:
        _bind(schedule, block, machine)
        return {_name(schedule, block)}
    store = schedule.cache_write(block, 0, "local")
    inline_behind(schedule, store)
    thread = _bind(schedule, store, machine)
    schedule.compute_at(block, thread, preserve_unit_loops=False)
    if _window(schedule, block) <= LARGEST_UNROLLED:
        for loop in schedule.get_loops(block)[2:]:
            schedule.unroll(loop)
    return {_name(schedule, block), _name(schedule, store)}


def _bind(schedule: Schedule, block: SBlockRV, machine: GpuMachine) -> LoopRV:
    """Spread the elements of a block over threads, as small blocks as it takes to reach every multiprocessor."""
    reduces = [int(axis.iter_type) == IterVar.CommReduce for axis in schedule.get(block).iter_vars]
    loops = [loop for loop, summed in zip(schedule.get_loops(block), reduces, strict=True) if not summed]
    if not loops:
        loops = [schedule.add_unit_loop(schedule.get_loops(block)[0] if schedule.get_loops(block) else block)]
    fused = schedule.fuse(*loops) if len(loops) > 1 else loops[0]
    total = extent(schedule, fused) if static_extents(schedule, block) else MANY
    threads = 256
    while threads > 32 and total < threads * machine.multiprocessors * 2:
        threads //= 2
    grid, thread = schedule.split(fused, [None, choose(schedule, THREADS, threads)])
    schedule.bind(grid, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    return thread


def _is_small(schedule: Schedule, block: SBlockRV) -> bool:
    """Whether a reduction of open extents is one for a thread a result.

    It goes over a few elements, over a window of known extents that lies where the result does, or over some for each
    of very many results.
    """
    body = schedule.get(block)
    reduced = [axis for axis in body.iter_vars if int(axis.iter_type) == IterVar.CommReduce]
    if not all(isinstance(axis.dom.extent, IntImm) for axis in reduced):
        return False
    size = _window(schedule, block)
    if size <= MOST_SERIAL:
        return True
    results = prod(estimated(axis.dom.extent) for axis in body.iter_vars) // size
    if size > LARGEST_OF_OPEN and results < RESULTS_EACH * size:
        return False
    if any(isinstance(item.min, prim.Add) for region in body.reads for item in region.region):
        return True
    results = prod(estimated(axis.dom.extent, OPEN_ROWS) for axis in body.iter_vars) // size
    return size <= LARGEST_OF_OPEN and results >= RESULTS_EACH * size


def _window(schedule: Schedule, block: SBlockRV) -> int:
    axes = schedule.get(block).iter_vars
    return prod(int(axis.dom.extent) for axis in axes if int(axis.iter_type) == IterVar.CommReduce)


def _name(schedule: Schedule, block: SBlockRV) -> str:
    return str(schedule.get(block).name_hint)
