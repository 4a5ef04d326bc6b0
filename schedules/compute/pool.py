"""Pooling over the blocked layout NC(D)HW{v}c."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from operator import mul
from typing import Any

from tvm import te, tirx
from tvm.ir import Expr

from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE
from tvm_ext.schedules.compute.convolution import crop
from tvm_ext.schedules.compute.layout import extents
from tvm_ext.schedules.compute.open_convolution import GEOMETRY_ATTRIBUTE, OPEN_TOTAL
from tvm_ext.schedules.simd.vector import element_type


def pool(
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
    """Pool a blocked tensor over its spatial axes.

    Parameters
    ----------
    data : te.Tensor
        Shape ``(N, C / v, [D,] H, W, v)``.
    kind : str
        ``"max"`` or ``"avg"``.
    kernel, strides, dilation : sequence of int
        One for each spatial axis.
    padding : sequence of int
        Before each spatial axis, then after each of them.
    out_shape : sequence of int
        ``[OD,] OH, OW``; windows may reach beyond the padded input (``ceil_mode``), where there is nothing to pool.
    count_include_pad : bool
        Whether an average counts padded positions (but none beyond the padding).
    computed_width : int
        Output columns to compute, at least ``OW``; those beyond ``OW`` are dropped.

    Returns
    -------
    te.Tensor
        Shape ``(N, C / v, [OD,] OH, OW, v)``.
    """
    batch, chunks, *spatial, block = (int(extent) for extent in data.shape)
    rank = len(spatial)
    before = padding[:rank]
    computed = [*out_shape[:-1], max(out_shape[-1], computed_width)]
    neutral = least(str(data.dtype)) if kind == "max" else tirx.const(0, data.dtype)
    lasts = [
        (count - 1) * stride + (taps - 1) * step - first
        for count, stride, taps, step, first in zip(computed, strides, kernel, dilation, before, strict=True)
    ]
    axes = [te.reduce_axis((0, extent), f"k{axis}") for extent, axis in zip(kernel, "dhw"[-rank:], strict=True)]
    combine = te.max if kind == "max" else te.sum

    def window(n: tirx.Var, c: tirx.Var, *rest: tirx.Var) -> Expr:
        positions, checks = [], []
        for index, output in enumerate(rest[:-1]):
            position = output * strides[index] + axes[index] * dilation[index] - before[index]
            positions.append(position)
            checks += [position >= 0] if before[index] > 0 else []
            checks += [position < spatial[index]] if lasts[index] >= spatial[index] else []
        value = data[n, c, *positions, rest[-1]]
        return combine(tirx.if_then_else(tirx.all(*checks), value, neutral) if checks else value, axes)

    pooled = te.compute((batch, chunks, *computed, block), window, name="pool", attrs={KERNEL_ATTRIBUTE: "pool"})
    if kind == "max":
        return crop(pooled, out_shape[-1])

    mean = Mean(kernel, strides, padding, dilation, spatial, lasts, count_include_pad)

    def average(n: tirx.Var, c: tirx.Var, *rest: tirx.Var) -> Expr:
        return mean.of(pooled(n, c, *rest), rest[:-1])

    return te.compute((batch, chunks, *out_shape, block), average, name="average")


@dataclass(frozen=True)
class Mean:
    """How the total of a window becomes its average.

    Attributes
    ----------
    kernel, strides, padding, dilation, count_include_pad
        As those of :func:`pool`.
    spatial : sequence of int
        Extents of the input.
    lasts : sequence of int
        Where the last tap of the last window lies along each axis.
    """

    kernel: Sequence[int]
    strides: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    spatial: Sequence[int]
    lasts: Sequence[int]
    count_include_pad: bool

    def of(self, total: Expr, places: Sequence[tirx.Var]) -> Expr:
        """Divide the total of the window at ``places`` by the elements that count."""
        count, dtype = self.counted(places), element_type(total)
        if isinstance(count, int):
            return total * tirx.const(1.0 / count, dtype)
        return total / count.astype(dtype)

    def counted(self, places: Sequence[tirx.Var]) -> Expr | int:
        """Count the taps of the window at ``places`` that fall on counted input, along as many axes as are given."""
        counts = [self.count(place, axis) for axis, place in enumerate(places)]
        constant = prod(count for count in counts if isinstance(count, int))
        computed = [count for count in counts if not isinstance(count, int)]
        return reduce(mul, computed) * constant if computed else constant

    def count(self, place: tirx.Var, axis: int) -> Expr | int:
        """Count the taps along one axis that fall on counted input."""
        first, after = self.padding[axis], self.padding[len(self.kernel) + axis]
        low, high = (-first, self.spatial[axis] + after) if self.count_include_pad else (0, self.spatial[axis])
        taps, step = self.kernel[axis], self.dilation[axis]
        if low <= -first and self.lasts[axis] < high:
            return taps
        start = place * self.strides[axis] - first
        begin = tirx.max(0, (low - start + step - 1) // step)
        return tirx.max(tirx.min(taps, (high - start + step - 1) // step) - begin, 1)


def global_average(data: te.Tensor) -> te.Tensor:
    """Average over all spatial axes: ``(N, C / v, ..., v)`` to ``(N, C / v, 1, ..., 1, v)``; extents may be open."""
    batch, chunks, *spatial, block = extents(data)
    axes = [te.reduce_axis((0, extent), f"r{index}") for index, extent in enumerate(spatial)]
    count: Any = 1
    for extent in spatial:
        count = extent * count
    known = all(isinstance(extent, int) for extent in (batch, *spatial))
    total = te.compute(
        (batch, chunks, *[1] * len(spatial), block),
        lambda n, c, *rest: te.sum(data[n, c, *axes, rest[-1]], axes),
        name="global_sum",
        attrs={KERNEL_ATTRIBUTE: "global_average"} if known else {KERNEL_ATTRIBUTE: OPEN_TOTAL, GEOMETRY_ATTRIBUTE: []},
    )

    def average(*index: tirx.Var) -> Expr:
        if isinstance(count, int):
            return total(*index) * tirx.const(1.0 / count, data.dtype)
        return total(*index) / count.astype(data.dtype)

    return te.compute(total.shape, average, name="average")


def least(dtype: str) -> Expr:
    """Give what no value of a type is less than."""
    return -tirx.infinity(dtype) if dtype.startswith("float") else tirx.min_value(dtype)
