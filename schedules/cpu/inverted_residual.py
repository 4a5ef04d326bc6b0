"""Inverted residuals as one kernel: a task takes a band of rows, and the channels between the convolutions in parts.

```
for band (parallel):
    sums = 0
    for part of the channels:
        expand the rows that the band needs;  slide the window over them;  sums += project what came out
    store the sums
```

What is between the convolutions is as large as a part of a band, and stays in the L2 cache. Without a projection, parts
are tasks, too; without an expansion, the window reads the input where it lies, or what is computed of other tensors in
its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.schedules.annotations import PARTS_ATTRIBUTE
from tvm_ext.schedules.cpu.conv_tile import register_tile
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.weights import FETCHING_PASSES
from tvm_ext.schedules.cpu.window import divisor_strip
from tvm_ext.schedules.kernel.blocks import annotated_block, loop_extents
from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.simd.loops import mark_simd
from tvm_ext.schedules.simd.prefetch import mark_prefetch


class InvertedResidual:
    """Schedule what :func:`tvm_ext.schedules.compute.inverted_residual.inverted_residual` makes."""

    name = "cpu.inverted_residual"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it is an inverted residual; nothing of it is tuned."""
        if tunable:
            return None
        schedule = new_schedule(func)
        window = annotated_block(schedule, "residual_window")
        if window is None:
            return None
        machine = machine_of(target)
        expand, project = (annotated_block(schedule, f"residual_{name}") for name in ("expand", "project"))
        parts = int(schedule.get(window).annotations[PARTS_ATTRIBUTE])
        tasks = loop_extents(schedule, window)[0]
        (last,) = schedule.get_output_blocks("root")
        n, c, h, w, lane = schedule.get_loops(last)
        bands = tasks // int(schedule.get(n).extent)
        band, row = schedule.split(h, [bands, None])
        if project is None:
            part, chunk = schedule.split(c, [parts, None])
            schedule.reorder(n, band, part, chunk, row, w, lane)
            task = schedule.fuse(n, band, part)
            schedule.parallel(task)
            strip = _strips(schedule, w, lane, machine)
            inner = task
        else:
            schedule.reorder(n, band, c, row, w, lane)
            task = schedule.fuse(n, band)
            schedule.parallel(task)
            inner, strip = _project(schedule, project, task, (c, row, w, lane), parts, machine), None
        _slide(schedule, window, inner, strip, machine)
        if expand is not None:
            _expand(schedule, expand, inner, machine)
        prologue = annotated_block(schedule, "residual_prologue")
        if prologue is not None:
            schedule.compute_at(prologue, inner, preserve_unit_loops=True)
            schedule.vectorize(schedule.get_loops(prologue)[-1])
        return schedule


def _strips(schedule: Schedule, w: LoopRV, lane: LoopRV, machine: Machine) -> LoopRV:
    """Divide a row into the strips of a sliding window, and give the loop over them."""
    strip, column = schedule.split(w, [None, divisor_strip(int(schedule.get(w).extent), machine.vector_registers)])
    schedule.unroll(column)
    schedule.vectorize(lane)
    return strip


def _project(
    schedule: Schedule,
    project: SBlockRV,
    task: LoopRV,
    stored: tuple[LoopRV, LoopRV, LoopRV, LoopRV],
    parts: int,
    machine: Machine,
) -> LoopRV:
    """Project part by part; gives the loop over the parts, or the task where there is one part."""
    c, row, w, lane = stored
    _, chunks, _, width, _, in_chunks, block = loop_extents(schedule, project)
    columns, vectors = register_tile(width, chunks, machine, in_chunks // parts * block, exact=True)
    group, vector = schedule.split(c, [None, vectors])
    strip, column = schedule.split(w, [None, columns])
    schedule.reorder(group, row, strip, vector, column, lane)
    for loop in (vector, column):
        schedule.unroll(loop)
    mark_simd(schedule, lane, int(schedule.get(lane).extent))
    place, sums = task, project
    if parts > 1:
        *_, in_chunk, _ = schedule.get_loops(project)
        part, _ = schedule.split(in_chunk, [parts, None])
        sums = schedule.rfactor(part, 0)
        schedule.compute_at(project, task, preserve_unit_loops=True)
        loops = schedule.get_loops(project)[1:]
        kinds = [int(axis.iter_type) for axis in schedule.get(project).iter_vars]
        place = next(loop for loop, kind in zip(loops, kinds, strict=True) if kind == 2)
        t, c, row, w, lane = (loop for loop, kind in zip(loops, kinds, strict=True) if kind != 2)
        group, vector = schedule.split(c, [None, vectors])
        strip, column = schedule.split(w, [None, columns])
        schedule.reorder(t, place, group, row, strip, vector, column, lane)
        for loop in (vector, column):
            schedule.unroll(loop)
        mark_simd(schedule, lane, int(schedule.get(lane).extent))
        initial = schedule.decompose_reduction(project, place)
        mark_simd(schedule, schedule.get_loops(initial)[-1], int(schedule.get(lane).extent))
    _accumulate(schedule, sums, (row, strip), fetches=parts == 1)
    return place


def _accumulate(schedule: Schedule, sums: SBlockRV, passes: tuple[LoopRV, LoopRV], fetches: bool = True) -> None:
    """Compute the sums of a register tile over all input channels of a pointwise convolution.

    Tiles of the rows and strips of a band, the ``passes``, use the same weights; where these are few, the weights of
    the next tile are fetched meanwhile, if ``fetches``.
    """
    axes = len(schedule.get(sums).iter_vars)
    weights = str(schedule.get(sums).reads[-1].source.name)
    fetches &= prod(int(schedule.get(loop).extent) for loop in passes) <= FETCHING_PASSES
    schedule.compute_at(sums, passes[-1], preserve_unit_loops=True)
    schedule.set_scope(sums, 0, "local")
    loops = schedule.get_loops(sums)[-axes:]
    kinds = [int(axis.iter_type) for axis in schedule.get(sums).iter_vars]
    reduced = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == 2]
    *outer, vector, row, column, lane = (loop for loop, kind in zip(loops, kinds, strict=True) if kind != 2)
    schedule.reorder(*outer, row, *reduced, column, vector, lane)
    _write_out(schedule, (column, vector), lane)
    if fetches:
        mark_prefetch(schedule, passes, reduced[0], weights, 1)
    initial = schedule.decompose_reduction(sums, reduced[0])
    *_, column, vector, lane = schedule.get_loops(initial)
    _write_out(schedule, (column, vector), lane)


def _write_out(schedule: Schedule, loops: Sequence[LoopRV], lane: LoopRV) -> None:
    """Keep a register tile in registers."""
    for loop in loops:
        schedule.unroll(loop)
    schedule.vectorize(lane)


def _slide(schedule: Schedule, window: SBlockRV, place: LoopRV, strip: LoopRV | None, machine: Machine) -> None:
    """Compute what the window gives for the part: where it is projected, into a buffer of its own."""
    if strip is None:
        (tail,) = schedule.get_consumers(window)
        schedule.compute_at(tail, place, preserve_unit_loops=True)
        *_, w, lane = schedule.get_loops(tail)
        strip = _strips(schedule, w, lane, machine)
    schedule.compute_at(window, strip, preserve_unit_loops=True)
    schedule.set_scope(window, 0, "local")
    *outer, column, lane, kh, kw = schedule.get_loops(window)[-7:]
    schedule.reorder(*outer, kh, kw, column, lane)
    if int(schedule.get(kw).extent) <= 7:
        schedule.unroll(kw)
    _write_out(schedule, (column,), lane)
    initial = schedule.decompose_reduction(window, kh)
    *_, column, lane = schedule.get_loops(initial)
    _write_out(schedule, (column,), lane)


def _expand(schedule: Schedule, expand: SBlockRV, place: LoopRV, machine: Machine) -> None:
    """Compute the expansion of the part, and what follows it, into a buffer."""
    (tail,) = schedule.get_consumers(expand)
    schedule.compute_at(tail, place, preserve_unit_loops=True)
    *_, c, row, w, lane = schedule.get_loops(tail)
    *_, in_chunks, block = loop_extents(schedule, expand)
    chunks, width = int(schedule.get(c).extent), int(schedule.get(w).extent)
    columns, vectors = register_tile(width, chunks, machine, in_chunks * block, exact=True)
    group, vector = schedule.split(c, [None, vectors])
    strip, column = schedule.split(w, [None, columns])
    schedule.reorder(group, row, strip, vector, column, lane)
    for loop in (vector, column):
        schedule.unroll(loop)
    mark_simd(schedule, lane, int(schedule.get(lane).extent))
    _accumulate(schedule, expand, (row, strip))
