"""Small helpers over schedules that several rules use: finding blocks, reading extents, inlining an epilogue."""

from __future__ import annotations

from math import prod

from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import IntImm, IterVar

from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE


def top_blocks(schedule: Schedule) -> list[SBlockRV]:
    """Blocks of the kernel in program order; none when the kernel is not made of blocks."""
    try:
        return list(schedule.get_child_blocks(schedule.get_sblock("root")))
    except ScheduleError:
        return []


def annotated_block(schedule: Schedule, kernel: str) -> SBlockRV | None:
    """Find the block that is annotated as computing ``kernel``."""
    for block in top_blocks(schedule):
        if schedule.get(block).annotations.get(KERNEL_ATTRIBUTE) == kernel:
            return block
    return None


def loop_extents(schedule: Schedule, block: SBlockRV) -> list[int]:
    """Extents of the loops around a block, outermost first."""
    return [int(schedule.get(loop).extent) for loop in schedule.get_loops(block)]


def inline_epilogue(schedule: Schedule, compute: SBlockRV) -> tuple[SBlockRV, SBlockRV | None]:
    """Inline what follows ``compute`` into the block that stores its result.

    Without an epilogue the result itself is split off: computed in a buffer of its own, then stored. Where the result
    is broadcast, as the weight of a channel is over an image, it would be computed again for every element: what has
    more elements than the result becomes a second block.

    Returns
    -------
    store : SBlockRV
        The block that stores.
    rest : SBlockRV or None
        The block after it, over more elements; still to be scheduled.
    """
    blocks = top_blocks(schedule)
    names = [schedule.get(block).name_hint for block in blocks]
    after = blocks[names.index(schedule.get(compute).name_hint) + 1 :]
    size = result_elements(schedule, compute)
    # Of results whose number is open nothing is known to be more: what has known extents is made of constants.
    large = [block for block in after if 0 < size < result_elements(schedule, block)]
    small = [block for block in after if not 0 < size < result_elements(schedule, block)]
    for block in (*small[:-1], *large[:-1]):
        schedule.compute_inline(block)
    store = small[-1] if small else schedule.cache_write(compute, 0, "global")
    return store, large[-1] if large else None


def result_elements(schedule: Schedule, block: SBlockRV) -> int:
    """Count the elements of a block's results; 0 where that is not known."""
    axes = [axis for axis in schedule.get(block).iter_vars if int(axis.iter_type) == IterVar.DataPar]
    extents = [axis.dom.extent for axis in axes]
    return prod(int(extent) for extent in extents) if all(isinstance(extent, IntImm) for extent in extents) else 0


def is_spatial(schedule: Schedule, block: SBlockRV) -> bool:
    """Whether every axis of a block is data-parallel."""
    return all(int(iter_var.iter_type) == IterVar.DataPar for iter_var in schedule.get(block).iter_vars)


def static_extents(schedule: Schedule, block: SBlockRV) -> bool:
    """Whether all loops around a block have extents that are known now."""
    return all(isinstance(schedule.get(loop).extent, IntImm) for loop in schedule.get_loops(block))
