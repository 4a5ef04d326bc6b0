"""Conversions between plain NC(D)HW and the blocked layout NC(D)HW{v}c, of tensors and of constants."""

from __future__ import annotations

import numpy as np
from tvm import te, tirx
from tvm.ir import Expr


def to_blocked(data: te.Tensor, block: int) -> te.Tensor:
    """Convert ``(N, C, ...)`` to ``(N, ceil(C / v), ..., v)``; channels that fill up the last block are zero."""
    batch, channels, *spatial = (int(extent) for extent in data.shape)
    chunks = -(-channels // block)

    def element(n: tirx.Var, c: tirx.Var, *rest: tirx.Var) -> Expr:
        channel = c * block + rest[-1]
        value = data[n, channel, *rest[:-1]]
        if chunks * block == channels:
            return value
        return tirx.if_then_else(channel < channels, value, tirx.const(0, data.dtype))

    return te.compute((batch, chunks, *spatial, block), element, name="to_blocked")


def from_blocked(data: te.Tensor, channels: int) -> te.Tensor:
    """Convert ``(N, ceil(C / v), ..., v)`` to ``(N, C, ...)``."""
    batch, _, *spatial, block = (int(extent) for extent in data.shape)
    return te.compute(
        (batch, channels, *spatial),
        lambda n, c, *rest: data[n, c // block, *rest, c % block],
        name="from_blocked",
    )


def block_channels(array: np.ndarray, block: int, fill: float = 0.0) -> np.ndarray:
    """Convert a constant ``(N, C, ...)`` to ``(N, ceil(C / v), ..., v)``, filling up the last block with ``fill``."""
    batch, channels, *spatial = array.shape
    chunks = -(-channels // block)
    padded = np.full((batch, chunks * block, *spatial), fill, array.dtype)
    padded[:, :channels] = array
    return np.ascontiguousarray(np.moveaxis(padded.reshape(batch, chunks, block, *spatial), 2, -1))
