"""Depthwise convolutions, poolings and averages in blocked layout of extents that are only known at run time.

Windows that lie inside the image are computed for several columns at a time; those that reach beyond it one by one,
over the taps that are inside. Nothing is padded.
"""

# mypy: ignore-errors
# (what the script builder gives has no types)
from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from tvm_ext.schedules.compute.open_convolution import OPEN_DEPTHWISE, OPEN_MAX, OPEN_SUM, OPEN_TOTAL, least
from tvm_ext.schedules.cpu.open_tiles import ZERO, OpenWindows, digits, kept, product, registers, tiles, whole
from tvm_ext.schedules.kernel.blocks import annotated_block, inline_epilogue, top_blocks
from tvm_ext.schedules.open_versions import written
from tvm_ext.schedules.rule import new_schedule

WIDTHS = (8, 4)
"""Columns of a tile, and of those that take what is left over."""

TASK_ROWS = 8
"""Rows of a task."""

SUMS = 4
"""Sums that are added to in turns, so that none has to wait for the one before."""

UNROLLED_TAPS = 3
"""Taps along a row up to which their loop is written out."""


class OpenWindow:
    """Write out a depthwise convolution or a pooling of open extents."""

    name = "cpu.open_window"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Give the kernel when ``func`` is one of these, and what is computed of its elements.

        There is nothing to tune.
        """
        if tunable:
            return None
        schedule = new_schedule(func, tunable)
        for kind in (OPEN_DEPTHWISE, OPEN_MAX, OPEN_SUM, OPEN_TOTAL):
            window = annotated_block(schedule, kind)
            if window is not None:
                break
        else:
            return None
        try:
            store, _ = inline_epilogue(schedule, window)
        except ScheduleError:
            return None
        if len(top_blocks(schedule)) != 2:
            return None
        windows = OpenWindows(schedule, window, store)
        if not windows.fits():
            return None
        write = (lambda: _write_total(windows)) if kind == OPEN_TOTAL else _Kernel(windows).write
        return new_schedule(written(schedule.mod["main"], write))


def _write_total(windows: OpenWindows) -> None:
    """Emit the sum of all pixels: a task is a block of channels, which several sums are made of in turns."""
    batch, chunks, *_ = windows.result.shape
    *outer, width = list(windows.data.shape)[2:-1]
    rows = product(outer)
    total = product([batch, chunks])
    with T.parallel(ZERO, total) as task, T.sblock("total"):
        number = T.axis.spatial(total, task)
        sums = registers(SUMS, windows.lanes, dtype=windows.dtype)
        plane = kept(digits(number, [batch, chunks]))

        def add(place: list[Any], column: Any, count: int) -> None:
            with T.unroll(ZERO, whole(count)) as j, T.vectorized(ZERO, whole(windows.lanes)) as x:
                T.buffer_store(sums, sums[j, x] + windows.data[*plane, *place, column + j, x], [j, x])

        with T.unroll(ZERO, whole(SUMS)) as j, T.vectorized(ZERO, whole(windows.lanes)) as x:
            T.buffer_store(sums, tirx.const(0, windows.dtype), [j, x])
        with T.serial(ZERO, rows) as row:
            place = digits(row, outer)
            with T.serial(ZERO, width // SUMS) as step:
                add(place, step * SUMS, SUMS)
            with T.serial(ZERO, width % SUMS) as rest:
                add(place, width - 1 - rest, 1)
        with T.vectorized(ZERO, whole(windows.lanes)) as x:
            found = sums[0, x]
            for j in range(1, SUMS):
                found = found + sums[j, x]
            windows.store(found, [*plane, *[ZERO] * windows.rank, x])


class _Kernel:
    """Writes one kernel."""

    def __init__(self, windows: OpenWindows) -> None:
        self.windows = windows
        self.kernel = windows.further
        is_max = windows.kind == OPEN_MAX
        self.neutral = least(windows.dtype) if is_max else tirx.const(0, windows.dtype)

    def write(self) -> None:
        """Emit the kernel: a task is some rows of a block of channels."""
        windows = self.windows
        batch, chunks, *spatial, _ = windows.result.shape
        rows, width = product(spatial[:-1]), spatial[-1]
        outer = [batch, chunks, (rows + (TASK_ROWS - 1)) // TASK_ROWS]
        total = product(outer)
        begin, end = self._inside(width)
        with T.parallel(ZERO, total) as task, T.sblock("window"):
            number = T.axis.spatial(total, task)
            sums = registers(WIDTHS[0], windows.lanes, dtype=windows.dtype)
            n, chunk, rows_before = kept(digits(number, outer))
            first = rows_before * TASK_ROWS
            with T.serial(ZERO, tirx.min(rows - first, whole(TASK_ROWS))) as row:
                place = kept(digits(first + row, spatial[:-1]))
                ranges = [tuple(kept(self._taps(axis, at))) for axis, at in enumerate(place)]

                def tile(column: Any, count: int, place: Any = place, ranges: Any = ranges) -> None:
                    self._tile(sums, [n, chunk], [*place, column], [*ranges, None], count)

                tiles(begin, end - begin, WIDTHS, tile)
                covered = (end - begin) // WIDTHS[-1] * WIDTHS[-1]
                with T.serial(ZERO, width - covered) as single:
                    column = single + tirx.Select(single < begin, ZERO, covered)
                    taps = self._taps(windows.rank - 1, column)
                    self._tile(sums, [n, chunk], [*place, column], [*ranges, taps], 1)

    def _inside(self, width: Any) -> tuple[Any, Any]:
        """Say from which to which column (excluded) all taps are inside of the image."""
        windows, axis = self.windows, self.windows.rank - 1
        stride, before = windows.strides[axis], windows.before[axis]
        reach = (self.kernel[axis] - 1) * windows.dilation[axis]
        begin = tirx.min(whole(-(-before // stride)), width)
        last = tirx.floordiv(windows.data.shape[-2] - 1 - reach + before, stride)
        return begin, tirx.max(begin, tirx.min(last + 1, width))

    def _taps(self, axis: int, output: Any) -> tuple[Any, Any]:
        """Say from which to which tap (excluded) an output's window is inside of the image along an axis."""
        windows = self.windows
        step, count = windows.dilation[axis], self.kernel[axis]
        start = output * windows.strides[axis] - windows.before[axis]
        low = tirx.max(tirx.floordiv(step - 1 - start, step), ZERO) if windows.before[axis] else ZERO
        extent = windows.data.shape[2 + axis]
        high = tirx.min(tirx.floordiv(extent - start + (step - 1), step), whole(count))
        return low, tirx.max(high, low)

    def _tile(self, sums: Any, plane: list[Any], place: list[Any], ranges: list[Any], count: int) -> None:
        windows = self.windows
        with T.unroll(ZERO, whole(count)) as j, T.vectorized(ZERO, whole(windows.lanes)) as x:
            T.buffer_store(sums, self.neutral, [j, x])
        self._reduce(sums, plane, place, ranges, count, [])
        with T.unroll(ZERO, whole(count)) as j, T.vectorized(ZERO, whole(windows.lanes)) as x:
            windows.store(sums[j, x], [*plane, *place[:-1], place[-1] + j, x])

    def _reduce(
        self, sums: Any, plane: list[Any], place: list[Any], ranges: list[Any], count: int, taps: list[Any]
    ) -> None:
        windows, axis = self.windows, len(taps)
        if axis < windows.rank:
            if ranges[axis] is None:
                extent = self.kernel[axis]
                loop = T.unroll if extent <= UNROLLED_TAPS else T.serial
                with loop(ZERO, whole(extent)) as tap:
                    self._reduce(sums, plane, place, ranges, count, [*taps, tap])
            else:
                low, high = ranges[axis]
                with T.serial(ZERO, high - low) as step:
                    self._reduce(sums, plane, place, ranges, count, [*taps, low + step])
            return
        with T.unroll(ZERO, whole(count)) as j, T.vectorized(ZERO, whole(windows.lanes)) as x:
            outputs = [*place[:-1], place[-1] + j]
            read = [
                output * stride + tap * step - before
                for output, tap, stride, step, before in zip(
                    outputs, taps, windows.strides, windows.dilation, windows.before, strict=True
                )
            ]
            value = windows.data[*plane, *read, x]
            if windows.kind == OPEN_MAX:
                value = tirx.max(sums[j, x], value)
            else:
                value = sums[j, x] + (value if windows.weight is None else value * windows.weight[plane[1], *taps, x])
            T.buffer_store(sums, value, [j, x])
