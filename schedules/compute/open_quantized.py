"""Convolutions of 8-bit integers over the blocked layout whose batch, rows or columns are only known at run time.

What they compute stands here; how, is written out by :mod:`tvm_ext.schedules.cpu.open_integer`. Images are padded
already, and hold the type that is multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te, tirx
from tvm.ir import Expr

from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE
from tvm_ext.schedules.compute.layout import extents
from tvm_ext.schedules.compute.open_convolution import GEOMETRY_ATTRIBUTE, open_extent

OPEN_INTEGER, OPEN_INTEGER_DEPTHWISE = "open_conv2d_int8", "open_depthwise_conv2d_int8"
"""What blocks of these kernels are annotated as."""


def open_convolution_int8(
    data: te.Tensor,
    weight: te.Tensor,
    strides: Sequence[int],
    dilation: Sequence[int],
    pack: int,
    groups: int = 1,
    small: bool = False,
) -> te.Tensor:
    """Convolve a blocked tensor, exactly, in int32.

    Parameters
    ----------
    data : te.Tensor
        Shape ``(N, CI / vi, H, W, vi)``.
    weight : te.Tensor
        Shape ``(CO / vo, CI / groups / vi, KH, KW, vi / p, vo * p)``: the weights of
        :func:`tvm_ext.schedules.compute.quantized.pack_weight_int8`, the last two axes as one.
    strides, dilation : sequence of two int
    pack : int
        ``p``: products of an instruction.
    groups : int
        ``CI / groups`` and ``CO / groups`` must be multiples of ``vi`` and ``vo`` when it is not 1.
    small : bool
        Whether the weights are such that sums of two products stay within 16 bits.

    Returns
    -------
    te.Tensor
        Shape ``(N, CO / vo, OH, OW, vo)``, int32.
    """
    chunks, in_chunks, *kernel, packs, width = (int(extent) for extent in weight.shape)
    ic, kh, kw, ip, ik = (
        te.reduce_axis((0, extent), name)
        for extent, name in zip((in_chunks, *kernel, packs, pack), ("ic", "kh", "kw", "ip", "ik"), strict=True)
    )

    def element(n: tirx.Var, oc: tirx.Var, h: tirx.Var, w: tirx.Var, oi: tirx.Var) -> Expr:
        chunk = ic if groups == 1 else oc // (chunks // groups) * in_chunks + ic
        row, column = h * strides[0] + kh * dilation[0], w * strides[1] + kw * dilation[1]
        value = data[n, chunk, row, column, ip * pack + ik].astype("int32")
        return te.sum(value * weight[oc, ic, kh, kw, ip, oi * pack + ik].astype("int32"), [ic, kh, kw, ip, ik])

    batch, _, *spatial, _ = extents(data)
    axes = zip(spatial, kernel, strides, dilation, strict=True)
    sizes = [open_extent(extent, taps, stride, 0, 0, step) for extent, taps, stride, step in axes]
    return te.compute(
        (batch, chunks, *sizes, width // pack),
        element,
        name="conv2d_int8",
        attrs={KERNEL_ATTRIBUTE: OPEN_INTEGER, GEOMETRY_ATTRIBUTE: [*strides, *dilation, 0, 0, groups, int(small)]},
    )


def open_depthwise_int8(
    data: te.Tensor, weight: te.Tensor, strides: Sequence[int], dilation: Sequence[int], pack: int, kernel_w: int
) -> te.Tensor:
    """Convolve every channel of a blocked tensor with its own filter, exactly, in int32.

    Parameters
    ----------
    data : te.Tensor
        Shape ``(N, C / v, H, W, v)``; the last columns are met by no tap but those that fill up the last pack.
    weight : te.Tensor
        Shape ``(C / v, 1, KH, ceil(KW / p), 1, v * p)``: the weights of
        :func:`tvm_ext.schedules.compute.quantized.pack_depthwise_weight_int8`, with axes of one block of the input and
        of one step, as all convolutions have them, the last two axes as one.
    strides, dilation : sequence of two int
    pack : int
        ``p``: neighbouring taps of a row that an instruction takes.
    kernel_w : int
        Taps along W, without those that fill up the last pack.

    Returns
    -------
    te.Tensor
        Shape ``(N, C / v, OH, OW, v)``, int32.
    """
    chunks, _, kernel_h, packs, _, width = (int(extent) for extent in weight.shape)
    kh, kp, kk = (
        te.reduce_axis((0, extent), name)
        for extent, name in zip((kernel_h, packs, pack), ("kh", "kp", "kk"), strict=True)
    )

    def element(n: tirx.Var, c: tirx.Var, h: tirx.Var, w: tirx.Var, i: tirx.Var) -> Expr:
        row, column = h * strides[0] + kh * dilation[0], w * strides[1] + (kp * pack + kk) * dilation[1]
        value = data[n, c, row, column, i].astype("int32")
        return te.sum(value * weight[c, 0, kh, kp, 0, i * pack + kk].astype("int32"), [kh, kp, kk])

    batch, _, height, columns, _ = extents(data)
    sizes = (
        open_extent(height, kernel_h, strides[0], 0, 0, dilation[0]),
        open_extent(columns, kernel_w, strides[1], 0, kernel_w - packs * pack, dilation[1]),
    )
    return te.compute(
        (batch, chunks, *sizes, width // pack),
        element,
        name="depthwise_conv2d_int8",
        attrs={KERNEL_ATTRIBUTE: OPEN_INTEGER_DEPTHWISE, GEOMETRY_ATTRIBUTE: [*strides, *dilation, 0, 0, chunks]},
    )


def widen(data: te.Tensor, dtype: str, offset: int) -> te.Tensor:
    """Bring elements of 8 bits to the type that is multiplied, ``offset`` subtracted."""
    return te.compute(
        data.shape,
        lambda *index: (data(*index).astype("int16") - tirx.const(offset, "int16")).astype(dtype),
        name="widen",
    )
