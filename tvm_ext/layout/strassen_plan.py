"""When a product with a constant is computed by Strassen's algorithm: decided on numbers.

Seven products of quarters take the place of eight. Against that stand sums of the rows and of the products, which are
moved to and from the L2 cache, and constants that are 7/4 as large.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import hypot

from tvm_ext.schedules.compute.matmul import MatmulShape
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.matmul import MOST_VECTORS, register_tile, tile_cost
from tvm_ext.schedules.cpu.strassen import (
    FLOAT_BYTES,
    WEIGHTS_NOT_HIDDEN,
    StrassenExtents,
    products_cost,
    task_parts,
)

GAIN = 1.02
"""How much faster it has to look: it rounds somewhat less well, and constants are larger."""


@dataclass(frozen=True)
class StrassenPlan:
    """How a product is computed by Strassen's algorithm.

    Attributes
    ----------
    tile : tuple of (int, int)
        Rows and vectors of columns of a register tile: half of a group of rows, and of a group of columns.
    lanes : int
        Columns of a vector.
    sequence : int
        Rows that belong together, as the tokens of a text do: no others are added to each other.
    computed : tuple of (int, int)
        Rows of a sequence and columns that are computed, those that fill up groups included.
    """

    tile: tuple[int, int]
    lanes: int
    sequence: int
    computed: tuple[int, int]


@lru_cache(maxsize=256)
def plan_strassen(shape: MatmulShape, sequence: int, dtype: str, machine: Machine) -> StrassenPlan | None:
    """Plan a product whose right operand is a constant; None where the ordinary one is to be preferred.

    It is where the last cache is far away, as that of a server that other machines use, too: with constants that are
    7/4 as large and sums that leave the L2 cache, 11 products of 32 to 512 rows took 0.98 to 1.47 of the ordinary time
    on two cores of Ice Lake, 0.96 to 1.36 on one.

    Parameters
    ----------
    shape : MatmulShape
    sequence : int
        Rows that belong together.
    dtype : str
        Of the elements.
    machine : Machine
    """
    if machine.shares_l3:
        return None
    if dtype != "float32" or shape.batch_axes or shape.reduction % 2 or sequence < 2 or shape.rows % sequence:
        return None
    lanes = machine.lanes(dtype)
    best, best_seconds = None, _ordinary_seconds(shape, -(-shape.columns // lanes), lanes, machine) / GAIN
    for vectors in range(1, MOST_VECTORS + 1):
        column_tiles = -(-shape.columns // (2 * vectors * lanes))
        for rows in range(1, min(sequence, machine.vector_registers // vectors + 1)):
            groups = -(-sequence // (2 * rows))
            sequences = shape.rows // sequence
            extents = StrassenExtents(
                sequences * groups, rows, column_tiles, vectors, lanes, shape.reduction // 2,
                sequences if sequence % (2 * rows) else 1,
            )  # fmt: skip
            cost = products_cost(extents, machine)
            # As fast as it could be with nothing to be added.
            if cost * extents.half / machine.slots(1.0) / machine.cores >= best_seconds:
                continue
            seconds, *_ = task_parts(extents, cost, machine)
            if seconds < best_seconds:
                computed = 2 * rows * groups, 2 * vectors * lanes * column_tiles
                best, best_seconds = StrassenPlan((rows, vectors), lanes, sequence, computed), seconds
    return best


def _ordinary_seconds(shape: MatmulShape, chunks: int, lanes: int, machine: Machine) -> float:
    row_bytes = FLOAT_BYTES * shape.reduction
    tile = register_tile(shape.rows, chunks, shape.reduction, row_bytes, machine)
    work = tile_cost(shape.rows, chunks, shape.reduction, tile, machine) * shape.reduction / machine.slots(1.0)
    reading = WEIGHTS_NOT_HIDDEN * row_bytes * chunks * lanes / machine.weight_bandwidth
    cores = machine.cores if machine.divides(2 * shape.rows * shape.reduction * shape.columns) else 1
    return hypot(work, reading) / cores
