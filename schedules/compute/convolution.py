"""Convolutions over the blocked layout NC(D)HW{v}c, with weights packed to match.

A tensor of ``C`` channels in blocks of ``v`` has shape ``(N, ceil(C / v), [D,] H, W, v)``; plain layout is ``v = 1``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx
from tvm.ir import Expr

from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE
from tvm_ext.schedules.compute.bfloat16 import BITS, InnerSum, rounded, unpaired_shape
from tvm_ext.schedules.compute.layout import full, in_channels


def output_extent(extent: int, kernel: int, stride: int, before: int, after: int, dilation: int) -> int:
    """Extent of a convolution's or pooling's output along one axis."""
    return (extent + before + after - dilation * (kernel - 1) - 1) // stride + 1


def pad_spatial(data: te.Tensor, padding: Sequence[int], value: float = 0.0, rounds: bool = False) -> te.Tensor:
    """Pad the spatial axes of a blocked tensor.

    Parameters
    ----------
    padding : sequence of int
        Before each spatial axis, then after each of them; negative numbers cut off.
    rounds : bool
        Whether the result is rounded to the bits of bfloat16.
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
        if rounds:
            value_there = rounded(value_there)
        filling = tirx.const(int(value) if data.dtype == BITS else value, BITS if rounds else data.dtype)
        return tirx.if_then_else(tirx.all(*checks), value_there, filling) if checks else value_there

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
        Shape ``(CO / vo, CI / groups / vi, [KD,] KH, KW, vi, vo)``; or of bfloat16 in pairs, with ``vi / 2, vo, 2`` at
        the end: data of float32 is then rounded, too, as it is copied; it may be bfloat16 already. Their ``vi`` may be
        a part of that of the data.
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
    computed_chunks, in_chunks, *kernel, block_in, block_out = (int(extent) for extent in unpaired_shape(weight))
    rounds = str(weight.dtype) == BITS != str(data.dtype)
    source, spatial, out_w = padded_source(data, kernel, strides, padding, dilation, computed_width, rounds)
    chunks_per_group = computed_chunks // groups
    read = blocks_read(source, block_in)
    ic = te.reduce_axis((0, in_chunks), "ic")
    taps = [te.reduce_axis((0, extent), f"k{axis}") for extent, axis in zip(kernel, "dhw"[-len(kernel) :], strict=True)]
    sums = InnerSum.of(weight)

    def element(n: tirx.Var, oc: tirx.Var, *rest: tirx.Var) -> Expr:
        chunk = ic if groups == 1 else oc // chunks_per_group * in_chunks + ic
        positions = _positions(rest[:-1], taps, strides, dilation)
        value = sums.product(lambda ii: read(n, chunk, positions, ii), weight, (oc, ic, *taps), rest[-1])
        return te.sum(value, [ic, *taps, *sums.axes])

    shape = (int(data.shape[0]), computed_chunks, *spatial, block_out)
    result = te.compute(shape, element, name="conv", attrs={KERNEL_ATTRIBUTE: "conv"})
    return crop(result, out_w, out_channels)


def blocks_read(source: te.Tensor, block: int) -> Callable[[Expr, Expr, Sequence[Expr], Expr], Expr]:
    """Read a blocked tensor in smaller blocks, which divide its own: by image, block, position and place in a block."""
    parts = int(source.shape[-1]) // block
    if parts == 1:
        return lambda n, chunk, positions, place: source[n, chunk, *positions, place]
    return lambda n, chunk, positions, place: source[n, chunk // parts, *positions, chunk % parts * block + place]


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
    source, spatial, out_w = padded_source(data, kernel, strides, padding, dilation, computed_width)
    taps = [te.reduce_axis((0, extent), f"k{axis}") for extent, axis in zip(kernel, "dhw"[-len(kernel) :], strict=True)]

    def element(n: tirx.Var, c: tirx.Var, *rest: tirx.Var) -> Expr:
        positions = _positions(rest[:-1], taps, strides, dilation)
        return te.sum(source[n, c, *positions, rest[-1]] * weight[c, *taps, rest[-1]], taps)

    shape = (int(data.shape[0]), chunks, *spatial, block)
    result = te.compute(shape, element, name="depthwise_conv", attrs={KERNEL_ATTRIBUTE: "depthwise_conv"})
    return crop(result, out_w)


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


def padded_source(
    data: te.Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    computed_width: int,
    rounds: bool = False,
) -> tuple[te.Tensor, list[int], int]:
    """Pad the input so that ``computed_width`` columns can be computed; gives it, the extents to compute, ``OW``.

    With ``rounds`` it is a copy in any case, of the bits of bfloat16.
    """
    rank = len(kernel)
    extents = [int(extent) for extent in data.shape[2:-1]]
    before, after = list(padding[:rank]), list(padding[rank:])
    spatial = [
        output_extent(*axis) for axis in zip(extents, kernel, strides, before, after, dilation, strict=True)
    ]  # fmt: skip
    out_w = spatial[-1]
    spatial[-1] = max(out_w, computed_width)
    after[-1] += (spatial[-1] - out_w) * strides[-1]
    is_copied = rounds or any(before) or any(extra > 0 for extra in after)
    return pad_spatial(data, [*before, *after], rounds=rounds) if is_copied else data, spatial, out_w
