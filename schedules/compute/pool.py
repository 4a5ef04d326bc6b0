"""Pooling over the blocked layout NC(D)HW{v}c."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx
from tvm.ir import Expr

from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE
from tvm_ext.schedules.compute.convolution import crop
from tvm_ext.schedules.compute.layout import extents
from tvm_ext.schedules.compute.open_convolution import GEOMETRY_ATTRIBUTE, OPEN_TOTAL


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
    before, after = padding[:rank], padding[rank:]
    computed = [*out_shape[:-1], max(out_shape[-1], computed_width)]
    neutral = _least(str(data.dtype)) if kind == "max" else tirx.const(0, data.dtype)
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

    def counted(output: tirx.Var, axis: int) -> Expr | int:
        """Count the taps along one axis that fall on counted input."""
        low, high = (-before[axis], spatial[axis] + after[axis]) if count_include_pad else (0, spatial[axis])
        if low <= -before[axis] and lasts[axis] < high:
            return kernel[axis]
        start, step = output * strides[axis] - before[axis], dilation[axis]
        first = tirx.max(0, (low - start + step - 1) // step)
        return tirx.max(tirx.min(kernel[axis], (high - start + step - 1) // step) - first, 1)

    def average(n: tirx.Var, c: tirx.Var, *rest: tirx.Var) -> Expr:
        total, constant, computed_count = pooled[n, c, *rest], 1, None
        for axis, output in enumerate(rest[:-1]):
            count = counted(output, axis)
            if isinstance(count, int):
                constant *= count
            else:
                computed_count = count if computed_count is None else computed_count * count
        if computed_count is None:
            return total * tirx.const(1.0 / constant, data.dtype)
        return total / (computed_count * constant).astype(data.dtype)

    return te.compute((batch, chunks, *out_shape, block), average, name="average")


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


def _least(dtype: str) -> Expr:
    """Give what no value of a type is less than."""
    return -tirx.infinity(dtype) if dtype.startswith("float") else tirx.min_value(dtype)
