"""How a product of matrices is cut into register tiles on a CPU: decided on numbers, before anything is rewritten.

Products whose extents are only known at run time have plans of their own: their kernels hold a tile for whole blocks of
rows and smaller ones for what is left over, and their columns are packed to whole tiles when they are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tvm_ext.layout.choices import Choices
from tvm_ext.schedules.compute.bfloat16 import PAIR
from tvm_ext.schedules.compute.matmul import MatmulShape, round_up, row_stride, uniform_rows
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.matmul import register_tile, register_tiles, tile_cost


@dataclass(frozen=True)
class ProductPlan:
    """How a product is computed over columns that are packed in chunks.

    Attributes
    ----------
    tile : tuple of (int, int)
        Rows and chunks of a register tile.
    lanes : int
        Columns of a chunk.
    chunks : int
        Chunks that are computed, those that fill up register tiles included.
    copy_rows : bool
        Whether rows are copied, as they are not contiguous, or no whole register tiles.
    rounds : bool
        Whether operands are rounded to bfloat16 and multiplied in pairs.
    """

    tile: tuple[int, int]
    lanes: int
    chunks: int
    copy_rows: bool
    rounds: bool = False


def plan_product(
    shape: MatmulShape, data_axes: Sequence[int], dtype: str, machine: Machine, bfloat16: bool = False
) -> ProductPlan:
    """Decide how a product is computed whose left operand is read through a transpose.

    Parameters
    ----------
    shape : MatmulShape
    data_axes : sequence of int
        For each logical axis of the left operand, which axis it is in memory.
    dtype : str
        Of the elements.
    machine : Machine
    bfloat16 : bool
        Whether operands may be rounded to bfloat16: the right one is a constant.
    """
    tile = register_tile(*_extents(shape, data_axes, dtype, machine, bfloat16), machine)
    return _with_tile(tile, shape, data_axes, dtype, machine, bfloat16)


def choose_product(
    choices: Choices, shape: MatmulShape, data_axes: Sequence[int], dtype: str, machine: Machine, bfloat16: bool = False
) -> ProductPlan:
    """Plan a product, as a search over whole networks found better or as the machine model says.

    There are as many register tiles to choose from as there are numbers of vectors: for each the best number of rows.
    Parameters are those of :func:`plan_product`.
    """
    rows, chunks, reduction, row_bytes = _extents(shape, data_axes, dtype, machine, bfloat16)
    best = register_tile(rows, chunks, reduction, row_bytes, machine)
    tiles = {best, *register_tiles(rows, chunks, reduction, row_bytes, machine)}
    key = f"product {'x'.join(map(str, shape.out[:-1]))}x{shape.reduction} by {shape.columns}, {dtype}"
    names = {f"{tile[0]}x{tile[1]}": tile for tile in sorted(tiles)}
    work = prod(shape.out) * shape.reduction
    seconds = [
        work / max(1, rows * shape.columns * shape.reduction)  # products side by side
        * reduction * tile_cost(rows, chunks, reduction, tile, machine)
        / machine.slots(machine.cores if machine.divides(2 * work) else 1)
        for tile in names.values()
    ]  # fmt: skip
    tile = names[choices.decide(key, list(names), f"{best[0]}x{best[1]}", work, seconds)]
    return _with_tile(tile, shape, data_axes, dtype, machine, bfloat16)


def _extents(
    shape: MatmulShape, data_axes: Sequence[int], dtype: str, machine: Machine, bfloat16: bool
) -> tuple[int, int, int, int]:
    """Rows, chunks and steps of a product, and the distance of two rows in bytes."""
    chunks = -(-shape.columns // machine.lanes(dtype))
    rounds = _rounds(shape, dtype, bfloat16)
    # A pair of bfloat16 takes an instruction and four bytes, as one float32 does; rows are read from a copy.
    steps = -(-shape.reduction // PAIR) if rounds else shape.reduction
    row_bytes = 4 * steps if rounds else row_stride(shape, data_axes) * np.dtype(dtype).itemsize
    return shape.rows, chunks, steps, row_bytes


def _rounds(shape: MatmulShape, dtype: str, bfloat16: bool) -> bool:
    return bfloat16 and dtype == "float32" and shape.columns > 1


def _with_tile(
    tile: tuple[int, int], shape: MatmulShape, data_axes: Sequence[int], dtype: str, machine: Machine, bfloat16: bool
) -> ProductPlan:
    lanes = machine.lanes(dtype)
    copy_rows = shape.rows % tile[0] != 0 or not uniform_rows(shape, data_axes)
    chunks = round_up(-(-shape.columns // lanes), tile[1])
    return ProductPlan(tile, lanes, chunks, copy_rows, _rounds(shape, dtype, bfloat16))


MANY_ROWS = 5040
"""Rows that the tile of an open product is chosen for: a multiple of every tile up to 10."""

MANY_CHUNKS = 64
"""Chunks of columns that it is chosen for where they are open."""

MEAN_REDUCTION = 256
"""Length of the sums that it is chosen for where it is open."""


@dataclass(frozen=True)
class OpenProductPlan:
    """How a product is computed some of whose extents are only known at run time.

    Attributes
    ----------
    tile : tuple of (int, int)
        Rows and chunks of the largest register tile.
    lanes : int
        Columns of a chunk.
    """

    tile: tuple[int, int]
    lanes: int

    def chunks(self, columns: Any) -> Any:
        """Chunks that ``columns``, a number or an expression, are packed into: whole register tiles."""
        width = self.lanes * self.tile[1]
        return (columns + (width - 1)) // width * self.tile[1]


def plan_open_product(columns: int | None, reduction: int | None, dtype: str, machine: Machine) -> OpenProductPlan:
    """Decide how a product of many rows is computed; None: an extent that is open."""
    lanes = machine.lanes(dtype)
    chunks = MANY_CHUNKS if columns is None else -(-columns // lanes)
    tile = register_tile(MANY_ROWS, chunks, MEAN_REDUCTION if reduction is None else reduction, 0, machine)
    return OpenProductPlan(tile, lanes)
