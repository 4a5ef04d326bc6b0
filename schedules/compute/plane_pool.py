"""Pooling of plain tensors: the rows of a window first, which lie in order, then the columns of what they gave."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tvm import te, tirx
from tvm.ir import Expr

from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE
from tvm_ext.schedules.compute.matmul import round_up
from tvm_ext.schedules.compute.pool import Mean, least


def plane_pool(
    data: te.Tensor,
    widths: te.Tensor | None,
    kind: str,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    out_shape: Sequence[int],
    lanes: int,
    count_include_pad: bool = False,
) -> te.Tensor:
    """Pool a plain tensor over its spatial axes; vectors run along rows.

    Parameters
    ----------
    data : te.Tensor
        Shape ``(N, C, [D,] H, W)``.
    widths : te.Tensor, optional
        Of an average, what :func:`columns_counted` gives.
    kind, kernel, strides, padding, dilation, out_shape, count_include_pad
        As those of :func:`tvm_ext.schedules.compute.pool.pool`.
    lanes : int
        Columns of a vector; the columns that are computed are rounded up to a multiple.

    Returns
    -------
    te.Tensor
        Shape ``(N, C, [OD,] OH, OW)``.
    """
    batch, channels, *spatial = (int(extent) for extent in data.shape)
    rank = len(spatial)
    computed = round_up(out_shape[-1], lanes)
    lasts = [
        (count - 1) * stride + (taps - 1) * step - first
        for count, stride, taps, step, first in zip(out_shape, strides, kernel, dilation, padding[:rank], strict=True)
    ]
    # Columns that fill up the last vector read what is there.
    columns = round_up((computed - 1) * strides[-1] + (kernel[-1] - 1) * dilation[-1] + 1, lanes)
    neutral = least(str(data.dtype)) if kind == "max" else tirx.const(0, data.dtype)
    combine = te.max if kind == "max" else te.sum
    *taps, tap = [te.reduce_axis((0, extent), f"k{axis}") for extent, axis in zip(kernel, "dhw"[-rank:], strict=True)]

    def joined(n: tirx.Var, c: tirx.Var, *rest: tirx.Var) -> Expr:
        positions, checks = [], []
        for axis, (place, step) in enumerate(zip(rest[:-1], taps, strict=True)):
            position = place * strides[axis] + step * dilation[axis] - padding[axis]
            positions.append(position)
            checks += [position >= 0] if padding[axis] > 0 else []
            checks += [position < spatial[axis]] if lasts[axis] >= spatial[axis] else []
        column = rest[-1] - padding[rank - 1]
        checks += [column >= 0] if padding[rank - 1] > 0 else []
        checks += [column < spatial[-1]] if columns - padding[rank - 1] > spatial[-1] else []
        value = data[n, c, *positions, column]
        return combine(tirx.if_then_else(tirx.all(*checks), value, neutral) if checks else value, taps)

    rows = te.compute(
        (batch, channels, *out_shape[:-1], columns), joined, name="rows", attrs={KERNEL_ATTRIBUTE: "pool_rows"}
    )
    pooled = te.compute(
        (batch, channels, *out_shape[:-1], computed),
        lambda *index: combine(rows[*index[:-1], index[-1] * strides[-1] + tap * dilation[-1]], tap),
        name="pool",
        attrs={KERNEL_ATTRIBUTE: "plane_pool"},
    )
    if kind == "max":
        return te.compute((batch, channels, *out_shape), lambda *index: pooled(*index), name="pooled")
    mean = Mean(kernel, strides, padding, dilation, spatial, lasts, count_include_pad)
    if widths is None:
        return te.compute(
            (batch, channels, *out_shape), lambda *index: mean.of(pooled(*index), index[2:]), name="pooled"
        )

    def average(*index: tirx.Var) -> Expr:
        height = mean.counted(index[2:-1])
        height = tirx.const(height, data.dtype) if isinstance(height, int) else height.astype(data.dtype)
        return pooled(*index) / (height * widths[index[-1]])

    return te.compute((batch, channels, *out_shape), average, name="pooled")


def columns_counted(
    kernel: int, stride: int, padding: Sequence[int], dilation: int, extent: int, count: int, count_include_pad: bool
) -> NDArray[np.float32] | None:
    """Count the columns of each window of a row that its average is of; None where all are.

    Parameters
    ----------
    kernel, stride, dilation : int
        Along a row.
    padding : sequence of two int
        Before a row and after it.
    extent, count : int
        Columns of the input, and of the result.
    count_include_pad : bool
        Whether padded columns count.

    Returns
    -------
    numpy.ndarray of shape (count,), optional
    """
    places = np.arange(count)[:, None] * stride + np.arange(kernel) * dilation - padding[0]
    low, high = (-padding[0], extent + padding[1]) if count_include_pad else (0, extent)
    counted = ((places >= low) & (places < high)).sum(1)
    return None if (counted == kernel).all() else np.maximum(counted, 1).astype("float32")
