"""How a product of matrices is cut into register tiles on a CPU: decided on numbers, before anything is rewritten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tvm_ext.errors import GraphError
from tvm_ext.schedules.compute.bfloat16 import PAIR
from tvm_ext.schedules.compute.matmul import MatmulShape, round_up, row_stride, uniform_rows
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.matmul import register_tile


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
    lanes = machine.lanes(dtype)
    chunks = -(-shape.columns // lanes)
    rounds = bfloat16 and dtype == "float32" and shape.columns > 1
    # A pair of bfloat16 takes an instruction and four bytes, as one float32 does; rows are read from a copy.
    steps = -(-shape.reduction // PAIR) if rounds else shape.reduction
    row_bytes = 4 * steps if rounds else row_stride(shape, data_axes) * np.dtype(dtype).itemsize
    tile = register_tile(shape.rows, chunks, steps, row_bytes, machine)
    copy_rows = shape.rows % tile[0] != 0 or not uniform_rows(shape, data_axes)
    return ProductPlan(tile, lanes, round_up(chunks, tile[1]), copy_rows, rounds)


def verify_product(plan: ProductPlan, shape: MatmulShape) -> None:
    """Check by counting that register tiles of a plan cover every row and column, and that none is read that is not.

    Raises
    ------
    GraphError
        If they do not.
    """
    columns = sum(plan.tile[1] * plan.lanes for _ in range(0, plan.chunks, plan.tile[1]))
    rows = sum(plan.tile[0] for _ in range(0, shape.rows, plan.tile[0]))
    if columns < shape.columns or columns != plan.chunks * plan.lanes or (rows != shape.rows and not plan.copy_rows):
        raise GraphError(
            f"the plan {plan} for a product of {shape.rows} x {shape.reduction} with {shape.columns} columns is not "
            "valid: its register tiles do not cover it; this is a fault of tvm-ext"
        )
