"""Convolutions and poolings over the blocked layout whose batch, rows or columns are only known at run time.

What they compute stands here; how, is written out by :mod:`tvm_ext.schedules.cpu.open_convolution` and
:mod:`tvm_ext.schedules.cpu.open_window`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import te, tirx
from tvm.ir import Expr

from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE
from tvm_ext.schedules.compute.layout import extents, full, in_channels

OPEN_CONVOLUTION, OPEN_DEPTHWISE, OPEN_MAX, OPEN_SUM = "open_conv", "open_depthwise", "open_max", "open_sum"
OPEN_TOTAL = "open_total"
"""What blocks of these kernels are annotated as."""

GEOMETRY_ATTRIBUTE = "tvm_ext.geometry"
"""Annotation of such a block: strides, dilations, padding before each spatial axis; then the number of groups, or the
taps along each axis."""


def open_extent(extent: Any, kernel: int, stride: int, before: int, after: int, dilation: int) -> Any:
    """Extent of a convolution's output along one axis, in the form in which Relax infers it."""
    return simple(tirx.floordiv(extent + (before + after) - dilation * (kernel - 1) - 1, stride) + 1)


def simple(extent: Any) -> Any:
    """Simplify an extent; an int where it is known."""
    found = tvm.sym.Analyzer().simplify(extent) if isinstance(extent, Expr) else extent
    return int(found) if isinstance(found, tirx.IntImm) else found


def least(dtype: str) -> Expr:
    """Give the least number of a type, which a maximum begins with."""
    return -tirx.infinity(dtype) if "float" in dtype else tirx.min_value(dtype)


def open_convolution(
    data: te.Tensor,
    weight: te.Tensor,
    strides: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
    out_channels: int = 0,
) -> te.Tensor:
    """Convolve a blocked tensor of open extents that is padded already.

    Parameters
    ----------
    data : te.Tensor
        Shape ``(N, CI / vi, [D,] H, W, vi)``.
    weight : te.Tensor
        Shape ``(CO / vo, CI / groups / vi, [KD,] KH, KW, vi, vo)``.
    strides, dilation : sequence of int
        One for each spatial axis.
    groups : int
        ``CI / groups`` and ``CO / groups`` must be multiples of ``vi`` and ``vo`` when it is not 1.
    out_channels : int
        ``CO`` where it does not fill the blocks of the weights.

    Returns
    -------
    te.Tensor
        Shape ``(N, CO / vo, [OD,] OH, OW, vo)``; lanes beyond ``CO`` are zero.
    """
    chunks, in_chunks, *kernel, block_in, block_out = (int(extent) for extent in weight.shape)
    padding = [0] * (2 * len(kernel))
    chunks_per_group = chunks // groups
    ic = te.reduce_axis((0, in_chunks), "ic")
    taps = _taps(kernel)
    ii = te.reduce_axis((0, block_in), "ii")

    def element(n: tirx.Var, oc: tirx.Var, *rest: tirx.Var) -> Expr:
        chunk = ic if groups == 1 else oc // chunks_per_group * in_chunks + ic
        positions = _positions(rest[:-1], taps, strides, dilation, padding)
        return te.sum(data[n, chunk, *positions, ii] * weight[oc, ic, *taps, ii, rest[-1]], [ic, *taps, ii])

    shape = (extents(data)[0], chunks, *_output(data, kernel, strides, padding, dilation), block_out)
    attributes = {
        KERNEL_ATTRIBUTE: OPEN_CONVOLUTION,
        GEOMETRY_ATTRIBUTE: [*strides, *dilation, *padding[: len(kernel)], groups],
    }
    result = te.compute(shape, element, name="conv", attrs=attributes)
    if full(out_channels, block_out):
        return result
    return te.compute(shape, lambda *index: in_channels(index, result(*index), out_channels, result), name="crop")


def open_depthwise(
    data: te.Tensor, weight: te.Tensor, strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> te.Tensor:
    """Convolve every channel of a tensor of open extents with its own filter.

    Parameters
    ----------
    data : te.Tensor
        Shape ``(N, C / v, [D,] H, W, v)``.
    weight : te.Tensor
        Shape ``(C / v, [KD,] KH, KW, v)``.
    strides, dilation : sequence of int
        One for each spatial axis.
    padding : sequence of int
        Before each spatial axis, then after each of them.

    Returns
    -------
    te.Tensor
        Shape ``(N, C / v, [OD,] OH, OW, v)``.
    """
    chunks, *kernel, block = (int(extent) for extent in weight.shape)
    taps = _taps(kernel)

    def element(n: tirx.Var, c: tirx.Var, *rest: tirx.Var) -> Expr:
        value = _inside(data, (n, c), _positions(rest[:-1], taps, strides, dilation, padding), rest[-1], 0)
        return te.sum(value * weight[c, *taps, rest[-1]], taps)

    shape = (extents(data)[0], chunks, *_output(data, kernel, strides, padding, dilation), block)
    attributes = {
        KERNEL_ATTRIBUTE: OPEN_DEPTHWISE,
        GEOMETRY_ATTRIBUTE: [*strides, *dilation, *padding[: len(kernel)], *kernel],
    }
    return te.compute(shape, element, name="depthwise_conv", attrs=attributes)


def open_pool(
    data: te.Tensor,
    kind: str,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> te.Tensor:
    """Pool a blocked tensor of open extents over its spatial axes; see :func:`tvm_ext.schedules.compute.pool.pool`."""
    batch, chunks, *spatial, block = extents(data)
    rank = len(spatial)
    taps = _taps(kernel)
    neutral = least(str(data.dtype)) if kind == "max" else tirx.const(0, data.dtype)
    combine = te.max if kind == "max" else te.sum

    def window(n: tirx.Var, c: tirx.Var, *rest: tirx.Var) -> Expr:
        positions = _positions(rest[:-1], taps, strides, dilation, padding)
        return combine(_inside(data, (n, c), positions, rest[-1], neutral), taps)

    rounding = [stride - 1 if ceil_mode else 0 for stride in strides]
    after = [last + extra for last, extra in zip(padding[rank:], rounding, strict=True)]
    shape = (batch, chunks, *_output(data, kernel, strides, [*padding[:rank], *after], dilation), block)
    attributes = {
        KERNEL_ATTRIBUTE: OPEN_MAX if kind == "max" else OPEN_SUM,
        GEOMETRY_ATTRIBUTE: [*strides, *dilation, *padding[:rank], *kernel],
    }
    pooled = te.compute(shape, window, name="pool", attrs=attributes)
    if kind == "max":
        return pooled

    def counted(output: tirx.Var, axis: int) -> Expr:
        """Count the taps along one axis that fall on counted input."""
        before, step = padding[axis], dilation[axis]
        low, high = (-before, spatial[axis] + padding[rank + axis]) if count_include_pad else (0, spatial[axis])
        start = output * strides[axis] - before
        first = tirx.max(0, (low - start + step - 1) // step)
        return tirx.max(tirx.min(kernel[axis], (high - start + step - 1) // step) - first, 1)

    def average(n: tirx.Var, c: tirx.Var, *rest: tirx.Var) -> Expr:
        count: Any = 1
        for axis, output in enumerate(rest[:-1]):
            count = counted(output, axis) * count
        return pooled[n, c, *rest] / count.astype(data.dtype)

    return te.compute(shape, average, name="average")


def phases_to_image(data: te.Tensor, scales: Sequence[int]) -> te.Tensor:
    """Put the phases of an enlarged image where they belong.

    Parameters
    ----------
    data : te.Tensor
        Shape ``(N, SH * SW * C / v, H, W, v)``, the channels of a phase side by side.
    scales : sequence of int
        ``SH, SW``.

    Returns
    -------
    te.Tensor
        Shape ``(N, C / v, H * SH, W * SW, v)``.
    """
    batch, planes, height, width, block = extents(data)
    tall, wide = scales
    chunks = planes // (tall * wide)
    return te.compute(
        (batch, chunks, simple(height * tall), simple(width * wide), block),
        lambda n, c, y, x, lane: data[n, (y % tall * wide + x % wide) * chunks + c, y // tall, x // wide, lane],
        name="phases_to_image",
    )


def channels_to_image(data: te.Tensor, scales: Sequence[int], channels: int) -> te.Tensor:
    """Put the phases of an enlarged image of few channels where they belong.

    Parameters
    ----------
    data : te.Tensor
        Shape ``(N, ceil(SH * SW * C / v), H, W, v)``, the channels of a phase side by side.
    scales : sequence of int
        ``SH, SW``.
    channels : int
        ``C``.

    Returns
    -------
    te.Tensor
        Shape ``(N, C, H * SH, W * SW, 1)``: a plane for each channel.
    """
    batch, _, height, width, block = extents(data)
    tall, wide = scales

    def element(n: tirx.Var, c: tirx.Var, y: tirx.Var, x: tirx.Var, _lane: tirx.Var) -> Expr:
        number = (y % tall * wide + x % wide) * channels + c
        return data[n, number // block, y // tall, x // wide, number % block]

    shape = (batch, channels, simple(height * tall), simple(width * wide), 1)
    return te.compute(shape, element, name="channels_to_image")


def _taps(kernel: Sequence[int]) -> list[Any]:
    return [te.reduce_axis((0, extent), f"k{axis}") for extent, axis in zip(kernel, "dhw"[-len(kernel) :], strict=True)]


def _positions(
    outputs: Sequence[Any], taps: Sequence[Any], strides: Sequence[int], dilation: Sequence[int], padding: Sequence[int]
) -> list[Any]:
    before = padding[: len(outputs)]
    return [
        output * stride + tap * step - first
        for output, tap, stride, step, first in zip(outputs, taps, strides, dilation, before, strict=True)
    ]


def _output(
    data: te.Tensor, kernel: Sequence[int], strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> list[Any]:
    rank = len(kernel)
    axes = zip(extents(data)[2:-1], kernel, strides, padding[:rank], padding[rank:], dilation, strict=True)
    return [open_extent(*axis) for axis in axes]


def _inside(data: te.Tensor, plane: Sequence[Any], positions: Sequence[Any], lane: Any, neutral: Any) -> Expr:
    """Read an element, or give ``neutral`` where there is none."""
    checks = [tirx.all(at >= 0, at < extent) for at, extent in zip(positions, extents(data)[2:-1], strict=True)]
    other = neutral if isinstance(neutral, Expr) else tirx.const(neutral, data.dtype)
    return tirx.if_then_else(tirx.all(*checks), data[*plane, *positions, lane], other)
