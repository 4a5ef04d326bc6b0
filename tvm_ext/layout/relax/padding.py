"""Blocked tensors of open extents with a number around their images."""

from __future__ import annotations

from tvm import relax

from tvm_ext.layout.relax.blocked import Blocked, BlockedLayoutMutator
from tvm_ext.schedules.compute.open_convolution import simple
from tvm_ext.schedules.cpu.open_convolution import open_padding
from tvm_ext.shapes.row_windows import ROWS_ATTRIBUTE, RowWindow, RowWindows


def padded(
    rewriter: BlockedLayoutMutator,
    source: Blocked,
    padding: list[int],
    value: int | relax.Expr = 0,
    dtype: str = "",
    offset: int = 0,
) -> relax.Expr:
    """Put a number around the images of a tensor of open extents.

    Parameters
    ----------
    padding : list of int
        Before each spatial axis, then after each of them.
    value : int or relax.Expr
        One that only a run tells is of shape ``(1,)`` and of the tensor's type.
    dtype, offset : str, int
        The type of the result, the tensor's own if empty, and what is subtracted from all elements of 8 bits.
    """
    batch, chunks, *spatial, block = source.shape
    rank, own = len(spatial), str(source.var.ty.dtype)
    known, given = (value, []) if isinstance(value, int) else (0, [value])
    kernel = open_padding(int(chunks), int(block), padding, own, rewriter.machine, known, dtype, offset, bool(given))
    wide = [extent + padding[axis] + padding[rank + axis] for axis, extent in enumerate(spatial)]
    shape = relax.ShapeExpr([simple(extent) for extent in (batch, chunks, *wide, block)])
    # It is written as it should be, so that nothing is read off its loops.
    operands = 1 + len(given)
    windows = RowWindows(operands, {0: RowWindow(1, -padding[0], -padding[0])}, 1 + operands)
    callee = rewriter.builder_.add_func(kernel.with_attr(ROWS_ATTRIBUTE, windows.written()), "padding")
    result = relax.TensorType(shape, dtype or own)
    return rewriter.builder_.emit(relax.call_tir(callee, [source.var, *given], result))
