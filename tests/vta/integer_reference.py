"""A network of integers computed with numpy, channels and windows as they stand in the model: no blocks, no tiles."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tvm_ext.vta.layers import IntegerLayer, IntegerNetwork


def run_network(network: IntegerNetwork, inputs: Mapping[str, NDArray[np.int8]]) -> dict[str, NDArray[np.int8]]:
    """Every tensor of the network, int8 (N, C, H, W)."""
    tensors = dict(inputs)
    for integer in network.layers:
        tensors[integer.layer.name] = run_layer(integer, tensors)
    return tensors


def run_layer(integer: IntegerLayer, tensors: Mapping[str, NDArray[np.int8]]) -> NDArray[np.int8]:
    layer = integer.layer
    pad = (layer.padding, layer.padding)
    lowest = 0 if layer.kind == "conv2d" else -128
    data = np.pad(tensors[layer.data].astype(np.int64), ((0, 0), (0, 0), pad, pad), constant_values=lowest)
    windows = np.lib.stride_tricks.sliding_window_view(data, (layer.kernel, layer.kernel), axis=(2, 3))
    windows = windows[:, :, :: layer.stride, :: layer.stride]  # N, C, rows, columns, KH, KW
    if layer.kind == "max_pool2d":
        return windows.max(axis=(4, 5)).astype(np.int8)
    n, channels, rows, columns = windows.shape[:4]
    groups, outputs = layer.groups, len(integer.weights)
    seen = windows.reshape(n, groups, channels // groups, rows, columns, -1).transpose(1, 0, 3, 4, 2, 5)
    seen = seen.reshape(groups, n * rows * columns, -1).astype(np.float64)
    weights = integer.weights.reshape(groups, outputs // groups, -1).astype(np.float64)
    # Sums are below 2**31, products of float64 are exact up to 2**53.
    sums = np.einsum("gpk,gok->gop", seen, weights, optimize=True).reshape(outputs, n, rows, columns)
    total = sums.astype(np.int64).transpose(1, 0, 2, 3) + integer.bias[None, :, None, None]
    if layer.residual is not None:
        total += tensors[layer.residual].astype(np.int64) << integer.residual_shift
    return np.clip(total >> integer.shift, integer.low, integer.high).astype(np.int8)
