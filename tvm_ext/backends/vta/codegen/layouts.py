"""Packed layouts: blocks of batch x channels are the elements that VTA moves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.errors import InputError


def pack_data(data: NDArray, config: VTAConfig) -> NDArray:
    """Pack activations (N, C, H, W) to (N/B, C/c, H, W, B, c), with zeros up to whole blocks."""
    data = _padded(data, {0: config.batch, 1: config.block})
    n, c, h, w = data.shape
    blocks = data.reshape(n // config.batch, config.batch, c // config.block, config.block, h, w)
    return np.ascontiguousarray(blocks.transpose(0, 2, 4, 5, 1, 3))


def unpack_data(packed: NDArray, shape: tuple[int, int, int, int]) -> NDArray:
    """Undo :func:`pack_data`; ``shape`` is (N, C, H, W)."""
    nb, cb, h, w, batch, block = packed.shape
    n, c, _, _ = shape
    return packed.transpose(0, 4, 1, 5, 2, 3).reshape(nb * batch, cb * block, h, w)[:n, :c]


def pack_weights(weights: NDArray, config: VTAConfig) -> NDArray:
    """Pack weights (O, I, KH, KW) to (O/o, I/i, KH, KW, o, i), with zeros up to whole blocks."""
    weights = _padded(weights, {0: config.block, 1: config.block})
    o, i, kh, kw = weights.shape
    blocks = weights.reshape(o // config.block, config.block, i // config.block, config.block, kh, kw)
    return np.ascontiguousarray(blocks.transpose(0, 2, 4, 5, 1, 3))


def pack_bias(bias: NDArray, config: VTAConfig) -> NDArray:
    """Pack one int32 a channel (O,) to (O/o, B, o), repeated for the rows of the batch."""
    bias = _padded(bias, {0: config.block}).reshape(-1, 1, config.block)
    return np.ascontiguousarray(np.repeat(bias, config.batch, axis=1).astype(np.int32))


def largest_gemm_bias(config: VTAConfig) -> int:
    """Return the largest bias that :func:`bias_as_weights` can write."""
    return 127 * 127 * (config.block - 2) + 127 * 126 + 63


def bias_as_weights(bias: NDArray, config: VTAConfig) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Write a bias as weights of constant inputs, so that one step of GEMM adds it where ALU takes two.

    The constants are 127 and, last, 1: a bias is so many times 127 * 127, so many times 127, and a rest.

    Parameters
    ----------
    bias : NDArray[np.int32]
        One a channel, (O,).
    config : VTAConfig

    Returns
    -------
    weights : NDArray[np.int8]
        (O/o, o, i).
    inputs : NDArray[np.int8]
        (B, i).

    Raises
    ------
    InputError
        If a bias is larger than the weights can say; use :func:`pack_bias` for it.
    """
    most = largest_gemm_bias(config)
    if bias.size and int(np.abs(bias.astype(np.int64)).max()) > most:
        raise InputError(
            f"a bias of {int(np.abs(bias.astype(np.int64)).max())} is larger than {most}, which GEMM can add"
        )
    padded = _padded(bias.astype(np.int64), {0: config.block})
    # Nearest multiple of 127 first, so that the rest is from -63 to 63.
    multiples = np.floor_divide(padded + 63, 127)
    rest = padded - 127 * multiples
    weights = np.zeros((padded.size, config.block), np.int64)
    for column in range(config.block - 1):
        weights[:, column] = np.clip(multiples, -127, 127)
        multiples = multiples - weights[:, column]
    weights[:, -1] = rest
    inputs = np.full((config.batch, config.block), 127, np.int8)
    inputs[:, -1] = 1
    return weights.reshape(-1, config.block, config.block).astype(np.int8), inputs


def _padded(array: NDArray, multiples: dict[int, int]) -> NDArray:
    if array.ndim <= max(multiples) or 0 in array.shape:
        raise InputError(f"an array of shape {list(array.shape)} cannot be packed in blocks")
    pads = [(0, -extent % multiples.get(axis, 1)) for axis, extent in enumerate(array.shape)]
    return np.pad(array, pads)
