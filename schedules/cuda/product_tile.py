"""Tiles of products that multiply-adds of single elements compute, chosen by the cost model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tvm_ext.schedules.cuda.cost import Launch, kernel_seconds
from tvm_ext.schedules.cuda.machine import WARP, GpuMachine
from tvm_ext.schedules.cuda.product import Product


@dataclass(frozen=True)
class Tile:
    """What a block of threads computes at a time.

    Attributes
    ----------
    rows, columns, depth : int
        Of the tile in shared memory.
    thread_rows, thread_columns : int
        Of the part of it that one thread, or for tensor cores one warp, computes.
    parts : int
        Into how many the depth is divided, each computed by blocks of its own and added up by a second kernel.
    stages : int
        For tensor cores: tiles in shared memory at a time; one is computed with, the others are on their way.
    """

    rows: int
    columns: int
    depth: int
    thread_rows: int
    thread_columns: int
    parts: int = 1
    stages: int = 2

    @property
    def threads(self) -> int:
        """Parts of the tile: threads for arithmetic, warps for tensor cores."""
        return (self.rows // self.thread_rows) * (self.columns // self.thread_columns)


_SHAPES = (
    Tile(128, 128, 8, 8, 8), Tile(128, 64, 8, 8, 4), Tile(64, 128, 8, 4, 8), Tile(64, 64, 16, 4, 4),
    Tile(32, 128, 16, 4, 4), Tile(128, 32, 16, 4, 4), Tile(32, 64, 16, 4, 4), Tile(64, 32, 16, 4, 4),
    Tile(32, 32, 16, 4, 4), Tile(16, 64, 16, 2, 4), Tile(64, 16, 16, 4, 2), Tile(16, 32, 16, 2, 4),
    Tile(32, 16, 16, 4, 2), Tile(16, 16, 32, 2, 2), Tile(8, 64, 32, 2, 4), Tile(64, 8, 32, 4, 2),
    Tile(4, 128, 32, 1, 4), Tile(128, 4, 32, 4, 1), Tile(2, 128, 32, 1, 2), Tile(128, 2, 32, 2, 1),
)  # fmt: skip

_PARTS = (1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 27, 32, 36)


def divided(shapes: Sequence[Tile], product: Product) -> Iterator[Tile]:
    """Yield tiles of such shapes with the depth whole, and divided into as many parts as have two steps each."""
    for shape in shapes:
        if not product.allows(shape.rows, shape.columns):
            continue
        for parts in _PARTS:
            if parts == 1 or (product.depth >= 2 * parts * shape.depth and not product.open_depth):
                yield replace(shape, parts=parts)


def arithmetic_tile(product: Product, machine: GpuMachine) -> Tile:
    """Choose the tile of a product that is computed by multiply-adds of single elements."""
    return min(divided(_SHAPES, product), key=lambda tile: arithmetic_seconds(product, tile, machine))


def arithmetic_seconds(product: Product, tile: Tile, machine: GpuMachine) -> float:
    """Estimate the seconds of a product with such a tile, the second kernel of a divided depth included."""
    blocks = product.batch * tile.parts * up(product.rows, tile.rows) * up(product.columns, tile.columns)
    steps = up(up(product.depth, tile.parts), tile.depth)
    warps = up(tile.threads, WARP)
    per_thread = tile.thread_rows * tile.thread_columns
    # For each step in depth: multiply-adds, loads of four elements from shared memory, and what fills that again with
    # one load, one store and their addresses for each element.
    loads = (tile.thread_rows + tile.thread_columns) / 4
    filled = (tile.rows + tile.columns) * tile.depth / tile.threads
    issue = steps * warps * (tile.depth * (per_thread + 2 * loads) + 10 * filled + 20)
    launch = Launch(
        blocks,
        tile.threads,
        registers=min(255, 2 * (per_thread // 2 + tile.thread_rows + tile.thread_columns) + 40),
        shared=4 * (tile.rows + tile.columns + 8) * tile.depth,
        issue=issue,
        bytes=product.unique_bytes,
        l2_bytes=blocks * steps * tile.depth * (tile.rows * product.row_bytes + tile.columns * product.column_bytes),
        in_flight=4 * filled,
    )
    return kernel_seconds(launch, machine) + joining_seconds(product, tile.parts, machine)


def joining_seconds(product: Product, parts: int, machine: GpuMachine) -> float:
    """Estimate the seconds of adding up the parts of a divided depth; what was just written is in the L2 cache."""
    if parts == 1:
        return 0.0
    results = product.batch * product.rows * product.columns
    moved = 4.0 * results * (2 * parts)
    return kernel_seconds(Launch(up(results, 256), 256, issue=8 * (10 + 3 * parts), l2_bytes=moved), machine)


def up(number: int, part: int) -> int:
    """Count the parts of ``part`` that hold ``number``."""
    return -(-number // part)
