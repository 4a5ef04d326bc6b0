"""Tiles of products on a GPU, chosen by the cost model."""

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
        Tiles in shared memory at a time: one is computed with, the others are on their way.
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

_TENSOR_SHAPES = (
    Tile(128, 128, 32, 64, 32), Tile(128, 64, 32, 32, 32),
    Tile(64, 128, 32, 32, 32), Tile(64, 64, 32, 32, 32), Tile(64, 64, 64, 32, 16), Tile(32, 64, 32, 16, 32),
    Tile(64, 32, 32, 32, 16), Tile(32, 32, 64, 16, 16), Tile(16, 64, 64, 16, 16), Tile(64, 16, 64, 16, 16),
    Tile(16, 32, 64, 16, 16), Tile(32, 16, 64, 16, 16), Tile(16, 16, 64, 16, 16),
)  # fmt: skip
"""Depths of operands of 16 bits; tiles of others are as many bytes deep."""

_PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def _candidates(shapes: Sequence[Tile], product: Product) -> Iterator[Tile]:
    """Yield tiles with the depth whole, and divided into as many parts as have two steps each."""
    for shape in shapes:
        for parts in _PARTS:
            if parts == 1 or product.depth >= 2 * parts * shape.depth:
                yield replace(shape, parts=parts)


def arithmetic_tile(product: Product, machine: GpuMachine) -> Tile:
    """Choose the tile of a product that is computed by multiply-adds of single elements."""
    return min(_candidates(_SHAPES, product), key=lambda tile: arithmetic_seconds(product, tile, machine))


def arithmetic_seconds(product: Product, tile: Tile, machine: GpuMachine) -> float:
    """Estimate the seconds of a product with such a tile, the second kernel of a divided depth included."""
    blocks = product.batch * tile.parts * _up(product.rows, tile.rows) * _up(product.columns, tile.columns)
    steps = _up(_up(product.depth, tile.parts), tile.depth)
    warps = _up(tile.threads, WARP)
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


def tensor_tile(product: Product, machine: GpuMachine) -> Tile:
    """Choose the tile of a product that is computed on tensor cores."""
    shapes = [replace(shape, depth=shape.depth * 2 // product.row_bytes) for shape in _TENSOR_SHAPES]
    return min(_candidates(shapes, product), key=lambda tile: tensor_seconds(product, tile, machine))


def tensor_seconds(product: Product, tile: Tile, machine: GpuMachine) -> float:
    """Estimate the seconds of a product with such a tile on tensor cores."""
    return kernel_seconds(tensor_launch(product, tile), machine) + joining_seconds(product, tile.parts, machine)


def tensor_launch(product: Product, tile: Tile, spare: int = 0) -> Launch:
    """Describe the kernel of a product with such a tile on tensor cores, ``spare`` registers beyond the estimate."""
    blocks = product.batch * tile.parts * _up(product.rows, tile.rows) * _up(product.columns, tile.columns)
    steps = _up(_up(product.depth, tile.parts), tile.depth)
    threads = tile.threads * WARP
    fragments = (tile.thread_rows + tile.thread_columns) // 16
    # A fragment is one ldmatrix; what fills shared memory takes a load, a store and addresses for each access, which
    # is of one element where a window is put together.
    size = product.row_bytes
    vector, fragment_depth = 16 // size, 32 // size
    accesses = (
        tile.rows * tile.depth / max(1, min(vector, product.row_vector[1]))
        + tile.columns * tile.depth / max(1, min(vector, product.column_vector[1]))
    ) / threads
    products = (tile.thread_rows // 16) * (tile.thread_columns // 8)
    issue = steps * tile.threads * (tile.depth / fragment_depth * (2 * fragments + products) + 10 * accesses + 20)
    # A lane has its part of the result, fragments of both operands, and addresses.
    accumulators = tile.thread_rows * tile.thread_columns // WARP
    return Launch(
        blocks,
        threads,
        registers=min(255, accumulators + 4 * fragments + 40 + spare),
        shared=2 * size * (tile.rows + tile.columns) * (tile.depth + vector),
        issue=issue,
        # The rate is that of 16-bit operands; those of 8 bits go twice as fast, tf32 half.
        tensor=float(steps * tile.depth * tile.rows * tile.columns) * size / 2,
        bytes=product.unique_bytes,
        l2_bytes=blocks * steps * tile.depth * (tile.rows * product.row_bytes + tile.columns * product.column_bytes),
        in_flight=float(size) * (tile.rows + tile.columns) * tile.depth / threads,
    )


def joining_seconds(product: Product, parts: int, machine: GpuMachine) -> float:
    """Estimate the seconds of adding up the parts of a divided depth; what was just written is in the L2 cache."""
    if parts == 1:
        return 0.0
    results = product.batch * product.rows * product.columns
    moved = 4.0 * results * (2 * parts)
    return kernel_seconds(Launch(_up(results, 256), 256, issue=8 * (10 + 3 * parts), l2_bytes=moved), machine)


def _up(number: int, part: int) -> int:
    return -(-number // part)
