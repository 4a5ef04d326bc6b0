"""Normalisation of a blocked tensor over its channels, pixel by pixel: layer normalisation of images."""

from __future__ import annotations

from collections.abc import Callable

from tvm import te, tirx
from tvm.ir import Expr

from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE
from tvm_ext.schedules.compute.layout import full, in_channels

CHANNEL_NORM = "channel_norm"
CHANNEL_SUMS = ("channel_sums", "channel_squares")
CHANNEL_TOTALS = ("channel_means", "channel_scales")


def channel_norm(data: te.Tensor, weight: te.Tensor, bias: te.Tensor, channels: int, epsilon: float) -> te.Tensor:
    """Compute ``(data - mean) / sqrt(variance + epsilon) * weight + bias``, both of the channels of a pixel.

    Parameters
    ----------
    data : te.Tensor
        Shape ``(N, ceil(C / v), [D,] H, W, v)``.
    weight, bias : te.Tensor
        Shape ``(ceil(C / v), v)``.
    channels : int
        ``C``.
    epsilon : float

    Returns
    -------
    te.Tensor
        Shape of ``data``; lanes that belong to no channel may hold anything.
    """
    batch, chunks, *spatial, block = (int(extent) for extent in data.shape)
    share = tirx.const(1 / channels, data.dtype)

    def summed(name: str, element: Callable[..., Expr]) -> te.Tensor:
        """Sum over the blocks of a pixel, lane by lane."""
        chunk = te.reduce_axis((0, chunks), f"{name}_chunk")

        def total(n: tirx.Var, *rest: tirx.Var) -> Expr:
            index = (n, chunk, *rest)
            value = element(*index)
            return te.sum(value if full(channels, block) else in_channels(index, value, channels, data), chunk)

        return te.compute((batch, *spatial, block), total, name=name, attrs={KERNEL_ATTRIBUTE: name})

    def of_pixels(name: str, sums: te.Tensor) -> te.Tensor:
        """Sum over the lanes of a pixel."""
        lane = te.reduce_axis((0, block), f"{name}_lane")
        shape = (batch, *spatial)
        return te.compute(shape, lambda *pixel: te.sum(sums(*pixel, lane), lane), name=name,
                          attrs={KERNEL_ATTRIBUTE: name})  # fmt: skip

    def left(n: tirx.Var, chunk: tirx.Var, *rest: tirx.Var) -> Expr:
        """Take the mean of its pixel off an element."""
        return data(n, chunk, *rest) - means(n, *rest[:-1]) * share

    def square(*index: tirx.Var) -> Expr:
        return left(*index) * left(*index)

    means = of_pixels(CHANNEL_TOTALS[0], summed(CHANNEL_SUMS[0], data))
    squares = of_pixels(CHANNEL_TOTALS[1], summed(CHANNEL_SUMS[1], square))

    def normalized(n: tirx.Var, chunk: tirx.Var, *rest: tirx.Var) -> Expr:
        scale = tirx.rsqrt(squares(n, *rest[:-1]) * share + tirx.const(epsilon, data.dtype))
        return left(n, chunk, *rest) * scale * weight[chunk, rest[-1]] + bias[chunk, rest[-1]]

    return te.compute(data.shape, normalized, name="normalized", attrs={KERNEL_ATTRIBUTE: CHANNEL_NORM})
