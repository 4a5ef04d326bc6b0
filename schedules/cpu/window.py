"""Operators that slide a window over each channel alone: depthwise convolution, pooling, global average."""

from __future__ import annotations

from math import prod

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.schedules.cpu.elementwise import vectorize_and_divide
from tvm_ext.schedules.cpu.machine import WINDOW_SHARE, Machine, machine_of
from tvm_ext.schedules.cpu.prologue import inline_prologue
from tvm_ext.schedules.kernel.blocks import annotated_block, inline_epilogue, loop_extents, static_extents
from tvm_ext.schedules.knobs import divide
from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.simd.loops import mark_simd

# Strip widths in order of preference: enough accumulators to hide latency, few enough to leave room for the window.
STRIP_WIDTHS = (8, 7, 6, 9, 10, 5, 11, 12, 13, 14, 4, 3, 2, 1)


def strip_width(width: int, registers: int) -> int:
    """Choose how many output columns are accumulated at once: least waste first, then the order of preference."""
    allowed = [columns for columns in STRIP_WIDTHS if columns <= min(width, registers // 2)]
    return min(allowed, key=lambda columns: -(-width // columns) * columns + 0.05 * width * (columns < 4))


def computed_strip_width(width: int, registers: int) -> int:
    """Round an output width up to whole strips."""
    columns = strip_width(width, registers)
    return -(-width // columns) * columns


class SlidingWindow:
    """Schedule a depthwise convolution or a pooling with its epilogue.

    A task is a channel block and a band of rows. A strip of columns is accumulated over the window in registers;
    padding is a condition on row and column, which is the same for all lanes and which LLVM lifts out of the strip.
    Where something is fused in front, a task computes it into a padded copy first.
    """

    name = "cpu.sliding_window"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it holds one of these operators."""
        schedule = new_schedule(func, tunable)
        for kernel in ("depthwise_conv", "pool"):
            window = annotated_block(schedule, kernel)
            if window is not None:
                break
        else:
            return None
        machine = machine_of(target)
        extents = loop_extents(schedule, window)
        rank = (len(extents) - 3) // 2
        *planes, rows, width, _ = extents[: rank + 3]
        store, rest = inline_epilogue(schedule, window)
        if rest is not None:
            vectorize_and_divide(schedule, rest, machine)
        pad, is_computed = inline_prologue(schedule, window, annotated_block(schedule, "pad"))
        if pad is not None and not is_computed:
            schedule.compute_inline(pad)
        *outer, h, w, lanes = schedule.get_loops(store)
        bands = row_bands(prod(planes), rows, machine.cores)
        if is_computed:
            bands = _cached_bands(bands, rows, _plane_bytes(schedule, window), machine)
        band, _ = divide(schedule, h, [bands, None])
        task = schedule.fuse(*outer, band)
        if machine.divides(2 * prod(extents) / WINDOW_SHARE):
            schedule.parallel(task)
        strip, column = divide(schedule, w, [None, divisor_strip(width, machine.vector_registers)], 28)
        schedule.vectorize(lanes)
        schedule.unroll(column)
        _accumulate(schedule, window, strip, rank)
        if pad is not None and is_computed:
            schedule.compute_at(pad, task, preserve_unit_loops=True)
            mark_simd(schedule, schedule.get_loops(pad)[-1], machine.lanes("float32"))
        return schedule


def _accumulate(schedule: Schedule, window: SBlockRV, strip: LoopRV, rank: int) -> None:
    """Compute the window for one strip in registers."""
    schedule.compute_at(window, strip, preserve_unit_loops=True)
    schedule.set_scope(window, 0, "local")
    loops = schedule.get_loops(window)[-(3 + 2 * rank) :]
    *outer, column, lanes = loops[: 3 + rank]
    taps = loops[3 + rank :]
    schedule.reorder(*outer, *taps, column, lanes)
    schedule.vectorize(lanes)
    schedule.unroll(column)
    if int(schedule.get(taps[-1]).extent) <= 7:
        schedule.unroll(taps[-1])
    initial = schedule.decompose_reduction(window, taps[0])
    *_, column_init, lanes_init = schedule.get_loops(initial)
    schedule.unroll(column_init)
    schedule.vectorize(lanes_init)


def row_bands(tasks: int, rows: int, cores: int) -> int:
    """Into how many bands of rows a channel block is cut, so that the cores get even shares."""
    for bands in range(1, min(rows, 2 * cores) + 1):
        if rows % bands == 0 and (tasks * bands % cores == 0 or tasks * bands >= 8 * cores):
            return bands
    return 1


def _cached_bands(bands: int, rows: int, plane_bytes: int, machine: Machine) -> int:
    """Cut a channel block into so many more bands that the copy of the input of one stays in half of the L2 cache."""
    fitting = (count for count in range(bands, rows + 1) if rows % count == 0 and count % bands == 0)
    return next((count for count in fitting if plane_bytes <= count * machine.l2 // 2), rows)


def _plane_bytes(schedule: Schedule, window: SBlockRV) -> int:
    """Bytes of one block of channels of one image, as a window reads it."""
    source = schedule.get(window).reads[0].source
    return prod(int(extent) for extent in source.shape[2:]) * (tvm.DataType(source.dtype).bits // 8)


def divisor_strip(width: int, registers: int) -> int:
    """Choose the strip of a width that is known to be a multiple of a good one."""
    return next(columns for columns in STRIP_WIDTHS if width % columns == 0 and columns <= max(1, registers // 2))


class GlobalAverage:
    """Schedule the average over all rows and columns: one pass, four running sums for each channel block."""

    name = "cpu.global_average"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it holds a global average."""
        schedule = new_schedule(func, tunable)
        total = annotated_block(schedule, "global_average")
        if total is None or not static_extents(schedule, total):
            return None
        machine = machine_of(target)
        store, rest = inline_epilogue(schedule, total)
        if rest is not None:
            vectorize_and_divide(schedule, rest, machine)
        schedule_average(schedule, total, store, machine)
        return schedule


def schedule_average(schedule: Schedule, total: SBlockRV, store: SBlockRV, machine: Machine) -> None:
    """Sum over rows and columns, in a few running sums for each channel block; ``store`` stores the averages."""
    extents = loop_extents(schedule, total)
    width = extents[-1]
    n, c, *_, lanes = schedule.get_loops(store)
    task = schedule.fuse(n, c)
    if machine.divides(prod(extents)):
        schedule.parallel(task)
    schedule.vectorize(lanes)
    # Several sums hide the latency of an addition; rows are long enough to share out among them.
    *_, w = schedule.get_loops(total)
    sums = next(count for count in (4, 7, 5, 6, 3, 2, 1) if width % count == 0)
    partial = None
    if sums > 1:
        _, inner = divide(schedule, w, [None, sums], 8)
        partial = schedule.rfactor(inner, 0)
    schedule.compute_at(total, task, preserve_unit_loops=True)
    schedule.set_scope(total, 0, "local")
    _vectorize_sum(schedule, total)
    if partial is not None:
        schedule.compute_at(partial, task, preserve_unit_loops=True)
        schedule.set_scope(partial, 0, "local")
        _vectorize_sum(schedule, partial, unrolled=0)


def _vectorize_sum(schedule: Schedule, block: SBlockRV, unrolled: int | None = None) -> None:
    """Move the channel lanes of a sum innermost and vectorise them; ``unrolled``: the axis of separate sums, if any."""
    loops = list(schedule.get_loops(block))
    kinds = [int(iter_var.iter_type) for iter_var in schedule.get(block).iter_vars]
    loops = loops[-len(kinds) :]
    reduced = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == 2]
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind != 2]
    lanes = spatial[-1]
    schedule.reorder(*reduced, *([spatial[unrolled]] if unrolled is not None else []), lanes)
    schedule.vectorize(lanes)
    if unrolled is not None:
        schedule.unroll(spatial[unrolled])
    initial = schedule.decompose_reduction(block, reduced[0])
    schedule.vectorize(schedule.get_loops(initial)[-1])
