"""Register tiles around an embedded instruction: results of one loop of each factor that are summed up side by side."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import log2, prod
from typing import Literal

from tvm_ext.schedules.cpu.conv_tile import step_slots
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.transpose import LARGEST_SIDE
from tvm_ext.schedules.divisors import divisors
from tvm_ext.schedules.embedded_form import OuterLoop

MOST_VECTORS = 4
STORE_SLOTS, TILE_SLOTS, TRANSPOSE_SLOTS = 2.0, 12.0, 11.0
"""Multiply-adds that could be issued while a vector of results is stored, while a tile begins, and for each lane of a
square of results that is transposed, whether all of it is used or not."""


@dataclass(frozen=True)
class EmbeddedTile:
    """A register tile.

    Attributes
    ----------
    column, vector : int
        Loops over results that are cut into tiles, one that only the left and one that only the right factor moves
        in; -1: none.
    columns, vectors : int
        Turns of these in a tile.
    slots : float
        Multiply-adds of vectors that could be issued while the whole operator runs on one core.
    """

    column: int
    columns: int
    vector: int
    vectors: int
    slots: float

    def rounded(self, loops: Sequence[OuterLoop]) -> dict[int, int]:
        """Give the loops that are no multiple of their tile, and the next multiple."""
        cut = {self.column: self.columns, self.vector: self.vectors}
        return {
            at: -(-loops[at].extent // size) * size for at, size in cut.items() if at >= 0 and loops[at].extent % size
        }


def embedded_tile(
    loops: Sequence[OuterLoop],
    steps: int,
    machine: Machine,
    fixed: Collection[int] = (),
    lanes_of_left: bool = False,
    transposes: bool = False,
) -> EmbeddedTile:
    """Choose the register tile.

    Parameters
    ----------
    loops : sequence of OuterLoop
        Over results.
    steps : int
        Instructions that are summed up for one result.
    fixed : collection of int
        Loops that must be multiples of their tile.
    lanes_of_left : bool
        Whether the left factor is a vector as well, instead of one value for all lanes.
    transposes : bool
        Whether the lanes of a vector of results are no neighbours in the operator's result.
    """
    lanes = machine.lanes("float32")
    columns_of = [at for at, loop in enumerate(loops) if loop.kind == "left"] or [-1]
    vectors_of = [at for at, loop in enumerate(loops) if loop.kind == "right"] or [-1]
    best: EmbeddedTile | None = None
    for column in reversed(columns_of):
        for vector in reversed(vectors_of):
            rest = prod(loop.extent for at, loop in enumerate(loops) if at not in (column, vector))
            for columns, vectors in _sizes(loops, column, vector, machine, fixed, lanes_of_left):
                width, depth = (loops[at].extent if at >= 0 else 1 for at in (column, vector))
                panel = steps * vectors * machine.vector_bits // 8
                step = step_slots(columns, vectors, panel, machine)
                if lanes_of_left:
                    step = max(step, columns * vectors * 1.1, 2.0 * (columns + vectors) / 2)
                tiles = rest * -(-width // columns) * -(-depth // vectors)
                stored = columns * vectors * STORE_SLOTS
                if transposes:
                    stored += -(-columns // lanes) * vectors * lanes * TRANSPOSE_SLOTS
                slots = tiles * (steps * step + stored + TILE_SLOTS)
                slots *= 1 + 0.05 * (columns + vectors) / (columns * vectors)
                if best is None or slots < best.slots * 0.999:
                    best = EmbeddedTile(column, columns, vector, vectors, slots)
    assert best is not None  # a tile of one is always possible
    return best


def _sizes(
    loops: Sequence[OuterLoop],
    column: int,
    vector: int,
    machine: Machine,
    fixed: Collection[int],
    lanes_of_left: bool,
) -> list[tuple[int, int]]:
    registers = machine.vector_registers - 1
    width, depth = (loops[at].extent if at >= 0 else 1 for at in (column, vector))
    all_columns = divisors(width) if column in fixed else range(1, min(width, registers) + 1)
    all_vectors = divisors(depth) if vector in fixed else range(1, min(depth, MOST_VECTORS) + 1)
    if lanes_of_left:  # each element is loaded for one multiply-add: more columns only wait for their stores
        all_columns = [columns for columns in all_columns if columns <= LARGEST_SIDE]
    return [
        (columns, vectors)
        for vectors in all_vectors
        for columns in all_columns
        if vectors <= MOST_VECTORS and columns * vectors + vectors + (2 if lanes_of_left else 1) <= registers
    ]


Copy = Literal["vectors", "interleaved", "interleaved by elements", "tiles", "elements"]
"""How a factor is stored anew: what lies together stays so; a few rows are interleaved, as vectors or, where bytes
become words or a row may be missing, not; it is transposed; or it is collected."""

VECTOR_CYCLES, WORD_CYCLES, INTERLEAVED_CYCLES, ELEMENT_CYCLES = 2.5, 0.6, 8.0, 1.5
"""Cycles of a vector that is copied, of up to four elements, of a vector that is interleaved, and of an element by
itself, measured on Zen 5; but that of a word is inferred from one depthwise convolution of 8 bits there."""

INTERLEAVED_GROUP_CYCLES = 2.4
"""Cycles of one element of each row where rows are interleaved element by element, measured on Zen 4."""


def copied_cycles(elements: int, copy: Copy, lanes: int, run: int) -> float:
    """Cycles of one core for storing elements anew.

    Parameters
    ----------
    elements : int
    copy : str
    lanes : int
        Elements of a vector.
    run : int
        Elements along the axis that is innermost in what is stored.
    """
    if copy == "vectors":
        return elements / min(lanes, run) * (WORD_CYCLES if run <= 4 else VECTOR_CYCLES)
    if copy == "interleaved":
        return elements / lanes * INTERLEAVED_CYCLES
    if copy == "interleaved by elements":
        return elements / run * INTERLEAVED_GROUP_CYCLES
    if copy == "tiles":
        side = min(lanes, LARGEST_SIDE, 1 << (run - 1).bit_length())
        return elements / side * (2 + log2(side))  # of a row of a tile: a load, shuffles, and a store
    return elements * ELEMENT_CYCLES


@dataclass(frozen=True)
class EmbeddedTasks:
    """How tiles are divided among cores.

    Attributes
    ----------
    row : int
        A loop that only the left factor moves in and that is not the tile's; -1: none.
    bands, parts, pieces : int
        Into how many parts the row loop, the tiles along vectors and the tiles along columns are divided.
    parallel : bool
    """

    row: int
    bands: int
    parts: int
    pieces: int
    parallel: bool

    def read_again(self, loops: Sequence[OuterLoop], tile: EmbeddedTile) -> tuple[float, float]:
        """How many times the left and the right factor are stored anew, by all tasks together."""
        rows = loops[self.row].read_again(self.bands) if self.row >= 0 else 1.0
        columns = loops[tile.column].read_again(self.pieces) if tile.column >= 0 else 1.0
        return rows * columns * self.parts, self.bands * self.pieces


def embedded_tasks(
    loops: Sequence[OuterLoop], tile: EmbeddedTile, steps: int, copied: Sequence[float], lanes: int, machine: Machine
) -> EmbeddedTasks:
    """Divide the work so that the slowest core has the least to do.

    Parameters
    ----------
    copied : (float, float)
        Multiply-adds that could be issued while the left and the right factor are stored anew, once.
    lanes : int
        Multiplications of one instruction.
    """
    extents = [loop.extent for loop in loops]
    rows = [at for at, loop in enumerate(loops) if loop.kind == "left" and at != tile.column]
    row = max(rows, key=lambda at: extents[at], default=-1)
    others = prod(extent for at, extent in enumerate(extents) if at not in (row, tile.column, tile.vector))
    height = extents[row] if row >= 0 else 1
    groups = extents[tile.vector] // tile.vectors if tile.vector >= 0 else 1
    strips = extents[tile.column] // tile.columns if tile.column >= 0 else 1
    parallel = machine.divides(2.0 * prod(extents) * steps * lanes)
    work = tile.slots / (others * height * groups * strips)  # of one tile
    again = {bands: loops[row].read_again(bands) if row >= 0 else 1.0 for bands in divisors(height)}
    best, best_cost = (1, 1, 1), float("inf")
    for bands in divisors(height):
        for parts in divisors(groups):
            for pieces in divisors(strips) if bands == height else [1]:
                tasks = others * bands * parts * pieces
                rounds = -(-tasks // machine.cores) if parallel else tasks
                own = height // bands * (groups // parts) * (strips // pieces) * work
                shared = again[bands] * loops[tile.column].read_again(pieces) if tile.column >= 0 else again[bands]
                copy = copied[0] * shared / (others * bands * pieces) + copied[1] / (others * parts)
                weights = steps * tile.vectors * (groups // parts) * 2.0
                cost = rounds * (own + copy + 0.02 * weights + 60)
                if cost < best_cost * 0.999:
                    best, best_cost = (bands, parts, pieces), cost
    return EmbeddedTasks(row, *best, parallel)
