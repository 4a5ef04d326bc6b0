"""Tiles of products as knobs: what a tuner may choose in place of the cost model's tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm.s_tir import Schedule, ScheduleError

from tvm_ext.schedules.cuda.machine import MOST_THREADS, WARP, GpuMachine
from tvm_ext.schedules.cuda.product import Product
from tvm_ext.schedules.cuda.product_tile import Tile
from tvm_ext.schedules.knobs import pick
from tvm_ext.schedules.rule import Cost

PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
MOST_SUMS = 128
"""Elements of the result that a thread may have in its registers."""


@dataclass(frozen=True)
class TileKnobs:
    """What may be chosen.

    Attributes
    ----------
    sides : tuple of int
        Rows and columns of a tile.
    depth_bytes : tuple of int
        Bytes of a row of a tile.
    own : tuple of int
        Rows and columns of the part of a thread, or a warp.
    threads : int
        Threads that compute such a part together.
    stages : tuple of int
        Tiles in shared memory at a time; none where that is no choice.
    """

    sides: tuple[int, ...]
    depth_bytes: tuple[int, ...]
    own: tuple[int, ...]
    threads: int
    stages: tuple[int, ...] = ()


ARITHMETIC = TileKnobs((2, 4, 8, 16, 32, 64, 128, 256), (32, 64, 128), (1, 2, 4, 8), 1)
TENSOR = TileKnobs((16, 32, 64, 128, 256), (32, 64, 128, 256), (16, 32, 64), WARP, (2, 3, 4, 5))
TENSOR_IN_TURNS = TileKnobs((16, 32, 64, 128, 256), (32, 64, 128, 256), (16, 32, 64), WARP)
"""Without asynchronous copies."""
WARPGROUPS = TileKnobs((64, 128, 192, 256), (128,), (64, 128, 192, 256), 4 * WARP, (3, 4, 5, 6))


def sampled_tile(schedule: Schedule, product: Product, tile: Tile, knobs: TileKnobs) -> Tile:
    """Let a tuner choose a tile; in an ordinary schedule it is ``tile``.

    Raises
    ------
    ScheduleError
        If the numbers that a tuner chose are no tile.
    """
    names = [name for name, _ in _choices(product, knobs)]
    picked = [pick(schedule, options, getattr(tile, name)) for name, options in _choices(product, knobs)]
    made = replace(tile, **dict(zip(names, picked, strict=True)))
    if made != tile and not _is_tile(made, knobs):
        raise ScheduleError(f"{made} is no tile of a block of threads")
    return made


def tile_cost(
    product: Product, knobs: TileKnobs, tile: Tile, seconds: Callable[[Product, Tile, GpuMachine], float],
    machine: GpuMachine,
) -> Cost:  # fmt: skip
    """Give what the cost model says of the knobs of :func:`sampled_tile`; infinite where they are no tile."""
    names = [name for name, _ in _choices(product, knobs)]

    def estimate(picked: Sequence[Sequence[int]]) -> float:
        made = replace(tile, **{name: value for name, (value,) in zip(names, picked, strict=True)})
        return seconds(product, made, machine) if _is_tile(made, knobs) else float("inf")

    return len(names), estimate


def _choices(product: Product, knobs: TileKnobs) -> list[tuple[str, tuple[int, ...]]]:
    """List the fields of a tile, and what each may be: no side of more than twice what there is."""
    depths = tuple(size // product.row_bytes for size in knobs.depth_bytes)
    parts = tuple(number for number in PARTS if number == 1 or product.depth >= 2 * number * min(depths))
    return [
        ("rows", _up_to(knobs.sides, product.rows)),
        ("columns", _up_to(knobs.sides, product.columns)),
        ("depth", _up_to(depths, product.depth)),
        ("thread_rows", knobs.own),
        ("thread_columns", knobs.own),
        ("parts", parts),
        *([("stages", knobs.stages)] if knobs.stages else []),
    ]


def _up_to(sizes: Sequence[int], most: int) -> tuple[int, ...]:
    return tuple(size for size in sizes if size < 2 * most) or (min(sizes),)


def _is_tile(tile: Tile, knobs: TileKnobs) -> bool:
    if tile.rows % tile.thread_rows or tile.columns % tile.thread_columns:
        return False
    threads = tile.threads * knobs.threads
    return WARP <= threads <= MOST_THREADS and tile.thread_rows * tile.thread_columns <= MOST_SUMS * knobs.threads
