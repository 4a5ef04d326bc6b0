"""Squeeze and excitation as one kernel: averages of channels, small products of them, and the channels so weighted.

before: ``m = mean(x);  h = act(w1 m);  y = x * gate(w2 h)``, three kernels
after:  one kernel, in which the averages and what is made of them stay in the cache of a core
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE
from tvm_ext.schedules.cpu.elementwise import vectorize_and_divide
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.window import schedule_average
from tvm_ext.schedules.divisors import divisors
from tvm_ext.schedules.kernel.blocks import (
    annotated_block,
    is_spatial,
    loop_extents,
    result_elements,
    static_extents,
    top_blocks,
)
from tvm_ext.schedules.rule import is_prepared, new_schedule, prepared_for, prepared_schedule

PRODUCTS = ("conv", "conv_pixels")
"""What the blocks of products with the averages are annotated as: they are convolutions of one pixel."""

MOST_VECTORS = 8
"""Vectors of results that are summed side by side: as many streams of weights as hardware prefetchers follow."""


class Excitation:
    """Schedule an average over rows and columns, products of the averages, and what follows them.

    Channels are averaged by all threads; products are divided among them only where they are large.
    """

    name = "cpu.excitation"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it holds an average and products of it; nothing of it is tuned."""
        schedule = None if tunable else prepared_schedule(self, func, target)
        if schedule is None:
            return None
        machine = machine_of(target)
        stages = _stages(schedule)
        assert stages is not None
        for stage in stages:
            store = _inlined(schedule, stage)
            if stage is stages[0]:
                schedule_average(schedule, stage.anchor, store, machine)
            else:
                _multiply(schedule, stage.anchor, store, machine)
            if stage.large:
                for block in stage.large[:-1]:
                    schedule.compute_inline(block)
                vectorize_and_divide(schedule, stage.large[-1], machine)
        return schedule

    def prepare(self, func: PrimFunc, _target: tvm.target.Target) -> PrimFunc | None:
        """Note that this rule takes ``func``, which it does as it is."""
        if is_prepared(func, self.name):
            return func
        return prepared_for(func, self.name) if _stages(new_schedule(func)) is not None else None


@dataclass(frozen=True)
class _Stage:
    """A sum, what is computed of its results element by element, and what these are spread over."""

    anchor: SBlockRV
    small: tuple[SBlockRV, ...]
    large: tuple[SBlockRV, ...]


def _stages(schedule: Schedule) -> list[_Stage] | None:
    """Divide a kernel into an average and products of one pixel, in that order; None where it is anything else."""
    if annotated_block(schedule, "global_average") is None:
        return None
    blocks = top_blocks(schedule)
    if not all(static_extents(schedule, block) for block in blocks):
        return None
    found: list[tuple[SBlockRV, list[SBlockRV]]] = []
    for block in blocks:
        kind = schedule.get(block).annotations.get(KERNEL_ATTRIBUTE)
        if not is_spatial(schedule, block):
            wanted = PRODUCTS if found else ("global_average",)
            if kind not in wanted or (found and not is_of_one_pixel(schedule, block)):
                return None
            found.append((block, []))
        elif not found:
            return None
        else:
            found[-1][1].append(block)
    if len(found) < 2:
        return None
    stages = []
    for anchor, behind in found:
        size = result_elements(schedule, anchor)
        small = tuple(block for block in behind if result_elements(schedule, block) <= size)
        large = tuple(block for block in behind if result_elements(schedule, block) > size)
        if large and (anchor is not found[-1][0] or large != tuple(behind[len(small) :])):
            return None
        stages.append(_Stage(anchor, small, large))
    return stages


def is_of_one_pixel(schedule: Schedule, product: SBlockRV) -> bool:
    """Whether a convolution is over the channels of one pixel alone."""
    extents = loop_extents(schedule, product)
    spatial = len(extents) - len(extents) // 2
    _, _, *pixels, _ = extents[:spatial]
    _, *taps, _ = extents[spatial:]
    return len(extents) >= 7 and prod(pixels) == 1 and prod(taps) == 1


def _inlined(schedule: Schedule, stage: _Stage) -> SBlockRV:
    """Inline what follows a sum into the block that stores it; without any, the sum is stored apart."""
    if not stage.small:
        return schedule.cache_write(stage.anchor, 0, "global")
    for block in stage.small[:-1]:
        schedule.compute_inline(block)
    return stage.small[-1]


def _multiply(schedule: Schedule, product: SBlockRV, store: SBlockRV, machine: Machine) -> None:
    """Sum some vectors of results at a time, in registers."""
    extents = loop_extents(schedule, product)
    flops = 2 * prod(extents)
    image, chunk, *pixels, lane = schedule.get_loops(store)
    count = int(schedule.get(chunk).extent)
    vectors = max(size for size in divisors(count) if size <= MOST_VECTORS)
    group, vector = schedule.split(chunk, [None, vectors])
    schedule.reorder(image, group, *pixels, vector, lane)
    task = schedule.fuse(image, group, *pixels)
    if machine.divides(flops):
        schedule.parallel(task)
    schedule.unroll(vector)
    schedule.vectorize(lane)
    schedule.compute_at(product, task, preserve_unit_loops=True)
    schedule.set_scope(product, 0, "local")
    loops = schedule.get_loops(product)[1:]
    spatial = len(extents) - len(extents) // 2
    sums, (_, vector, *_, lane) = loops[spatial:], loops[:spatial]
    schedule.reorder(*sums, vector, lane)
    schedule.unroll(vector)
    schedule.vectorize(lane)
    initial = schedule.decompose_reduction(product, sums[0])
    *loops, lane = schedule.get_loops(initial)
    schedule.vectorize(lane)
    for loop in loops[1:]:
        schedule.unroll(loop)
