"""Winograd convolutions of images whose number, rows or columns are only known at run time.

A task takes as many tiles, one after the other through rows and images, as its part of the L2 cache holds when they are
transformed: it transforms them, multiplies them with the filters position by position, and transforms the products
back. Nothing is padded: a tile is copied to a place of its own before, with zeros where it reaches beyond the image.
That takes no longer than to read it from the image, and half as much code is compiled.
"""

# mypy: ignore-errors
# (what the script builder gives has no types)
from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import ScheduleError
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from tvm_ext.schedules.compute.open_convolution import GEOMETRY_ATTRIBUTE
from tvm_ext.schedules.compute.open_winograd import OPEN_WINOGRAD, OPEN_WINOGRAD_PRODUCT, OPEN_WINOGRAD_TILE
from tvm_ext.schedules.compute.winograd_transforms import KERNEL, transforms, weighted_sum
from tvm_ext.schedules.cpu.conv_tile import register_tile
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.open_convolution import MANY_COLUMNS, MOST_COLUMNS, MOST_VECTORS, TILE_COLUMNS
from tvm_ext.schedules.cpu.open_tiles import (
    FEW_COLUMNS,
    ZERO,
    Epilogue,
    check_tile,
    digits,
    kept,
    loads_of,
    product,
    registers,
    tiles,
    whole,
)
from tvm_ext.schedules.cpu.winograd import winograd_outputs
from tvm_ext.schedules.kernel.blocks import annotated_block, top_blocks
from tvm_ext.schedules.open_versions import Choice, OpenRule
from tvm_ext.schedules.rule import new_schedule

OUTPUTS = 4
"""Outputs of a tile along an axis."""

TYPICAL_EXTENT = 16
"""Rows and columns of an image for which a convolution is judged."""

MOST_TILES = 128
"""Tiles of a task."""

TASK_TILES = (1, 2, 4, 8, 16, 32)
"""Register tiles of a task that a tuner may choose, beside those of a convolution."""


def pays_open_winograd(in_channels: int, out_channels: int, machine: Machine) -> bool:
    """Whether a 3 x 3 convolution of open extents is faster by Winograd's algorithm.

    Its filters are four times as large. A small image reads them for a few tiles, so that they should come from the
    last cache.
    """
    weight_bytes = 4 * (OUTPUTS + KERNEL - 1) ** 2 * in_channels * out_channels
    typical = (TYPICAL_EXTENT, TYPICAL_EXTENT)
    outputs = winograd_outputs(1, in_channels, out_channels, typical, machine)
    return outputs == OUTPUTS and weight_bytes <= machine.l3 // 4


class OpenWinograd(OpenRule):
    """Write out a Winograd convolution of open extents."""

    name = "cpu.open_winograd"

    def read(self, func: PrimFunc, target: tvm.target.Target) -> _Kernel | None:
        """Read such a convolution, and what is computed of its elements."""
        schedule = new_schedule(func)
        result, tile, multiplied = (
            annotated_block(schedule, kind) for kind in (OPEN_WINOGRAD, OPEN_WINOGRAD_TILE, OPEN_WINOGRAD_PRODUCT)
        )
        if result is None or tile is None or multiplied is None:
            return None
        block = schedule.get(result)
        epilogue = _epilogue(func, block)
        if epilogue is None or not epilogue.fits():
            return None
        (data,) = (load.source for load in loads_of(schedule.get(tile).body.value))
        weight = loads_of(schedule.get(multiplied).body.value)[-1].source
        geometry = [int(item) for item in block.annotations[GEOMETRY_ATTRIBUTE]]
        return _Kernel(func, data, weight, geometry, epilogue, machine_of(target))


def _epilogue(func: PrimFunc, result: Any) -> Epilogue | None:
    """Find what is computed of the result, as one block; None where it is more.

    That the tiles of open extents cover the result is more than TVM can prove, and so it inlines nothing in the whole
    kernel: what follows the result is made a kernel of its own.
    """
    root = func.body.block
    made = result.body.buffer
    names = [_block_of(step).name_hint for step in root.body]
    after = root.body[names.index(result.name_hint) + 1 :]
    written_there = [_block_of(step).writes[0].source for step in after]
    kept_buffers = [buffer for buffer in root.alloc_buffers if any(buffer.same_as(other) for other in written_there)]
    body = after[0] if len(after) == 1 else tirx.SeqStmt(after)
    rest = s_tir.SBlock([], [], [], "root", body, None, kept_buffers, [], {})
    realized = s_tir.SBlockRealize([], tirx.const(1, "bool"), rest)
    schedule = new_schedule(PrimFunc([made, *func.params], realized, func.ret_type, func.attrs))
    try:
        blocks = top_blocks(schedule)
        for block in blocks[:-1]:
            schedule.compute_inline(block)
    except ScheduleError:
        return None
    return Epilogue(made, schedule.get(blocks[-1]))


def _block_of(step: Any) -> Any:
    while not isinstance(step, s_tir.SBlockRealize):
        step = step.body
    return step.block


class _Kernel:
    """Writes one kernel."""

    def __init__(
        self,
        func: PrimFunc,
        data: Any,
        weight: Any,
        geometry: Sequence[int],
        epilogue: Epilogue,
        machine: Machine,
    ) -> None:
        self.func, self.machine, self.elements = func, machine, product(epilogue.result.shape)
        self.data, self.weight, self.epilogue = data, weight, epilogue
        self.outputs, self.top, self.left = geometry
        self.size = self.outputs + KERNEL - 1
        self.back, _, self.forward = transforms(self.outputs)
        self.dtype = str(data.dtype)
        _, self.out_chunks, self.reduction, self.lanes = (int(extent) for extent in weight.shape)
        self.in_chunks = self.reduction // self.lanes
        columns, vectors = register_tile(MANY_COLUMNS, self.out_chunks, machine, self.reduction)
        self.tile = min(columns, MOST_COLUMNS), vectors
        tile_bytes = 4 * self.size**2 * (self.reduction + self.out_chunks * self.lanes)
        self.fitting = min(machine.l2 // 2 // tile_bytes, MOST_TILES)

    def choices(self) -> list[Choice]:
        """List columns and vectors of a register tile, and such tiles in a task."""
        columns, vectors = self.tile
        widths = [width for width in range(1, MOST_VECTORS + 1) if self.out_chunks % width == 0]
        return [(TILE_COLUMNS, columns), (widths, vectors), (TASK_TILES, max(1, self.fitting // columns))]

    def check(self, picks: tuple[int, ...]) -> None:
        """Refuse a tile that the registers do not hold."""
        check_tile(*picks[:2], self.machine)

    def write(self, picks: tuple[int, ...]) -> None:
        """Emit the kernel with some choices."""
        self.columns, self.vectors, task_tiles = picks
        self.widths = (self.columns, *(width for width in (FEW_COLUMNS, 1) if width < self.columns))
        self.tiles = task_tiles * self.columns
        batch, _, rows, columns, _ = self.epilogue.result.shape
        step = whole(self.outputs)
        places = [batch, (rows + (step - 1)) // step, (columns + (step - 1)) // step]
        count = product(places)
        tasks = (count + (self.tiles - 1)) // whole(self.tiles)
        positions = self.size**2
        with T.parallel(ZERO, tasks) as task, T.sblock("winograd"):
            number = T.axis.spatial(tasks, task)
            transformed = T.sblock_alloc_buffer((positions, self.tiles, self.reduction), self.dtype)
            products = T.sblock_alloc_buffer((positions, self.tiles, self.out_chunks, self.lanes), self.dtype)
            around = T.sblock_alloc_buffer((self.size, self.size, self.lanes), self.dtype)
            done = T.sblock_alloc_buffer((self.outputs, self.outputs, self.lanes), self.dtype)
            first, left = kept([number * self.tiles, tirx.min(count - number * self.tiles, whole(self.tiles))])
            with T.serial(ZERO, left) as tile:
                image, *corner = digits(first + tile, places)
                image, top, side = kept(
                    [image, corner[0] * self.outputs - self.top, corner[1] * self.outputs - self.left]
                )
                with T.serial(ZERO, whole(self.in_chunks)) as chunk:
                    self._transform(transformed, around, tile, [image, chunk], top, side)
            with T.serial(ZERO, whole(positions)) as position:
                with T.serial(ZERO, whole(self.out_chunks // self.vectors)) as group:
                    sums = [registers(self.vectors, self.lanes, dtype=self.dtype) for _ in range(self.columns)]

                    def multiply(begin: Any, height: int) -> None:
                        self._multiply(sums, transformed, products, position, group, begin, height)

                    tiles(ZERO, left, self.widths, multiply)
            with T.serial(ZERO, left) as tile:
                image, *corner = digits(first + tile, places)
                image, top, side = kept([image, corner[0] * self.outputs, corner[1] * self.outputs])
                with T.serial(ZERO, whole(self.out_chunks)) as chunk:
                    self._transform_back(products, done, tile, chunk)
                    with T.serial(ZERO, tirx.min(rows - top, step)) as x:
                        with T.serial(ZERO, tirx.min(columns - side, step)) as y:
                            with T.vectorized(ZERO, whole(self.lanes)) as lane:
                                self.epilogue.store(done[x, y, lane], [image, chunk, top + x, side + y, lane])

    def _transform(self, transformed: Any, around: Any, tile: Any, plane: list[Any], top: Any, side: Any) -> None:
        """Transform one vector of channels of a tile of the input, whose corner is at ``top`` and ``side``."""
        height, width = self.data.shape[2:4]
        inside = tirx.all(top >= 0, top + self.size <= height, side >= 0, side + self.size <= width)
        with T.If(inside):
            with T.Then():
                with T.serial(ZERO, whole(self.size)) as x, T.serial(ZERO, whole(self.size)) as y:
                    with T.vectorized(ZERO, whole(self.lanes)) as lane:
                        T.buffer_store(around, self.data[*plane, top + x, side + y, lane], [x, y, lane])
            with T.Else():
                with T.serial(ZERO, whole(self.size)) as x, T.serial(ZERO, whole(self.size)) as y:
                    h, w = top + x, side + y
                    with T.If(tirx.all(h >= 0, h < height, w >= 0, w < width)):
                        with T.Then(), T.vectorized(ZERO, whole(self.lanes)) as lane:
                            T.buffer_store(around, self.data[*plane, h, w, lane], [x, y, lane])
                        with T.Else(), T.vectorized(ZERO, whole(self.lanes)) as lane:
                            T.buffer_store(around, tirx.const(0, self.dtype), [x, y, lane])
        halves = [registers(self.size, self.lanes, dtype=self.dtype) for _ in range(self.size)]
        for y in range(self.size):
            for half, coefficients in zip(halves, self.forward, strict=True):
                with T.vectorized(ZERO, whole(self.lanes)) as lane:
                    value = weighted_sum(coefficients, lambda k, lane=lane, y=y: around[k, y, lane])
                    T.buffer_store(half, value, [y, lane])
        for x, half in enumerate(halves):
            for y, coefficients in enumerate(self.forward):
                with T.vectorized(ZERO, whole(self.lanes)) as lane:
                    value = weighted_sum(coefficients, lambda k, half=half, lane=lane: half[k, lane])
                    index = [x * self.size + y, tile, plane[1] * self.lanes + lane]
                    T.buffer_store(transformed, value, index)

    def _multiply(
        self, sums: Sequence[Any], transformed: Any, products: Any, position: Any, group: Any, begin: Any, height: int
    ) -> None:
        """Multiply ``height`` tiles from one on with some vectors of the filters, at one position."""
        places = list(itertools.product(range(height), range(self.vectors)))
        for j, c in places:
            with T.vectorized(ZERO, whole(self.lanes)) as lane:
                T.buffer_store(sums[j], tirx.const(0, self.dtype), [c, lane])
        with T.serial(ZERO, whole(self.reduction)) as k:
            for j, c in places:
                with T.vectorized(ZERO, whole(self.lanes)) as lane:
                    weight = self.weight[position, group * self.vectors + c, k, lane]
                    value = sums[j][c, lane] + transformed[position, begin + j, k] * weight
                    T.buffer_store(sums[j], value, [c, lane])
        for j, c in places:
            with T.vectorized(ZERO, whole(self.lanes)) as lane:
                T.buffer_store(products, sums[j][c, lane], [position, begin + j, group * self.vectors + c, lane])

    def _transform_back(self, products: Any, done: Any, tile: Any, chunk: Any) -> None:
        """Transform the products of one tile and one vector of channels back."""
        halves = [registers(self.size, self.lanes, dtype=self.dtype) for _ in range(self.outputs)]
        for y in range(self.size):
            for half, coefficients in zip(halves, self.back, strict=True):
                with T.vectorized(ZERO, whole(self.lanes)) as lane:
                    value = weighted_sum(
                        coefficients, lambda k, lane=lane, y=y: products[k * self.size + y, tile, chunk, lane]
                    )
                    T.buffer_store(half, value, [y, lane])
        for x, half in enumerate(halves):
            for y, coefficients in enumerate(self.back):
                with T.vectorized(ZERO, whole(self.lanes)) as lane:
                    value = weighted_sum(coefficients, lambda k, half=half, lane=lane: half[k, lane])
                    T.buffer_store(done, value, [whole(x), whole(y), lane])
