"""Conversions between plain NC(D)HW and the blocked layout NC(D)HW{v}c, of tensors and of constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.ir import Expr


def to_blocked(data: te.Tensor, block: int, turned: bool = False) -> te.Tensor:
    """Convert ``(N, C, ...)`` to ``(N, ceil(C / v), ..., v)``; channels that fill up the last block are zero.

    ``turned``: rows and columns, the last two axes of the image, are exchanged.
    """
    batch, channels, *spatial = extents(data)
    chunks = -(-channels // block)
    spatial = turn(spatial, turned)

    def element(n: tirx.Var, c: tirx.Var, *rest: tirx.Var) -> Expr:
        channel = c * block + rest[-1]
        value = data[n, channel, *turn(rest[:-1], turned)]
        if chunks * block == channels:
            return value
        return tirx.if_then_else(channel < channels, value, tirx.const(0, data.dtype))

    return te.compute((batch, chunks, *spatial, block), element, name="to_blocked")


def from_blocked(data: te.Tensor, channels: int, turned: bool = False) -> te.Tensor:
    """Convert ``(N, ceil(C / v), ..., v)`` to ``(N, C, ...)``; see :func:`to_blocked`."""
    batch, _, *spatial, block = extents(data)
    return te.compute(
        (batch, channels, *turn(spatial, turned)),
        lambda n, c, *rest: data[n, c // block, *turn(rest, turned), c % block],
        name="from_blocked",
    )


def extents(tensor: te.Tensor) -> list[Any]:
    """List the extents of a tensor: numbers, and expressions where they are only known at run time."""
    return [int(extent) if isinstance(extent, tirx.IntImm) else extent for extent in tensor.shape]


def turn(items: Sequence[Any], turned: bool = True) -> list[Any]:
    """Exchange the last two of what there is one of for each spatial axis, if ``turned``."""
    return [*items[:-2], items[-1], items[-2]] if turned else list(items)


def fill_lanes(data: te.Tensor, channels: int, value: float) -> te.Tensor:
    """Set the lanes of ``(N, ceil(C / v), ..., v)`` that belong to no channel to ``value``, whatever they hold."""

    def element(*index: tirx.Var) -> Expr:
        return in_channels(index, data(*index), channels, data, value)

    return te.compute(data.shape, element, name="fill_lanes")


def full(channels: int, block: int) -> bool:
    """Whether channels fill their blocks."""
    return channels % block == 0


def in_channels(index: Sequence[Any], value: Expr, channels: int, like: te.Tensor, other: float = 0.0) -> Expr:
    """Give ``value`` where an index of a blocked tensor belongs to one of ``channels``, ``other`` beyond them.

    The tensor has the block and the element type of ``like``.
    """
    # A Select, not an if_then_else: it is computed for a whole vector.
    return tirx.Select(index[1] * like.shape[-1] + index[-1] < channels, value, tirx.const(other, like.dtype))


def block_channels(array: np.ndarray, block: int, fill: float = 0.0) -> np.ndarray:
    """Convert a constant ``(N, C, ...)`` to ``(N, ceil(C / v), ..., v)``, filling up the last block with ``fill``."""
    batch, channels, *spatial = array.shape
    chunks = -(-channels // block)
    padded = np.full((batch, chunks * block, *spatial), fill, array.dtype)
    padded[:, :channels] = array
    return np.ascontiguousarray(np.moveaxis(padded.reshape(batch, chunks, block, *spatial), 2, -1))
