"""Convolutions over the blocked layout whose pixels are computed one after another, as if they were one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvm import te, tirx
from tvm.ir import Expr

from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE
from tvm_ext.schedules.compute.bfloat16 import BITS, InnerSum, rounded, unpaired_shape
from tvm_ext.schedules.compute.convolution import blocks_read, output_extent
from tvm_ext.schedules.compute.layout import full, in_channels


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

    def moves(self, channels: int, block: int) -> int:
        """Count the copies of a block of channels at one pixel that make up the copy of an image."""
        return -(-channels // block) * self.column_taps * self.row_taps * self.pixels


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
    computed_chunks, in_chunks, *kernel, block_in, block_out = unpaired_shape(weight)
    rounds = str(weight.dtype) == BITS != str(data.dtype)
    strides, padding, dilation = ([int(item) for item in items] for items in (strides, padding, dilation))
    batch, _, height, width, _ = (int(extent) for extent in data.shape)
    out_h, out_w = (
        output_extent(*axis)
        for axis in zip((height, width), kernel, strides, padding[:2], padding[2:], dilation, strict=True)
    )
    copy = PixelCopy.of(kernel, strides, padding, dilation, (out_h, out_w), int(pixels))
    if copy is None:
        source = _round_by_pixel(data) if rounds else data
    else:
        source = _copy_by_pixel(data, copy, strides, padding, dilation, out_w, rounds)
    chunks_per_group = computed_chunks // groups
    read = blocks_read(source, block_in)
    ic = te.reduce_axis((0, in_chunks), "ic")
    kh, kw = te.reduce_axis((0, kernel[0]), "kh"), te.reduce_axis((0, kernel[1]), "kw")
    sums = InnerSum.of(weight)

    def element(n: tirx.Var, oc: tirx.Var, _row: tirx.Var, pixel: tirx.Var, oi: tirx.Var) -> Expr:
        chunk = ic if groups == 1 else oc // chunks_per_group * in_chunks + ic

        def value(ii: Expr) -> Expr:
            if copy is None and not rounds:
                return read(n, chunk, (pixel // out_w, pixel % out_w), ii)
            if copy is None:
                return read(n, chunk, (0, 0, pixel), ii)
            if copy.row_taps > 1:
                return read(n, chunk, (kh, kw, pixel), ii)
            return read(n, chunk, (0, kw, pixel + kh * (dilation[0] * out_w)), ii)

        return te.sum(sums.product(value, weight, (oc, ic, kh, kw), oi), [ic, kh, kw, *sums.axes])

    attrs = {KERNEL_ATTRIBUTE: "conv_pixels"}
    flat = te.compute((batch, computed_chunks, 1, int(pixels), block_out), element, name="conv", attrs=attrs)
    chunks = -(-out_channels // block_out) or computed_chunks

    def image(*index: tirx.Var) -> Expr:
        n, c, h, w, i = index
        value = flat[n, c, 0, h * out_w + w, i]
        return value if full(out_channels, block_out) else in_channels(index, value, out_channels, flat)

    return te.compute((batch, chunks, out_h, out_w, block_out), image, name="image")


def _round_by_pixel(data: te.Tensor) -> te.Tensor:
    """Round an image to bfloat16; its pixels stand one after another."""
    batch, chunks, height, width, block = (int(extent) for extent in data.shape)
    return te.compute(
        (batch, chunks, 1, 1, height * width, block),
        lambda n, c, _kh, _kw, pixel, i: rounded(data[n, c, pixel // width, pixel % width, i]),
        name="pad",
        attrs={KERNEL_ATTRIBUTE: "pad"},
    )


def _copy_by_pixel(
    data: te.Tensor,
    copy: PixelCopy,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    out_w: int,
    rounds: bool,
) -> te.Tensor:
    batch, chunks, height, width, block = (int(extent) for extent in data.shape)

    def element(n: tirx.Var, c: tirx.Var, kh: tirx.Var, kw: tirx.Var, pixel: tirx.Var, i: tirx.Var) -> Expr:
        row = pixel // out_w * strides[0] + kh * dilation[0] - padding[0]
        column = pixel % out_w * strides[1] + kw * dilation[1] - padding[1]
        inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
        value = data[n, c, row, column, i]
        if rounds:
            return tirx.if_then_else(inside, rounded(value), tirx.const(0, BITS))
        return tirx.if_then_else(inside, value, tirx.const(0, data.dtype))

    shape = (batch, chunks, copy.row_taps, copy.column_taps, copy.pixels, block)
    return te.compute(shape, element, name="pad", attrs={KERNEL_ATTRIBUTE: "pad"})
