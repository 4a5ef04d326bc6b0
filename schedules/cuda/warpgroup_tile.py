"""Tiles of products by ``wgmma``, chosen by how long their steps take.

The model is that of :mod:`tvm_ext.schedules.cuda.tensor_tile`, with other parts: both factors come from shared memory
for each instruction, and products of a step go on while the next one begins. The constants rank the tiles of six
products, by both instructions, as an H100 does.
"""

from __future__ import annotations

from dataclasses import replace

from tvm_ext.schedules.cuda.machine import WARP, GpuMachine
from tvm_ext.schedules.cuda.product import Product
from tvm_ext.schedules.cuda.product_tile import Tile, divided, joining_seconds, up
from tvm_ext.schedules.cuda.tensor_tile import (
    COPY,
    SMALLEST_COPY,
    Use,
    keeps_vectors,
    vector_of,
)
from tvm_ext.schedules.cuda.warpgroup_fragments import GROUP_ROWS, GROUP_WARPS, ROW

_SHAPES = (
    Tile(128, 256, ROW, 64, 256), Tile(256, 128, ROW, 64, 128), Tile(128, 192, ROW, 64, 192),
    Tile(128, 128, ROW, 64, 128), Tile(64, 256, ROW, 64, 256), Tile(64, 192, ROW, 64, 192), Tile(64, 128, ROW, 64, 128),
    Tile(128, 64, ROW, 64, 64), Tile(64, 64, ROW, 64, 64),
)  # fmt: skip

_STAGES = (4, 3, 5, 6)

SUSTAINED = 0.97
"""Part of the rate of the tensor cores that a GPU goes at for long: the clock falls when all of them are at work."""

SHARED_BYTES = 112
"""That shared memory gives and takes in a cycle, factors of products and copies together."""

STEP = 180
"""Cycles of a step besides: the barrier, and what is issued between products of one tile and those of the next."""

L2_BYTES = 38
"""That a multiprocessor gets from the L2 cache in a cycle while all ask."""

LATENCY = 1600
"""Cycles from the request for a tile to its arrival, with what else is under way."""

COPY_APART = 100
"""Instructions of a copy where a row of a tile is of several pixels, each with an address of its own."""

MOST_USEFUL = 4
"""Tiles at a time beyond which a step waits for its own barrier and copies, not for what it fetches."""

FIRST = 65
"""Cycles of a wave of blocks before its first product."""

STORED_BYTES = 22
"""That a multiprocessor stores in a cycle."""

SPARE_REGISTERS = 56
"""Of a thread, besides sums: addresses of copies."""

FEWEST_NEIGHBOURS = SMALLEST_COPY // 2
"""Elements that must lie side by side, so that tiles come by asynchronous copies."""


def warpgroup_tile(product: Product, machine: GpuMachine) -> Tile | None:
    """Choose the tile of a product; None where none fits."""
    tiles = [
        replace(tile, stages=stages)
        for tile in divided(_SHAPES, product)
        if keeps_vectors(product, tile)
        for stages in _STAGES
        # The loop of steps has one more than there are tiles at a time.
        if stages < up(up(product.depth, tile.parts), tile.depth)
    ]
    best = min(tiles, key=lambda tile: warpgroup_seconds(product, tile, machine), default=None)
    return best if best is not None and warpgroup_seconds(product, best, machine) < float("inf") else None


def warpgroup_use(tile: Tile) -> Use:
    """Count what a block with such a tile takes."""
    sums = tile.thread_rows * tile.thread_columns // (GROUP_WARPS * WARP)
    return Use(
        tile.threads * GROUP_WARPS * WARP,
        min(255, sums + SPARE_REGISTERS),
        tile.stages * 2 * tile.depth * (tile.rows + tile.columns),
    )


def warpgroup_seconds(product: Product, tile: Tile, machine: GpuMachine) -> float:
    """Estimate the seconds of a product with such a tile; infinite if it does not fit."""
    resident = warpgroup_use(tile).resident(machine)
    if resident == 0 or not _can_be_stored(product, tile):
        return float("inf")
    blocks = product.batch * tile.parts * up(product.rows, tile.rows) * up(product.columns, tile.columns)
    steps = up(up(product.depth, tile.parts), tile.depth)
    full, rest = divmod(blocks, resident * machine.multiprocessors)
    cycles = full * _wave(product, tile, resident, steps, machine)
    if rest:
        cycles += _wave(product, tile, up(rest, machine.multiprocessors), steps, machine)
    moving = product.unique_bytes / machine.bandwidth
    return machine.launch_seconds + max(cycles / machine.clock, moving) + joining_seconds(product, tile.parts, machine)


def _can_be_stored(product: Product, tile: Tile) -> bool:
    """Whether an instruction's columns are whole rows of shared memory, where these are not along the depth."""
    return product.column_vector[0] or tile.thread_columns % ROW == 0


def _wave(product: Product, tile: Tile, blocks: int, steps: int, machine: GpuMachine) -> float:
    """Count the cycles of so many blocks on a multiprocessor: the first tile, the steps, and what is stored."""
    stored = blocks * tile.rows * tile.columns * product.result_bytes
    return FIRST + steps * _step(product, tile, blocks, machine) + stored / STORED_BYTES


def _step(product: Product, tile: Tile, blocks: int, machine: GpuMachine) -> float:
    """Count the cycles of a step in which a multiprocessor has so many blocks."""
    filled = 2 * tile.depth * (tile.rows + tile.columns)
    issued = sum(
        tile.depth * side / vector_of(vector, 2) * (COPY if not vector[0] or vector[1] >= ROW else COPY_APART)
        for side, vector in ((tile.rows, product.row_vector), (tile.columns, product.column_vector))
    )
    read = 2 * tile.depth * tile.threads * (tile.thread_rows // GROUP_ROWS) * (GROUP_ROWS + tile.thread_columns)
    tensor = tile.rows * tile.columns * tile.depth / machine.tensor / SUSTAINED
    return max(
        LATENCY / (min(tile.stages, MOST_USEFUL) - 1.5),
        STEP + max(tensor, issued / machine.lanes),
        blocks * tensor,
        blocks * (filled + read) / SHARED_BYTES,
        blocks * filled / L2_BYTES,
    )
