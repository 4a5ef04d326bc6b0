"""Conversions between plain NCHW and the blocked layout NCHW{v}c, and element-wise packing of constants."""

from __future__ import annotations

import numpy as np
from tvm import te, tirx


def to_blocked(data: te.Tensor, block: int) -> te.Tensor:
    """Convert ``(N, C, H, W)`` to ``(N, ceil(C / v), H, W, v)``; channels that fill up the last block are zero."""
    batch, channels, height, width = (int(extent) for extent in data.shape)
    chunks = -(-channels // block)

    def element(n: tirx.Var, c: tirx.Var, h: tirx.Var, w: tirx.Var, i: tirx.Var) -> tirx.PrimExpr:
        value = data[n, c * block + i, h, w]
        if chunks * block == channels:
            return value
        return tirx.if_then_else(c * block + i < channels, value, tirx.const(0, data.dtype))

    return te.compute((batch, chunks, height, width, block), element, name="to_blocked")


def from_blocked(data: te.Tensor, channels: int) -> te.Tensor:
    """Convert ``(N, ceil(C / v), H, W, v)`` to ``(N, C, H, W)``."""
    batch, _, height, width, block = (int(extent) for extent in data.shape)
    return te.compute(
        (batch, channels, height, width),
        lambda n, c, h, w: data[n, c // block, h, w, c % block],
        name="from_blocked",
    )


def block_channels(array: np.ndarray, block: int, fill: float = 0.0) -> np.ndarray:
    """Convert a constant ``(N, C, H, W)`` to ``(N, ceil(C / v), H, W, v)``, filling up the last block with ``fill``."""
    batch, channels, height, width = array.shape
    chunks = -(-channels // block)
    padded = np.full((batch, chunks * block, height, width), fill, array.dtype)
    padded[:, :channels] = array
    return np.ascontiguousarray(padded.reshape(batch, chunks, block, height, width).transpose(0, 1, 3, 4, 2))
