"""Matrix products whose extents are only known at run time, over a right operand in packed columns.

What they compute stands here; how, is written out by :mod:`tvm_ext.schedules.cpu.open_product`.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx
from tvm.ir import Expr

from tvm_ext.schedules.annotations import BATCH_AXES_ATTRIBUTE, KERNEL_ATTRIBUTE, TILE_ATTRIBUTE

OPEN_PRODUCT = "open_product"
"""What the block of such a kernel is annotated as."""


def open_product(data: te.Tensor, packed: te.Tensor, columns: Any, shared: bool, tile: tuple[int, int]) -> te.Tensor:
    """Multiply matrices, ``out[..., m, n] = sum(data[..., m, k] * packed[batch, n // lanes, k, n % lanes])``.

    Parameters
    ----------
    data : te.Tensor
        Shape ``(..., M, K)``.
    packed : te.Tensor
        Shape ``(batch, chunks, K, lanes)``; chunks are a multiple of the vectors of a tile.
    columns : int or Expr
        ``N``, in the form in which Relax infers it.
    shared : bool
        Whether all rows meet the same right operand, ``batch`` being 1; otherwise there is one for each matrix.
    tile : tuple of int
        Rows and vectors of a register tile.

    Returns
    -------
    te.Tensor
        Shape ``(..., M, N)``.
    """
    leading, lanes = list(data.shape[:-1]), int(packed.shape[-1])
    k = te.reduce_axis((0, data.shape[-1]), "k")
    batch_axes = 0 if shared else len(leading) - 1

    def element(*index: tirx.Var) -> Expr:
        *rows, column = index
        batch: Any = tirx.const(0, "int64")
        for position, extent in zip(rows[:batch_axes], leading[:batch_axes], strict=True):
            batch = batch * extent + position
        return te.sum(data[*rows, k] * packed[batch, column // lanes, k, column % lanes], k)

    attributes = {KERNEL_ATTRIBUTE: OPEN_PRODUCT, BATCH_AXES_ATTRIBUTE: batch_axes, TILE_ATTRIBUTE: list(tile)}
    return te.compute((*leading, columns), element, name="product", attrs=attributes)
