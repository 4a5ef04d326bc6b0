"""Convolutions over channels in blocked layout whose batch, rows or columns are only known at run time.

A register tile of output columns x channel vectors, chosen as if there were many columns, goes along each row; those
that fill no tile are taken by smaller ones, of two and of one at last. No tile goes beyond a row, and no element is
computed twice. The input is padded before, by a kernel of its own. Where a filter is one pixel and moves by one, all
pixels of an image are one row.
"""

# mypy: ignore-errors
# (what the script builder gives has no types)
from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import SBlockRV
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from tvm_ext.schedules.compute.open_convolution import OPEN_CONVOLUTION
from tvm_ext.schedules.cpu.conv_tile import register_tile
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.open_tiles import (
    FEW_COLUMNS,
    ZERO,
    OpenWindows,
    check_tile,
    digits,
    kept,
    product,
    registers,
    tiles,
    whole,
)
from tvm_ext.schedules.cpu.tasks import WORK_ATTRIBUTE
from tvm_ext.schedules.kernel.blocks import annotated_block, inline_epilogue, is_spatial, static_extents, top_blocks
from tvm_ext.schedules.open_versions import Choice, OpenRule
from tvm_ext.schedules.rule import RULE_ATTRIBUTE, new_schedule
from tvm_ext.schedules.simd.loops import SIMD_ATTRIBUTE

PADDING_RULE = "cpu.open_padding"
"""Stands as the schedule rule of kernels that pad: they are written as they should be."""

MANY_COLUMNS = 5040
"""Columns that a register tile is chosen for: a multiple of every tile up to 10."""

MOST_COLUMNS = 16
"""Columns of a register tile: more of a single vector keep the multipliers no busier, and are more code."""

TASK_ROWS = 4
"""Rows of a task, which meet the same weights."""

TASK_TILES = 16
"""Register tiles of a row in a task."""

TILE_COLUMNS = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16)
MOST_VECTORS = 8
MANY_ROWS = (1, 2, 4, 8, 16)
MANY_TILES = (1, 4, 16, 64)
"""What a tuner may choose: columns and vectors of a register tile, rows and tiles of a row in a task."""


class OpenConvolution(OpenRule):
    """Write out a convolution over channels of open extents."""

    name = "cpu.open_convolution"

    def read(self, func: PrimFunc, target: tvm.target.Target) -> ConvolutionKernel | None:
        """Read such a convolution, and what is computed of its elements."""
        found = read_windows(func, OPEN_CONVOLUTION)
        return None if found is None else ConvolutionKernel(*found, machine_of(target))


def read_windows(func: PrimFunc, kind: str) -> tuple[PrimFunc, OpenWindows] | None:
    """Read a kernel of windows of one kind, whose epilogue is inlined; None where it is another one."""
    schedule = new_schedule(func)
    conv = annotated_block(schedule, kind)
    if conv is None or len(schedule.get(conv).reads) < 2:
        return None
    try:
        for block in _before(schedule, conv):
            schedule.compute_inline(block)
        store, _ = inline_epilogue(schedule, conv)
    except ScheduleError:
        return None
    if len(top_blocks(schedule)) != 2:
        return None
    windows = OpenWindows(schedule, conv, store)
    return (schedule.mod["main"], windows) if windows.fits() else None


def _before(schedule: Schedule, conv: SBlockRV) -> list[SBlockRV]:
    """List what is computed before a convolution of numbers alone, such as a scale that only a run tells."""
    blocks = top_blocks(schedule)
    names = [schedule.get(block).name_hint for block in blocks]
    return [
        block
        for block in blocks[: names.index(schedule.get(conv).name_hint)]
        if is_spatial(schedule, block) and static_extents(schedule, block)
    ]


class ConvolutionKernel:
    """Writes one kernel.

    Parameters
    ----------
    func : PrimFunc
    windows : OpenWindows
        Its weights are of shape ``(chunks, chunks of the input, [KD,] KH, KW, steps of a block, ...)``.
    machine : Machine
    """

    def __init__(self, func: PrimFunc, windows: OpenWindows, machine: Machine) -> None:
        self.func, self.windows, self.machine = func, windows, machine
        self.elements = product(windows.result.shape)
        self.groups, self.lanes = windows.further[0], windows.lanes
        shape = [int(extent) for extent in windows.weight.shape]
        self.chunks, self.in_chunks, *self.kernel, self.steps, _ = shape
        columns, vectors = register_tile(MANY_COLUMNS, self.chunks // self.groups, machine, prod(shape[1:-1]))
        self.tile = min(columns, MOST_COLUMNS), vectors
        self.together = prod(shape) * tvm.DataType(windows.weight.dtype).bits // 8 <= machine.l2 // 2
        steps = (*self.kernel, *windows.strides)
        self.one_row = all(step == 1 for step in steps) and windows.epilogue.counts_pixels()
        # Images of one pixel are rows of a matrix: tiles go over them.
        pixels = [*windows.result.shape[2:-1], *windows.data.shape[2:-1]]
        self.of_images = all(isinstance(extent, tirx.IntImm) and int(extent) == 1 for extent in (*pixels, *self.kernel))

    def choices(self) -> list[Choice]:
        """List columns and vectors of a register tile, and the rows, and tiles of a row, in a task."""
        columns, vectors = self.tile
        widths = [width for width in range(1, MOST_VECTORS + 1) if self.chunks // self.groups % width == 0]
        return [(TILE_COLUMNS, columns), (widths, vectors), (MANY_ROWS, TASK_ROWS), (MANY_TILES, TASK_TILES)]

    def check(self, picks: tuple[int, ...]) -> None:
        """Refuse a tile that the registers do not hold."""
        check_tile(*picks[:2], self.machine)

    def write(self, picks: tuple[int, ...]) -> None:
        """Emit the kernel with some choices.

        A task takes all channels of its rows where their weights stay in the L2 cache meanwhile, otherwise some.
        """
        self.columns, self.vectors, task_rows, task_tiles = picks
        # One column of many vectors keeps the multipliers as busy as several of few. Two read the weights once: the
        # last pixels of a small image take as long as its weights.
        rest = (FEW_COLUMNS, 2, 1) if self.vectors < FEW_COLUMNS else (2, 1)
        self.widths = (self.columns, *(width for width in rest if width < self.columns))
        batch, _, *spatial, _ = self.windows.result.shape
        if self.one_row:
            spatial = [*[whole(1)] * (len(spatial) - 1), product(spatial)]
        if self.of_images:
            batch, spatial = whole(1), [*spatial[:-1], batch]
        rows, width = product(spatial[:-1]), spatial[-1]
        band_rows = 1 if isinstance(rows, tirx.IntImm) and int(rows) == 1 else task_rows
        band = self.columns * task_tiles
        groups = self.chunks // self.vectors
        outer = [
            batch, 1 if self.together else groups, (rows + (band_rows - 1)) // band_rows,
            (width + (band - 1)) // band,
        ]  # fmt: skip
        total = product(outer)
        with T.parallel(ZERO, total) as task, T.sblock("conv"):
            number = T.axis.spatial(total, task)
            # One for each column: a single one would be larger than what is held in registers.
            sums = [registers(self.vectors, self.lanes, dtype=self.windows.dtype) for _ in range(self.columns)]
            n, part, rows_before, columns_before = digits(number, outer)
            first = columns_before * band
            n, part, begin, first, left = kept(
                [n, part, rows_before * band_rows, first, tirx.min(width - first, whole(band))]
            )
            with T.serial(ZERO, whole(groups if self.together else 1)) as step:
                group = step if self.together else part
                with T.serial(ZERO, tirx.min(rows - begin, whole(band_rows))) as row:
                    place = digits(begin + row, spatial[:-1])
                    if len(place) > 1:
                        place = kept(place)

                    def tile(column: Any, count: int, group: Any = group, place: Any = place) -> None:
                        self._tile(sums, n, group, [*place, column], count)

                    tiles(first, left, self.widths, tile)

    def _tile(self, sums: Sequence[Any], n: Any, group: Any, place: list[Any], count: int) -> None:
        """Compute ``count`` columns of a row; ``place`` is the first one."""
        for j, c in itertools.product(range(count), range(self.vectors)):
            with T.vectorized(ZERO, whole(self.lanes)) as x:
                T.buffer_store(sums[j], tirx.const(0, self.windows.dtype), [c, x])
        self._reduce(sums, n, group, place, count, [])
        for j, c in itertools.product(range(count), range(self.vectors)):
            with T.vectorized(ZERO, whole(self.lanes)) as x:
                chunk = group * self.vectors + c
                at = self.image(place, j, chunk) if self.of_images else [n, chunk, *place[:-1], place[-1] + j]
                self.windows.store(sums[j][c, x], [*at, x])

    def _reduce(
        self, sums: Sequence[Any], n: Any, group: Any, place: list[Any], count: int, indices: list[Any]
    ) -> None:
        """Add up the products of a tile: over blocks of input channels, taps, and steps of a block."""
        extents = [self.in_chunks, *self.kernel, self.steps]
        if len(indices) < len(extents):
            extent = extents[len(indices)]
            if extent == 1:
                self._reduce(sums, n, group, place, count, [*indices, ZERO])
            else:
                with T.serial(ZERO, whole(extent)) as index:
                    self._reduce(sums, n, group, place, count, [*indices, index])
            return
        self.step(sums, n, group, place, count, indices)

    def step(
        self, sums: Sequence[Any], n: Any, group: Any, place: list[Any], count: int, indices: Sequence[Any]
    ) -> None:
        """Add one step of the sums of a tile to them."""
        in_chunk, *taps, lane = indices
        chunk = self.input_chunk(group, in_chunk)
        windows = self.windows
        for j, c in itertools.product(range(count), range(self.vectors)):
            with T.vectorized(ZERO, whole(self.lanes)) as x:
                read = self.pixel(n, chunk, place, j, taps)
                weight = windows.weight[group * self.vectors + c, in_chunk, *taps, lane, x]
                T.buffer_store(sums[j], sums[j][c, x] + windows.data[*read, lane] * weight, [c, x])

    def input_chunk(self, group: Any, in_chunk: Any) -> Any:
        """Say which block of the input is read for a block of those that a group of the convolution has."""
        if self.groups == 1:
            return in_chunk
        return group // (self.chunks // self.groups // self.vectors) * self.in_chunks + in_chunk

    def image(self, place: Sequence[Any], column: int, chunk: Any) -> list[Any]:
        """Say where the pixel of an image is of which a tile has several as its columns."""
        return [place[-1] + column, chunk, *[ZERO] * len(place)]

    def pixel(self, n: Any, chunk: Any, place: Sequence[Any], column: int, taps: Sequence[Any]) -> list[Any]:
        """Say which pixel of the input taps meet, for a column of the tile whose first one is ``place``."""
        windows = self.windows
        if self.of_images:
            return self.image(place, column, chunk)
        return [n, chunk] + [
            output * stride + tap * step
            for output, tap, stride, step in zip(
                [*place[:-1], place[-1] + column], taps, windows.strides, windows.dilation, strict=True
            )
        ]


def open_padding(
    chunks: int, block: int, padding: list[int], dtype: str, machine: Machine, value: int = 0, result: str = "",
    offset: int = 0, given: bool = False,
) -> PrimFunc:  # fmt: skip
    """Make the kernel that puts a number around the images of a blocked tensor.

    Parameters
    ----------
    chunks, block : int
        Blocks of channels, and channels in one.
    padding : list of int
        Before each spatial axis, then after each of them.
    dtype : str
    machine : Machine
    value : int
        What is put around them.
    result : str
        Type of the padded tensor; the same if empty.
    offset : int
        Subtracted from all elements of 8 bits.
    given : bool
        Whether what is put around them is an argument.

    Returns
    -------
    tvm.tirx.PrimFunc
        Arguments: the tensor ``(N, chunks, [D,] H, W, block)``, what is put around it, of shape ``(1,)``, if ``given``,
        and the padded tensor.
    """
    result = result or dtype
    rank = len(padding) // 2
    before, after = padding[:rank], padding[rank:]
    with IRBuilder() as builder:
        with T.prim_func(is_private=True, s_tir=True):
            T.func_name("padding")
            batch, *spatial = (T.int64() for _ in range(1 + rank))
            wide = [extent + (first + last) for extent, first, last in zip(spatial, before, after, strict=True)]
            data = T.arg("data", T.buffer((batch, chunks, *spatial, block), dtype))
            around = T.arg("around", T.buffer((1,), dtype)) if given else None
            padded = T.arg("padded", T.buffer((batch, chunks, *wide, block), result))
            outer = [batch, chunks, *wide[:-1]]
            total = product(outer)

            def columns(row: list[Any], begin: Any, count: Any, origin: list[Any] | None) -> None:
                """Copy columns of a row, or set them to the number where there is no origin."""
                if isinstance(count, int) and count == 0:
                    return

                def element(w: Any, x: Any) -> None:
                    if origin is None and not given:
                        found = tirx.const(value - offset, result)
                    else:
                        found = around[ZERO] if origin is None else data[*origin, w, x]
                        if result != dtype:
                            found = (found.astype("int16") - tirx.const(offset, "int16")).astype(result)
                    T.buffer_store(padded, found, [*row, begin + w, x])

                if block > 1:
                    with T.serial(ZERO, whole(count)) as w, T.vectorized(ZERO, whole(block)) as x:
                        element(w, x)
                else:
                    with T.serial(ZERO, whole(count), annotations={SIMD_ATTRIBUTE: machine.lanes(result)}) as w:
                        element(w, ZERO)

            seconds = 2 * tvm.DataType(result).bits / 8 / machine.stream_bandwidth  # an element read and written
            work = product([total, wide[-1], whole(block)]) * max(1, round(seconds * machine.flops))
            with (
                T.sblock("root"),
                T.attr(tirx.const(0, "int32"), WORK_ATTRIBUTE, work),
                T.parallel(ZERO, total) as task,
                T.sblock("pad"),
            ):
                number = T.axis.spatial(total, task)
                n, c, *at = digits(number, outer)
                origin = [position - first for position, first in zip(at, before[:-1], strict=True)]
                inside = [
                    tirx.all(position >= 0, position < extent)
                    for position, extent in zip(origin, spatial[:-1], strict=True)
                ]
                with T.If(tirx.all(*inside)):
                    with T.Then():
                        columns([n, c, *at], ZERO, before[-1], None)
                        columns([n, c, *at], before[-1], spatial[-1], [n, c, *origin])
                        columns([n, c, *at], spatial[-1] + before[-1], after[-1], None)
                    with T.Else():
                        columns([n, c, *at], ZERO, wide[-1], None)
    attributes = {RULE_ATTRIBUTE: PADDING_RULE, "tirx.is_scheduled": True, "tirx.noalias": True, "op_pattern": 8}
    return builder.get().with_attrs(attributes)
