"""Blocked tensors of open extents with a number around their images."""

from __future__ import annotations

from tvm import relax

from tvm_ext.layout.relax.blocked import Blocked, BlockedLayoutMutator
from tvm_ext.schedules.compute.open_convolution import simple
from tvm_ext.schedules.cpu.open_convolution import open_padding
from tvm_ext.shapes.row_windows import ROWS_ATTRIBUTE, RowWindow, RowWindows


def padded(
    rewriter: BlockedLayoutMutator, source: Blocked, padding: list[int], value: int = 0, dtype: str = "",
    offset: int = 0,
) -> relax.Expr:  # fmt: skip
    """Put a number around the images of a tensor of open extents.

    Parameters
    ----------
    padding : list of int
        Before each spatial axis, then after each of them.
    value : int
    dtype, offset : str, int
        The type of the result, the tensor's own if empty, and what is subtracted from all elements of 8 bits.
    """
    batch, chunks, *spatial, block = source.shape
    rank, own = len(spatial), str(source.var.ty.dtype)
    kernel = open_padding(int(chunks), int(block), padding, own, rewriter.machine, value, dtype, offset)
    wide = [extent + padding[axis] + padding[rank + axis] for axis, extent in enumerate(spatial)]
    shape = relax.ShapeExpr([simple(extent) for extent in (batch, chunks, *wide, block)])
    # It is written as it should be, so that nothing is read off its loops.
    windows = RowWindows(1, {0: RowWindow(1, -padding[0], -padding[0])}, 2)
    callee = rewriter.builder_.add_func(kernel.with_attr(ROWS_ATTRIBUTE, windows.written()), "padding")
    return rewriter.builder_.emit(relax.call_tir(callee, [source.var], relax.TensorType(shape, dtype or own)))
