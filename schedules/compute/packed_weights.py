"""Weights of convolutions in the order in which kernels over the blocked layout read them."""

from __future__ import annotations

import numpy as np


def pack_weight(weight: np.ndarray, block_in: int, block_out: int, groups: int = 1) -> np.ndarray:
    """Pack OI(D)HW weights to ``(O / vo, I / vi, [KD,] KH, KW, vi, vo)``; channels that fill up a block are zero.

    ``I`` is the number of input channels of one group. With groups, ``O / groups`` must be a multiple of ``block_out``.
    """
    out_channels, in_channels, *kernel = weight.shape
    if groups > 1 and (out_channels // groups % block_out or in_channels % block_in):
        raise ValueError(f"{groups} groups of {in_channels} -> {out_channels // groups} channels do not fill blocks")
    out_chunks, in_chunks = -(-out_channels // block_out), -(-in_channels // block_in)
    padded = np.zeros((out_chunks * block_out, in_chunks * block_in, *kernel), weight.dtype)
    padded[:out_channels, :in_channels] = weight
    tiled = padded.reshape(out_chunks, block_out, in_chunks, block_in, *kernel)
    taps = range(4, 4 + len(kernel))
    return np.ascontiguousarray(tiled.transpose(0, 2, *taps, 3, 1))


def pack_depthwise_weight(weight: np.ndarray, block: int) -> np.ndarray:
    """Pack ``(C, 1, [KD,] KH, KW)`` weights to ``(C / v, [KD,] KH, KW, v)``; channels that fill up a block are zero."""
    channels, _, *kernel = weight.shape
    chunks = -(-channels // block)
    padded = np.zeros((chunks * block, *kernel), weight.dtype)
    padded[:channels] = weight[:, 0]
    return np.ascontiguousarray(np.moveaxis(padded.reshape(chunks, block, *kernel), 1, -1))
