"""2-D convolutions over the blocked layout NCHW{v}c, with weights packed to match.

A tensor of ``C`` channels in blocks of ``v`` has shape ``(N, ceil(C / v), H, W, v)``; plain NCHW is the case ``v = 1``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import te, tirx

KERNEL_ATTRIBUTE = "tvm_ext.kernel"
"""Block annotation that tells the schedule rules what a block computes."""


def output_extent(extent: int, kernel: int, stride: int, before: int, after: int, dilation: int) -> int:
    """Extent of a convolution's or pooling's output along one axis."""
    return (extent + before + after - dilation * (kernel - 1) - 1) // stride + 1


def pad_spatial(data: te.Tensor, padding: Sequence[int], value: float = 0.0) -> te.Tensor:
    """Pad H and W of a blocked tensor; ``padding`` is (top, left, bottom, right)."""
    top, left, bottom, right = padding
    batch, chunks, height, width, block = (int(extent) for extent in data.shape)

    def element(n: tirx.Var, c: tirx.Var, h: tirx.Var, w: tirx.Var, i: tirx.Var) -> tirx.PrimExpr:
        inside = tirx.all(h >= top, h < height + top, w >= left, w < width + left)
        return tirx.if_then_else(inside, data[n, c, h - top, w - left, i], tirx.const(value, data.dtype))

    shape = (batch, chunks, height + top + bottom, width + left + right, block)
    return te.compute(shape, element, name="pad", attrs={KERNEL_ATTRIBUTE: "pad"})


def conv2d(
    data: te.Tensor,
    weight: te.Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
    computed_width: int = 0,
) -> te.Tensor:
    """Convolve a blocked tensor with packed weights (see :func:`pack_weight`).

    Parameters
    ----------
    data : te.Tensor
        Shape ``(N, CI / vi, H, W, vi)``.
    weight : te.Tensor
        Shape ``(CO / vo, CI / groups / vi, KH, KW, vi, vo)``.
    strides, dilation : sequence of two int
    padding : sequence of four int
        Top, left, bottom, right.
    groups : int
        ``CI / groups`` and ``CO / groups`` must be multiples of ``vi`` and ``vo`` when it is not 1.
    computed_width : int
        Output columns to compute, at least ``OW``; those beyond ``OW`` are dropped.

    Returns
    -------
    te.Tensor
        Shape ``(N, CO / vo, OH, OW, vo)``.
    """
    batch, _, height, width, _ = (int(extent) for extent in data.shape)
    out_chunks, in_chunks, kernel_h, kernel_w, block_in, block_out = (int(extent) for extent in weight.shape)
    top, left, bottom, right = padding
    out_h = output_extent(height, kernel_h, strides[0], top, bottom, dilation[0])
    out_w = output_extent(width, kernel_w, strides[1], left, right, dilation[1])
    source, full_w = _padded_source(data, padding, out_w, computed_width, strides[1])
    chunks_per_group = out_chunks // groups
    ic = te.reduce_axis((0, in_chunks), "ic")
    kh = te.reduce_axis((0, kernel_h), "kh")
    kw = te.reduce_axis((0, kernel_w), "kw")
    ii = te.reduce_axis((0, block_in), "ii")

    def element(n: tirx.Var, oc: tirx.Var, h: tirx.Var, w: tirx.Var, oi: tirx.Var) -> tirx.PrimExpr:
        chunk = ic if groups == 1 else oc // chunks_per_group * in_chunks + ic
        row, column = h * strides[0] + kh * dilation[0], w * strides[1] + kw * dilation[1]
        return te.sum(source[n, chunk, row, column, ii] * weight[oc, ic, kh, kw, ii, oi], [ic, kh, kw, ii])

    shape = (batch, out_chunks, out_h, full_w, block_out)
    result = te.compute(shape, element, name="conv2d", attrs={KERNEL_ATTRIBUTE: "conv2d"})
    return crop_width(result, out_w)


def depthwise_conv2d(
    data: te.Tensor,
    weight: te.Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    computed_width: int = 0,
) -> te.Tensor:
    """Convolve every channel with its own filter.

    Parameters
    ----------
    data : te.Tensor
        Shape ``(N, C / v, H, W, v)``.
    weight : te.Tensor
        Shape ``(C / v, KH, KW, v)``; see :func:`pack_depthwise_weight`.
    strides, padding, dilation, computed_width
        As for :func:`conv2d`.

    Returns
    -------
    te.Tensor
        Shape ``(N, C / v, OH, OW, v)``.
    """
    batch, chunks, height, width, block = (int(extent) for extent in data.shape)
    _, kernel_h, kernel_w, _ = (int(extent) for extent in weight.shape)
    top, left, bottom, right = padding
    out_h = output_extent(height, kernel_h, strides[0], top, bottom, dilation[0])
    out_w = output_extent(width, kernel_w, strides[1], left, right, dilation[1])
    source, full_w = _padded_source(data, padding, out_w, computed_width, strides[1])
    kh = te.reduce_axis((0, kernel_h), "kh")
    kw = te.reduce_axis((0, kernel_w), "kw")

    def element(n: tirx.Var, c: tirx.Var, h: tirx.Var, w: tirx.Var, i: tirx.Var) -> tirx.PrimExpr:
        row, column = h * strides[0] + kh * dilation[0], w * strides[1] + kw * dilation[1]
        return te.sum(source[n, c, row, column, i] * weight[c, kh, kw, i], [kh, kw])

    shape = (batch, chunks, out_h, full_w, block)
    result = te.compute(shape, element, name="depthwise_conv2d", attrs={KERNEL_ATTRIBUTE: "depthwise_conv2d"})
    return crop_width(result, out_w)


def _padded_source(
    data: te.Tensor, padding: Sequence[int], out_w: int, computed_width: int, stride_w: int
) -> tuple[te.Tensor, int]:
    """Pad the input so that ``computed_width`` output columns can be computed; gives it and that width."""
    top, left, bottom, right = padding
    full_w = max(out_w, computed_width)
    right += (full_w - out_w) * stride_w
    padded = pad_spatial(data, (top, left, bottom, right)) if top or left or bottom or right > 0 else data
    return padded, full_w


def crop_width(result: te.Tensor, out_w: int) -> te.Tensor:
    """Drop the columns of a blocked tensor beyond ``out_w``."""
    if int(result.shape[3]) == out_w:
        return result
    shape = (*result.shape[:3], out_w, result.shape[4])
    return te.compute(shape, lambda *index: result(*index), name="crop")


def pack_weight(weight: np.ndarray, block_in: int, block_out: int, groups: int = 1) -> np.ndarray:
    """Pack OIHW weights to ``(O / vo, I / vi, KH, KW, vi, vo)``; channels that fill up a block are zero.

    ``I`` is the number of input channels of one group. With groups, ``O / groups`` must be a multiple of ``block_out``.
    """
    out_channels, in_channels, kernel_h, kernel_w = weight.shape
    if groups > 1 and (out_channels // groups % block_out or in_channels % block_in):
        raise ValueError(f"{groups} groups of {in_channels} -> {out_channels // groups} channels do not fill blocks")
    out_chunks, in_chunks = -(-out_channels // block_out), -(-in_channels // block_in)
    padded = np.zeros((out_chunks * block_out, in_chunks * block_in, kernel_h, kernel_w), weight.dtype)
    padded[:out_channels, :in_channels] = weight
    tiled = padded.reshape(out_chunks, block_out, in_chunks, block_in, kernel_h, kernel_w)
    return np.ascontiguousarray(tiled.transpose(0, 2, 4, 5, 3, 1))


def pack_depthwise_weight(weight: np.ndarray, block: int) -> np.ndarray:
    """Pack ``(C, 1, KH, KW)`` weights to ``(C / v, KH, KW, v)``; channels that fill up a block are zero."""
    channels, _, kernel_h, kernel_w = weight.shape
    chunks = -(-channels // block)
    padded = np.zeros((chunks * block, kernel_h, kernel_w), weight.dtype)
    padded[:channels] = weight[:, 0]
    return np.ascontiguousarray(padded.reshape(chunks, block, kernel_h, kernel_w).transpose(0, 2, 3, 1))
