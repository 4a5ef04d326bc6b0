"""Operators around an instruction on tile registers: which tiles are held, and what loads and multiplies them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from typing import Any

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import IndexMap

from tvm_ext.schedules.cpu.embedded_tile import STORE_SLOTS, TRANSPOSE_SLOTS, EmbeddedTile
from tvm_ext.schedules.divisors import divisors
from tvm_ext.schedules.embedded_form import OuterLoop
from tvm_ext.schedules.instructions.instruction import Instruction
from tvm_ext.schedules.instructions.tile_parts import ROWS, TILES, fits, tile_parts

TILES_ATTRIBUTE = "tvm_ext.tiles"
"""Annotation of the loop over tasks of a kernel on tile registers, for :mod:`tvm_ext.passes.tile_state`."""

SLOT_CYCLES = 0.5
"""Cycles of a slot: what :class:`EmbeddedTile` counts in, a multiply-add of vectors."""

LOAD_CYCLES, STORE_CYCLES = 8, 16
"""Of one tile, from and to the first-level cache, as Intel's optimisation manual has them."""


def tile_block(
    loops: Sequence[OuterLoop], steps: int, row: Instruction, fixed: Collection[int], transposes: bool
) -> EmbeddedTile:
    """Choose how many tiles of each factor are held at once.

    Parameters
    ----------
    loops : sequence of OuterLoop
        Over results.
    steps : int
        Instructions that are summed up for one tile of results.
    row : Instruction
        With ``tiles``.
    fixed : collection of int
        Loops that must be multiples of their part of the block.
    transposes : bool
        Whether results are stored along the rows of a tile.
    """
    columns_of = [at for at, loop in enumerate(loops) if loop.kind == "left"] or [-1]
    vectors_of = [at for at, loop in enumerate(loops) if loop.kind == "right"] or [-1]
    stored = STORE_CYCLES / SLOT_CYCLES + ROWS * (TRANSPOSE_SLOTS if transposes else STORE_SLOTS)
    best: EmbeddedTile | None = None
    for column in reversed(columns_of):
        for vector in reversed(vectors_of):
            rest = prod(loop.extent for at, loop in enumerate(loops) if at not in (column, vector))
            width, depth = (loops[at].extent if at >= 0 else 1 for at in (column, vector))
            for columns in divisors(width) if column in fixed else range(1, min(width, TILES) + 1):
                for vectors in divisors(depth) if vector in fixed else range(1, min(depth, TILES) + 1):
                    if not fits(columns, vectors):
                        continue
                    held = columns * vectors
                    step = max(held * row.cycles, (columns + vectors) * LOAD_CYCLES, row.latency) / SLOT_CYCLES
                    blocks = rest * -(-width // columns) * -(-depth // vectors)
                    slots = blocks * (steps * step + held * stored + row.latency / SLOT_CYCLES)
                    if best is None or slots < best.slots * 0.999:
                        best = EmbeddedTile(column, columns, vector, vectors, slots)
    assert best is not None  # a block of one tile is always possible
    return best


def sum_up_tiles(
    schedule: Schedule, product: SBlockRV, staged: SBlockRV, row: Instruction, tile: EmbeddedTile, depth: int,
    loops: int, sums: int,
) -> None:  # fmt: skip
    """Schedule product and store of one block of tiles.

    Parameters
    ----------
    product, staged : SBlockRV
        The product, in tiles, and the copy of its results to memory.
    depth : int
        Loops around a block of tiles.
    loops, sums : int
        The product's loops over results and over sums outside of the instruction.
    """
    columns, vectors = (tile.columns if tile.column >= 0 else 1, tile.vectors if tile.vector >= 0 else 1)
    parts = tile_parts(row, columns, vectors)
    outer, summed, inner = _loops(schedule, product, depth, loops, sums)
    if not summed:
        summed = [schedule.add_unit_loop(inner[0])]
    held = [outer[at] for at in (tile.column, tile.vector) if at >= 0]
    others = [loop for at, loop in enumerate(outer) if at not in (tile.column, tile.vector)]
    schedule.reorder(*others, *summed, *held, *inner)
    for loop in held:
        schedule.unroll(loop)
    lanes = len(inner)
    for factor, part in ((0, parts.load_left), (1, parts.load_right)):
        load = _load_tiles(schedule, product, factor, summed[-1])
        _tensorize_last(schedule, load, 3, part, depth + len(others) + len(summed))
    initial = schedule.decompose_reduction(product, summed[0])
    _tensorize_last(schedule, initial, 2, parts.zero, depth + len(others))
    schedule.tensorize(schedule.get_loops(product)[-lanes], parts.multiply)
    _tensorize_last(schedule, staged, 2, parts.store, depth)


def _load_tiles(schedule: Schedule, product: SBlockRV, factor: int, step: LoopRV) -> SBlockRV:
    """Load a factor into tiles in each step, numbered by the product's axes: those of a window must stay apart."""
    block = schedule.get(product)
    axes = [axis.var for axis in block.iter_vars]
    used = [_places(axes, extent.min) for extent in block.reads[factor].region]
    lanes = [place for places in used[-3:] for place in places]
    outer = sorted({place for places in used[:-3] for place in places})
    tiles = IndexMap.from_func(
        lambda *at: [at[place] for place in [*outer, *lanes]], ndim=len(axes), index_dtype=str(axes[0].ty.dtype)
    )
    load = schedule.reindex_cache_read(product, factor, "local", tiles)
    schedule.compute_at(load, step, preserve_unit_loops=True)
    walked = sorted([*outer, *lanes])
    loops = dict(zip(walked, schedule.get_loops(load)[-len(walked) :], strict=True))
    schedule.reorder(*(loops[place] for place in [*outer, *lanes]))
    return load


def _places(axes: Sequence[Any], index: Any) -> list[int]:
    """List the axes of a block that an index is computed from."""
    found = tvm.tirx.analysis.undefined_vars(index)
    return [place for place, axis in enumerate(axes) if any(axis.same_as(variable) for variable in found)]


def _loops(
    schedule: Schedule, product: SBlockRV, depth: int, loops: int, sums: int
) -> tuple[list[LoopRV], list[LoopRV], list[LoopRV]]:
    """Divide the loops of a product: over results, over sums, and those of the instruction in its order."""
    every = list(schedule.get_loops(product))[depth:]
    vector, summed = every[loops : loops + 2], every[loops + 2 : loops + 2 + sums]
    return every[:loops], summed, [*vector, *every[loops + 2 + sums :]]


def _tensorize_last(schedule: Schedule, block: SBlockRV, count: int, intrinsic: str, depth: int) -> None:
    """Put an intrinsic in place of the last loops of a block, and write out those between them and ``depth``."""
    every = schedule.get_loops(block)
    for loop in every[depth:-count]:
        schedule.unroll(loop)
    schedule.tensorize(every[-count], intrinsic)
