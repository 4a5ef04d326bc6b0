"""Integer operators over the blocked layout NCHW{v}c: convolutions in int32, rounding to 8 bits and back.

Rounding is that of ONNX's QuantizeLinear: to the nearest integer, ties to the even one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE
from tvm_ext.schedules.compute.convolution import crop, output_extent, pad_spatial
from tvm_ext.schedules.compute.packed_weights import pack_depthwise_weight, pack_weight

SMALL_ATTRIBUTE = "tvm_ext.small_weights"
"""Stands at the block of a convolution whose sums of two products stay within 16 bits."""


def conv2d_int8(
    data: te.Tensor,
    weight: te.Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    zero_point: int = 0,
    groups: int = 1,
    computed_width: int = 0,
    offset: int = 0,
    small: bool = False,
) -> te.Tensor:
    """Convolve uint8 activations with packed weights, exactly, in int32.

    Parameters
    ----------
    data : te.Tensor
        Shape ``(N, CI / vi, H, W, vi)``, uint8.
    weight : te.Tensor
        Shape ``(CO / vo, CI / groups / vi, KH, KW, vi / p, vo, p)``, int8 or int16; see :func:`pack_weight_int8`.
    strides, dilation : sequence of two int
    padding : sequence of four int
        Top, left, bottom, right.
    zero_point : int
        What padded positions hold.
    groups : int
        ``CI / groups`` and ``CO / groups`` must be multiples of ``vi`` and ``vo`` when it is not 1.
    computed_width : int
        Output columns to compute, at least ``OW``; those beyond ``OW`` are dropped.
    offset : int
        Subtracted from every activation: 128 for machines that multiply signed bytes only.
    small : bool
        Whether the weights are such that sums of two products stay within 16 bits.

    Returns
    -------
    te.Tensor
        Shape ``(N, CO / vo, OH, OW, vo)``, int32.
    """
    batch = int(data.shape[0])
    out_chunks, in_chunks, kernel_h, kernel_w, packs, block_out, pack = (int(extent) for extent in weight.shape)
    out_h, out_w = _output_extents(data, (kernel_h, kernel_w), strides, padding, dilation)
    full_w = max(out_w, computed_width)
    dtype = "int16" if weight.dtype == "int16" else "int8" if offset else "uint8"
    window = [(kernel_h - 1) * dilation[0], (kernel_w - 1) * dilation[1]]
    extents = [(out_h - 1) * strides[0] + window[0] + 1, (full_w - 1) * strides[1] + window[1] + 1]
    source = _operand(data, padding[:2], extents, zero_point, dtype, offset)
    chunks_per_group = out_chunks // groups
    ic = te.reduce_axis((0, in_chunks), "ic")
    kh = te.reduce_axis((0, kernel_h), "kh")
    kw = te.reduce_axis((0, kernel_w), "kw")
    ip = te.reduce_axis((0, packs), "ip")
    ik = te.reduce_axis((0, pack), "ik")

    def element(n: Any, oc: Any, h: Any, w: Any, oi: Any) -> Any:
        chunk = ic if groups == 1 else oc // chunks_per_group * in_chunks + ic
        row, column = h * strides[0] + kh * dilation[0], w * strides[1] + kw * dilation[1]
        value = source[n, chunk, row, column, ip * pack + ik].astype("int32")
        return te.sum(value * weight[oc, ic, kh, kw, ip, oi, ik].astype("int32"), [ic, kh, kw, ip, ik])

    shape = (batch, out_chunks, out_h, full_w, block_out)
    attributes = {KERNEL_ATTRIBUTE: "conv2d_int8", **({SMALL_ATTRIBUTE: True} if small else {})}
    result = te.compute(shape, element, name="conv2d_int8", attrs=attributes)
    return crop(result, out_w)


def depthwise_conv2d_int8(
    data: te.Tensor,
    weight: te.Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    kernel_w: int = 0,
    zero_point: int = 0,
    computed_width: int = 0,
) -> te.Tensor:
    """Convolve every channel of uint8 activations with its own filter, exactly, in int32.

    Parameters
    ----------
    data : te.Tensor
        Shape ``(N, C / v, H, W, v)``, uint8.
    weight : te.Tensor
        Shape ``(C / v, KH, ceil(KW / p), v, p)``, int8; see :func:`pack_depthwise_weight_int8`.
    kernel_w : int
        Taps along W, without those that fill up the last pack.
    strides, padding, dilation, zero_point, computed_width
        As for :func:`conv2d_int8`.

    Returns
    -------
    te.Tensor
        Shape ``(N, C / v, OH, OW, v)``, int32.
    """
    batch, chunks, *_, block = (int(extent) for extent in data.shape)
    _, kernel_h, packs, _, pack = (int(extent) for extent in weight.shape)
    out_h, out_w = _output_extents(data, (kernel_h, kernel_w), strides, padding, dilation)
    full_w = max(out_w, computed_width)
    window = [(kernel_h - 1) * dilation[0], (packs * pack - 1) * dilation[1]]
    extents = [(out_h - 1) * strides[0] + window[0] + 1, (full_w - 1) * strides[1] + window[1] + 1]
    source = _operand(data, padding[:2], extents, zero_point, "uint8", 0)
    kh = te.reduce_axis((0, kernel_h), "kh")
    kp = te.reduce_axis((0, packs), "kp")
    kk = te.reduce_axis((0, pack), "kk")

    def element(n: Any, c: Any, h: Any, w: Any, i: Any) -> Any:
        row, column = h * strides[0] + kh * dilation[0], w * strides[1] + (kp * pack + kk) * dilation[1]
        value = source[n, c, row, column, i].astype("int32")
        return te.sum(value * weight[c, kh, kp, i, kk].astype("int32"), [kh, kp, kk])

    shape = (batch, chunks, out_h, full_w, block)
    name = "depthwise_conv2d_int8"
    return crop(te.compute(shape, element, name=name, attrs={KERNEL_ATTRIBUTE: name}), out_w)


def _output_extents(
    data: te.Tensor, kernel: Sequence[int], strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> tuple[int, int]:
    """Rows and columns of a convolution's output."""
    height, width = int(data.shape[2]), int(data.shape[3])
    top, left, bottom, right = padding
    return (
        output_extent(height, kernel[0], strides[0], top, bottom, dilation[0]),
        output_extent(width, kernel[1], strides[1], left, right, dilation[1]),
    )


def _operand(
    data: te.Tensor, before: Sequence[int], extents: Sequence[int], zero_point: int, dtype: str, offset: int
) -> te.Tensor:
    """Pad the input to ``extents`` rows and columns and bring it to the type that is multiplied."""
    after = [extent - int(have) - first for extent, have, first in zip(extents, data.shape[2:4], before, strict=True)]
    padded = pad_spatial(data, [*before, *after], zero_point) if any(before) or max(after) > 0 else data
    if dtype == data.dtype:
        return padded
    return te.compute(
        padded.shape,
        lambda *index: (padded(*index).astype("int16") - tirx.const(offset, "int16")).astype(dtype),
        name="widen",
        attrs={KERNEL_ATTRIBUTE: "pad"},
    )


def to_integer(value: Any, low: int, high: int, zero_point: int, dtype: str) -> Any:
    """Round a float32 expression to the nearest integer (ties to even), add ``zero_point``, saturate."""
    # Large values must not reach the conversion, which turns them into the least int32; the least ones may.
    bounded = tirx.min(value, tirx.const(float(high - zero_point), "float32"))
    rounded = tirx.call_llvm_pure_intrin("int32", "llvm.lrint", bounded)
    return tirx.max(rounded + zero_point if zero_point else rounded, tirx.const(low, "int32")).astype(dtype)


def quantize(data: te.Tensor, scale: float, zero_point: int, dtype: str) -> te.Tensor:
    """Quantise a float32 tensor of any shape with one scale; a scale of 1 rounds only."""
    limits = np.iinfo(dtype)

    def element(*index: Any) -> Any:
        value = data(*index)
        scaled = value if scale == 1.0 else value / tirx.const(scale, "float32")
        return to_integer(scaled, int(limits.min), int(limits.max), zero_point, dtype)

    return te.compute(data.shape, element, name="quantize")


def dequantize(data: te.Tensor, scale: float, zero_point: int) -> te.Tensor:
    """Give the float32 values of a quantised tensor of any shape with one scale."""
    return te.compute(
        data.shape,
        lambda *index: (data(*index).astype("int32") - zero_point).astype("float32") * tirx.const(scale, "float32"),
        name="dequantize",
    )


def global_sum(data: te.Tensor) -> te.Tensor:
    """Sum over H and W in int32: ``(N, C / v, H, W, v)`` to ``(N, C / v, 1, 1, v)``."""
    batch, chunks, height, width, block = (int(extent) for extent in data.shape)
    h = te.reduce_axis((0, height), "h")
    w = te.reduce_axis((0, width), "w")
    return te.compute(
        (batch, chunks, 1, 1, block),
        lambda n, c, _h, _w, i: te.sum(data[n, c, h, w, i].astype("int32"), [h, w]),
        name="global_sum",
        attrs={KERNEL_ATTRIBUTE: "global_average"},
    )


def pack_weight_int8(
    weight: np.ndarray, block_in: int, block_out: int, pack: int, dtype: str, groups: int = 1
) -> np.ndarray:
    """Pack OIHW weights to ``(O / vo, I / vi, KH, KW, vi / p, vo, p)``; channels that fill up a block are zero."""
    packed = pack_weight(weight, block_in, block_out, groups).astype(dtype)
    out_chunks, in_chunks, kernel_h, kernel_w, _, _ = packed.shape
    split = packed.reshape(out_chunks, in_chunks, kernel_h, kernel_w, block_in // pack, pack, block_out)
    return np.ascontiguousarray(np.swapaxes(split, -1, -2))


def pack_depthwise_weight_int8(weight: np.ndarray, block: int, pack: int) -> np.ndarray:
    """Pack ``(C, 1, KH, KW)`` weights to ``(C / v, KH, ceil(KW / p), v, p)``, filled up with zeros."""
    missing = -weight.shape[3] % pack
    packed = pack_depthwise_weight(np.pad(weight, [(0, 0), (0, 0), (0, 0), (0, missing)]), block)
    chunks, kernel_h, taps, _ = packed.shape
    split = packed.reshape(chunks, kernel_h, taps // pack, pack, block)
    return np.ascontiguousarray(np.swapaxes(split, -1, -2))
