"""2-D pooling over the blocked layout NCHW{v}c."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te, tirx
from tvm_ext.schedules.compute.conv2d import KERNEL_ATTRIBUTE, crop_width


def pool2d(
    data: te.Tensor,
    kind: str,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    out_shape: Sequence[int],
    count_include_pad: bool = False,
    computed_width: int = 0,
) -> te.Tensor:
    """Pool a blocked tensor.

    Parameters
    ----------
    data : te.Tensor
        Shape ``(N, C / v, H, W, v)``.
    kind : str
        ``"max"`` or ``"avg"``.
    kernel, strides, dilation : sequence of two int
    padding : sequence of four int
        Top, left, bottom, right.
    out_shape : sequence of two int
        ``OH, OW``; windows may reach beyond the padded input (``ceil_mode``), where there is nothing to pool.
    count_include_pad : bool
        Whether an average counts padded positions (but none beyond the padding).
    computed_width : int
        Output columns to compute, at least ``OW``; those beyond ``OW`` are dropped.

    Returns
    -------
    te.Tensor
        Shape ``(N, C / v, OH, OW, v)``.
    """
    batch, chunks, height, width, block = (int(extent) for extent in data.shape)
    top, left, bottom, right = padding
    neutral = tirx.min_value(data.dtype) if kind == "max" else tirx.const(0, data.dtype)
    last_row = (out_shape[0] - 1) * strides[0] + (kernel[0] - 1) * dilation[0] - top
    full_w = max(out_shape[1], computed_width)
    last_column = (full_w - 1) * strides[1] + (kernel[1] - 1) * dilation[1] - left
    inside_always = top == 0 and left == 0 and last_row < height and last_column < width
    kh = te.reduce_axis((0, kernel[0]), "kh")
    kw = te.reduce_axis((0, kernel[1]), "kw")
    combine = te.max if kind == "max" else te.sum

    def window(n: tirx.Var, c: tirx.Var, h: tirx.Var, w: tirx.Var, i: tirx.Var) -> tirx.PrimExpr:
        row, column = h * strides[0] + kh * dilation[0] - top, w * strides[1] + kw * dilation[1] - left
        value = data[n, c, row, column, i]
        if not inside_always:
            inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
            value = tirx.if_then_else(inside, value, neutral)
        return combine(value, [kh, kw])

    shape = (batch, chunks, out_shape[0], full_w, block)
    pooled = te.compute(shape, window, name="pool2d", attrs={KERNEL_ATTRIBUTE: "pool2d"})
    if kind == "max":
        return crop_width(pooled, out_shape[1])

    def taken(position: tirx.Var, axis: int, extent: int, before: int, after: int) -> tirx.PrimExpr:
        """Count the window positions that fall on counted input along one axis."""
        low, high = (0, extent) if not count_include_pad else (-before, extent + after)
        start = position * strides[axis] - before
        first = tirx.max(0, (low - start + dilation[axis] - 1) // dilation[axis])
        end = tirx.min(kernel[axis], (high - start + dilation[axis] - 1) // dilation[axis])
        return end - first

    constant_count = inside_always or (count_include_pad and last_row < height + bottom and last_column < width + right)

    def average(n: tirx.Var, c: tirx.Var, h: tirx.Var, w: tirx.Var, i: tirx.Var) -> tirx.PrimExpr:
        if constant_count:
            return pooled[n, c, h, w, i] * tirx.const(1.0 / (kernel[0] * kernel[1]), data.dtype)
        count = taken(h, 0, height, top, bottom) * taken(w, 1, width, left, right)
        return pooled[n, c, h, w, i] / tirx.max(count, 1).astype(data.dtype)

    return te.compute((*shape[:3], out_shape[1], block), average, name="average")


def global_average(data: te.Tensor) -> te.Tensor:
    """Average over H and W: ``(N, C / v, H, W, v)`` to ``(N, C / v, 1, 1, v)``."""
    batch, chunks, height, width, block = (int(extent) for extent in data.shape)
    h = te.reduce_axis((0, height), "h")
    w = te.reduce_axis((0, width), "w")
    total = te.compute(
        (batch, chunks, 1, 1, block),
        lambda n, c, _h, _w, i: te.sum(data[n, c, h, w, i], [h, w]),
        name="global_sum",
        attrs={KERNEL_ATTRIBUTE: "global_average"},
    )
    scale = tirx.const(1.0 / (height * width), data.dtype)
    return te.compute(total.shape, lambda *index: total(*index) * scale, name="average")
