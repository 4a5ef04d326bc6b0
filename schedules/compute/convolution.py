"""Convolutions over the blocked layout NC(D)HW{v}c, with weights packed to match.

A tensor of ``C`` channels in blocks of ``v`` has shape ``(N, ceil(C / v), [D,] H, W, v)``; plain layout is ``v = 1``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.ir import Expr

from tvm_ext.schedules.compute.layout import full, in_channels

KERNEL_ATTRIBUTE = "tvm_ext.kernel"
"""Block annotation that tells the schedule rules what a block computes."""


def output_extent(extent: int, kernel: int, stride: int, before: int, after: int, dilation: int) -> int:
    """Extent of a convolution's or pooling's output along one axis."""
    return (extent + before + after - dilation * (kernel - 1) - 1) // stride + 1


def pad_spatial(data: te.Tensor, padding: Sequence[int], value: float = 0.0) -> te.Tensor:
    """Pad the spatial axes of a blocked tensor.

    Parameters
    ----------
    padding : sequence of int
        Before each spatial axis, then after each of them; negative numbers cut off.
    """
    extents = [int(extent) for extent in data.shape]
    spatial = extents[2:-1]
    before, after = padding[: len(spatial)], padding[len(spatial) :]

    def element(n: tirx.Var, c: tirx.Var, *rest: tirx.Var) -> Expr:
        positions = [position - first for position, first in zip(rest[:-1], before, strict=True)]
        checks = []
        for position, extent, first, last in zip(positions, spatial, before, after, strict=True):
            checks += [position >= 0] if first > 0 else []
            checks += [position < extent] if last > 0 else []
        value_there = data[n, c, *positions, rest[-1]]
        return (
            tirx.if_then_else(tirx.all(*checks), value_there, tirx.const(value, data.dtype)) if checks else value_there
        )

    padded = [extent + first + last for extent, first, last in zip(spatial, before, after, strict=True)]
    shape = (*extents[:2], *padded, extents[-1])
    return te.compute(shape, element, name="pad", attrs={KERNEL_ATTRIBUTE: "pad"})


def convolution(
    data: te.Tensor,
    weight: te.Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
    computed_width: int = 0,
    out_channels: int = 0,
) -> te.Tensor:
    """Convolve a blocked tensor with packed weights (see :func:`pack_weight`) over two or three spatial axes.

    Parameters
    ----------
    data : te.Tensor
        Shape ``(N, CI / vi, [D,] H, W, vi)``.
    weight : te.Tensor
        Shape ``(CO / vo, CI / groups / vi, [KD,] KH, KW, vi, vo)``.
    strides, dilation : sequence of int
        One for each spatial axis.
    padding : sequence of int
        Before each spatial axis, then after each of them.
    groups : int
        ``CI / groups`` and ``CO / groups`` must be multiples of ``vi`` and ``vo`` when it is not 1.
    computed_width : int
        Output columns to compute, at least ``OW``; those beyond ``OW`` are dropped.
    out_channels : int
        ``CO`` where it does not fill the blocks of the weights, or where these have more blocks; 0: all.

    Returns
    -------
    te.Tensor
        Shape ``(N, ceil(CO / vo), [OD,] OH, OW, vo)``; lanes beyond ``CO`` are zero.
    """
    computed_chunks, in_chunks, *kernel, block_in, block_out = (int(extent) for extent in weight.shape)
    source, spatial, out_w = _padded_source(data, kernel, strides, padding, dilation, computed_width)
    chunks_per_group = computed_chunks // groups
    ic = te.reduce_axis((0, in_chunks), "ic")
    taps = [te.reduce_axis((0, extent), f"k{axis}") for extent, axis in zip(kernel, "dhw"[-len(kernel) :], strict=True)]
    ii = te.reduce_axis((0, block_in), "ii")

    def element(n: tirx.Var, oc: tirx.Var, *rest: tirx.Var) -> Expr:
        chunk = ic if groups == 1 else oc // chunks_per_group * in_chunks + ic
        positions = _positions(rest[:-1], taps, strides, dilation)
        return te.sum(source[n, chunk, *positions, ii] * weight[oc, ic, *taps, ii, rest[-1]], [ic, *taps, ii])

    shape = (int(data.shape[0]), computed_chunks, *spatial, block_out)
    result = te.compute(shape, element, name="conv", attrs={KERNEL_ATTRIBUTE: "conv"})
    return crop(result, out_w, out_channels)


@dataclass(frozen=True)
class PixelCopy:
    """How an input is copied so that the pixels of the output, one after another, read pixels one after another.

    The copy holds the columns that each tap of a row of taps meets, and where rows have a stride, the rows that each
    tap of a column meets.

    Attributes
    ----------
    column_taps, row_taps : int
        How often columns and rows are held.
    pixels : int
        Pixels of each of them.
    """

    column_taps: int
    row_taps: int
    pixels: int

    @staticmethod
    def of(
        kernel: Sequence[int],
        strides: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        size: Sequence[int],
        pixels: int,
    ) -> PixelCopy | None:
        """Describe the copy for ``pixels`` output pixels of an image of ``size`` rows and columns; None: no copy."""
        taps = prod(kernel)
        if taps == 1 and not any(padding) and tuple(strides) == (1, 1) and pixels == prod(size):
            return None
        held = kernel[0] if strides[0] > 1 else 1
        behind = 0 if held > 1 else (kernel[0] - 1) * dilation[0] * size[1]
        return PixelCopy(kernel[1], held, pixels + behind)

    def bytes(self, channels: int) -> int:
        """Bytes of the copy of an image of float32."""
        return 4 * channels * self.column_taps * self.row_taps * self.pixels


def pixel_convolution(
    data: te.Tensor,
    weight: te.Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    pixels: int,
    groups: int = 1,
    out_channels: int = 0,
) -> te.Tensor:
    """Convolve over two spatial axes, all pixels of an image one after another as if they were one row.

    Parameters
    ----------
    pixels : int
        Pixels to compute, at least ``OH * OW``; those beyond are dropped.
    data, weight, strides, padding, dilation, groups, out_channels
        As for :func:`convolution`.

    Returns
    -------
    te.Tensor
        Shape ``(N, ceil(CO / vo), OH, OW, vo)``; lanes beyond ``CO`` are zero.
    """
    computed_chunks, in_chunks, *kernel, block_in, block_out = (int(extent) for extent in weight.shape)
    strides, padding, dilation = ([int(item) for item in items] for items in (strides, padding, dilation))
    batch, _, height, width, _ = (int(extent) for extent in data.shape)
    out_h, out_w = (
        output_extent(*axis)
        for axis in zip((height, width), kernel, strides, padding[:2], padding[2:], dilation, strict=True)
    )
    copy = PixelCopy.of(kernel, strides, padding, dilation, (out_h, out_w), int(pixels))
    source = data if copy is None else _copy_by_pixel(data, copy, strides, padding, dilation, out_w)
    chunks_per_group = computed_chunks // groups
    ic = te.reduce_axis((0, in_chunks), "ic")
    kh, kw = te.reduce_axis((0, kernel[0]), "kh"), te.reduce_axis((0, kernel[1]), "kw")
    ii = te.reduce_axis((0, block_in), "ii")

    def element(n: tirx.Var, oc: tirx.Var, _row: tirx.Var, pixel: tirx.Var, oi: tirx.Var) -> Expr:
        chunk = ic if groups == 1 else oc // chunks_per_group * in_chunks + ic
        if copy is None:
            value = source[n, chunk, pixel // out_w, pixel % out_w, ii]
        elif copy.row_taps > 1:
            value = source[n, chunk, kw, kh, pixel, ii]
        else:
            value = source[n, chunk, kw, 0, pixel + kh * (dilation[0] * out_w), ii]
        return te.sum(value * weight[oc, ic, kh, kw, ii, oi], [ic, kh, kw, ii])

    attrs = {KERNEL_ATTRIBUTE: "conv_pixels"}
    flat = te.compute((batch, computed_chunks, 1, int(pixels), block_out), element, name="conv", attrs=attrs)
    chunks = -(-out_channels // block_out) or computed_chunks

    def image(*index: tirx.Var) -> Expr:
        n, c, h, w, i = index
        value = flat[n, c, 0, h * out_w + w, i]
        return value if full(out_channels, block_out) else in_channels(index, value, out_channels, flat)

    return te.compute((batch, chunks, out_h, out_w, block_out), image, name="image")


def _copy_by_pixel(
    data: te.Tensor,
    copy: PixelCopy,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    out_w: int,
) -> te.Tensor:
    batch, chunks, height, width, block = (int(extent) for extent in data.shape)

    def element(n: tirx.Var, c: tirx.Var, kw: tirx.Var, kh: tirx.Var, pixel: tirx.Var, i: tirx.Var) -> Expr:
        row = pixel // out_w * strides[0] + kh * dilation[0] - padding[0]
        column = pixel % out_w * strides[1] + kw * dilation[1] - padding[1]
        inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
        return tirx.if_then_else(inside, data[n, c, row, column, i], tirx.const(0, data.dtype))

    shape = (batch, chunks, copy.column_taps, copy.row_taps, copy.pixels, block)
    return te.compute(shape, element, name="pad", attrs={KERNEL_ATTRIBUTE: "pad"})


def depthwise_convolution(
    data: te.Tensor,
    weight: te.Tensor,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    computed_width: int = 0,
) -> te.Tensor:
    """Convolve every channel with its own filter, over two or three spatial axes.

    Parameters
    ----------
    data : te.Tensor
        Shape ``(N, C / v, [D,] H, W, v)``.
    weight : te.Tensor
        Shape ``(C / v, [KD,] KH, KW, v)``; see :func:`pack_depthwise_weight`.
    strides, padding, dilation, computed_width
        As for :func:`convolution`.

    Returns
    -------
    te.Tensor
        Shape ``(N, C / v, [OD,] OH, OW, v)``.
    """
    chunks, *kernel, block = (int(extent) for extent in weight.shape)
    source, spatial, out_w = _padded_source(data, kernel, strides, padding, dilation, computed_width)
    taps = [te.reduce_axis((0, extent), f"k{axis}") for extent, axis in zip(kernel, "dhw"[-len(kernel) :], strict=True)]

    def element(n: tirx.Var, c: tirx.Var, *rest: tirx.Var) -> Expr:
        positions = _positions(rest[:-1], taps, strides, dilation)
        return te.sum(source[n, c, *positions, rest[-1]] * weight[c, *taps, rest[-1]], taps)

    shape = (int(data.shape[0]), chunks, *spatial, block)
    result = te.compute(shape, element, name="depthwise_conv", attrs={KERNEL_ATTRIBUTE: "depthwise_conv"})
    return crop(result, out_w)


def transposed_convolution(
    data: te.Tensor,
    weight: te.Tensor,
    padding: Sequence[int],
    out_shape: Sequence[int],
    computed_width: int = 0,
    out_channels: int = 0,
) -> te.Tensor:
    """Transpose-convolve a blocked tensor: all phases of the stride, then spread over space.

    Parameters
    ----------
    data : te.Tensor
        Shape ``(N, CI / vi, H, W, vi)``.
    weight : te.Tensor
        Shape ``(sh, sw, CO / vo, CI / vi, JH, JW, vi, vo)``; see :func:`transposed_as_convolution`.
    padding : sequence of int
        Of the convolution of stride 1 that computes a phase.
    out_shape : sequence of two int
        ``OH, OW``: the number of positions of a phase times ``sh`` and ``sw``.
    computed_width : int
        Positions along a row to compute, at least ``OW / sw``; those beyond are dropped.
    out_channels : int
        ``CO`` where it does not fill the blocks of the weights; 0: all.

    Returns
    -------
    te.Tensor
        Shape ``(N, CO / vo, OH, OW, vo)``; ``[.., h, w, ..]`` is phase ``(h % sh, w % sw)`` at ``(h / sh, w / sw)``.
        Lanes beyond ``CO`` are zero.
    """
    scale_h, scale_w, out_chunks, in_chunks, *kernel, block_in, block_out = (int(extent) for extent in weight.shape)
    source, spatial, _ = _padded_source(data, kernel, (1, 1), padding, (1, 1), computed_width)
    ic = te.reduce_axis((0, in_chunks), "ic")
    kh, kw = te.reduce_axis((0, kernel[0]), "kh"), te.reduce_axis((0, kernel[1]), "kw")
    ii = te.reduce_axis((0, block_in), "ii")
    batch = int(data.shape[0])
    phases = te.compute(
        (batch, scale_h, scale_w, out_chunks, *spatial, block_out),
        lambda n, a, b, oc, h, w, oi: te.sum(
            source[n, ic, h + kh, w + kw, ii] * weight[a, b, oc, ic, kh, kw, ii, oi], [ic, kh, kw, ii]
        ),
        name="conv",
        attrs={KERNEL_ATTRIBUTE: "conv_transpose"},
    )

    def spread(*index: tirx.Var) -> Expr:
        n, c, h, w, i = index
        value = phases[n, h % scale_h, w % scale_w, c, h // scale_h, w // scale_w, i]
        return value if full(out_channels, block_out) else in_channels(index, value, out_channels, phases)

    return te.compute((batch, out_chunks, *out_shape, block_out), spread, name="spread")


def crop(result: te.Tensor, out_w: int, channels: int = 0) -> te.Tensor:
    """Drop the columns of a blocked tensor beyond ``out_w``, and what is beyond ``channels`` if that is not 0.

    Blocks beyond the channels are left out. Lanes beyond them in the last block become zero: the sums of products with
    weights of zero that stand there are NaN where an input is infinite or NaN.
    """
    block = int(result.shape[-1])
    chunks = -(-channels // block) or int(result.shape[1])
    if (int(result.shape[1]), int(result.shape[-2])) == (chunks, out_w) and full(channels, block):
        return result

    def element(*index: tirx.Var) -> Expr:
        value = result(*index)
        return value if full(channels, block) else in_channels(index, value, channels, result)

    return te.compute((result.shape[0], chunks, *result.shape[2:-2], out_w, block), element, name="crop")


def _positions(
    outputs: Sequence[Any], taps: Sequence[Any], strides: Sequence[int], dilation: Sequence[int]
) -> list[Any]:
    """Input positions that the taps of an output position read."""
    return [
        output * stride + tap * step for output, tap, stride, step in zip(outputs, taps, strides, dilation, strict=True)
    ]


def _padded_source(
    data: te.Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    computed_width: int,
) -> tuple[te.Tensor, list[int], int]:
    """Pad the input so that ``computed_width`` columns can be computed; gives it, the extents to compute, ``OW``."""
    rank = len(kernel)
    extents = [int(extent) for extent in data.shape[2:-1]]
    before, after = list(padding[:rank]), list(padding[rank:])
    spatial = [
        output_extent(*axis) for axis in zip(extents, kernel, strides, before, after, dilation, strict=True)
    ]  # fmt: skip
    out_w = spatial[-1]
    spatial[-1] = max(out_w, computed_width)
    after[-1] += (spatial[-1] - out_w) * strides[-1]
    needs_padding = any(before) or any(extra > 0 for extra in after)
    return pad_spatial(data, [*before, *after]) if needs_padding else data, spatial, out_w


def pack_weight(weight: np.ndarray, block_in: int, block_out: int, groups: int = 1) -> np.ndarray:
    """Pack OI(D)HW weights to ``(O / vo, I / vi, [KD,] KH, KW, vi, vo)``; channels that fill up a block are zero.

    ``I`` is the number of input channels of one group. With groups, ``O / groups`` must be a multiple of ``block_out``.
    """
    out_channels, in_channels, *kernel = weight.shape
    if groups > 1 and (out_channels // groups % block_out or in_channels % block_in):
        raise ValueError(f"{groups} groups of {in_channels} -> {out_channels // groups} channels do not fill blocks")
    out_chunks, in_chunks = -(-out_channels // block_out), -(-in_channels // block_in)
    padded = np.zeros((out_chunks * block_out, in_chunks * block_in, *kernel), weight.dtype)
    padded[:out_channels, :in_channels] = weight
    tiled = padded.reshape(out_chunks, block_out, in_chunks, block_in, *kernel)
    taps = range(4, 4 + len(kernel))
    return np.ascontiguousarray(tiled.transpose(0, 2, *taps, 3, 1))


def pack_depthwise_weight(weight: np.ndarray, block: int) -> np.ndarray:
    """Pack ``(C, 1, [KD,] KH, KW)`` weights to ``(C / v, [KD,] KH, KW, v)``; channels that fill up a block are zero."""
    channels, _, *kernel = weight.shape
    chunks = -(-channels // block)
    padded = np.zeros((chunks * block, *kernel), weight.dtype)
    padded[:channels] = weight[:, 0]
    return np.ascontiguousarray(np.moveaxis(padded.reshape(chunks, block, *kernel), 1, -1))


def transposed_as_convolution(
    weight: np.ndarray, strides: Sequence[int], padding: Sequence[int], out_shape: Sequence[int]
) -> tuple[np.ndarray, list[int], list[int]]:
    """Rewrite a transposed 2-D convolution as an ordinary one that computes all phases of the stride as channels.

    Output position ``s q + a`` (phase ``a``) only meets taps ``k`` with ``(a + p - k) % s == 0``; their inputs lie at
    ``q + (a + p - k) / s``. One window that covers the taps of all phases makes it a convolution of stride 1 with
    ``sh * sw * CO`` outputs, zeros standing for taps that a phase does not have.

    Parameters
    ----------
    weight : np.ndarray
        Shape ``(CI, CO, KH, KW)``.
    strides : sequence of two int
    padding : sequence of four int
        Top, left, bottom, right.
    out_shape : sequence of two int
        ``OH, OW`` of the transposed convolution.

    Returns
    -------
    tuple
        Weights ``(sh, sw, CO, CI, JH, JW)`` by phase; the first input offset of the window along each axis (the
        padding before is its negative); the number ``ceil(OH / sh), ceil(OW / sw)`` of positions to compute.
    """
    _, _, *kernel = weight.shape
    windows = []
    for axis in range(2):
        stride, before = strides[axis], padding[axis]
        offsets = {
            (phase, tap): (phase + before - tap) // stride
            for phase in range(stride)
            for tap in range(kernel[axis])
            if (phase + before - tap) % stride == 0
        }
        first, last = min(offsets.values(), default=0), max(offsets.values(), default=0)
        windows.append((offsets, first, last - first + 1))
    (rows, first_h, count_h), (columns, first_w, count_w) = windows
    in_channels, out_channels = weight.shape[:2]
    phases = np.zeros((*strides, out_channels, in_channels, count_h, count_w), weight.dtype)
    for (phase_h, tap_h), offset_h in rows.items():
        for (phase_w, tap_w), offset_w in columns.items():
            taps = weight[:, :, tap_h, tap_w].T
            phases[phase_h, phase_w, :, :, offset_h - first_h, offset_w - first_w] = taps
    counts = [-(-extent // stride) for extent, stride in zip(out_shape, strides, strict=True)]
    return phases, [first_h, first_w], counts
