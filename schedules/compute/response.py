"""Local response normalisation of a blocked tensor: division by a power of the squares of neighbouring channels."""

from __future__ import annotations

from tvm import te, tirx
from tvm.ir import Expr

from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE
from tvm_ext.schedules.compute.layout import full


def local_response(
    data: te.Tensor, channels: int, before: int, behind: int, scale: float, bias: float, exponent: float
) -> te.Tensor:
    """Compute ``data / (scale * s + bias) ** exponent``, ``s`` the sum of squares over neighbouring channels.

    Parameters
    ----------
    data : te.Tensor
        Shape ``(N, ceil(C / v), [D,] H, W, v)``.
    channels : int
        ``C``.
    before, behind : int
        Channels before and behind each that count, at most ``v``; what is no channel is zero.
    scale, bias, exponent : float

    Returns
    -------
    te.Tensor
        Shape of ``data``; lanes that belong to no channel may hold anything.
    """
    batch, chunks, *spatial, block = (int(extent) for extent in data.shape)

    def square(n: tirx.Var, *rest: tirx.Var) -> Expr:
        """Square a channel; a block of zeros stands before the first and another one behind the last."""
        *position, chunk, lane = rest
        value = data[n, chunk - 1, *position, lane]
        value = value * value
        zero = tirx.const(0, data.dtype)
        if not full(channels, block):  # all lanes are there to be read: a choice keeps them a vector
            value = tirx.Select((chunk - 1) * block + lane < channels, value, zero)
        return tirx.if_then_else(tirx.all(chunk >= 1, chunk <= chunks), value, zero)

    squares = te.compute(
        (batch, *spatial, chunks + 2, block), square, name="squares", attrs={KERNEL_ATTRIBUTE: "squares"}
    )
    near = te.reduce_axis((0, before + 1 + behind), "near")

    def neighbour(n: tirx.Var, c: tirx.Var, *rest: tirx.Var) -> Expr:
        *position, lane = rest
        place = (c + 1) * block + lane + near - before
        return squares[n, *position, place // block, place % block]

    total = te.compute(
        data.shape,
        lambda *index: te.sum(neighbour(*index), near),
        name="local_response",
        attrs={KERNEL_ATTRIBUTE: "local_response"},
    )

    def divided(*index: tirx.Var) -> Expr:
        base = total(*index) * tirx.const(scale, data.dtype) + tirx.const(bias, data.dtype)
        return data(*index) / tirx.power(base, tirx.const(exponent, data.dtype))

    return te.compute(data.shape, divided, name="normalized")
