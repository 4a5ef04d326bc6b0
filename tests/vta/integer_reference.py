"""A network of integers computed with numpy, channels and windows as they stand in the model: no blocks, no tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.model.layers import IntegerLayer, IntegerNetwork, Layer


def run_network(network: IntegerNetwork, inputs: Mapping[str, NDArray[np.int8]]) -> dict[str, NDArray[np.int8]]:
    """Every tensor of the network, int8 (N, C, H, W)."""
    tensors = dict(inputs)
    for integer in network.layers:
        tensors[integer.layer.name] = run_layer(integer, tensors)
    return tensors


def window_of(layer: Layer) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Kernel, stride and padding along columns and along rows."""
    down = (layer.kernel, layer.stride, layer.padding)
    return down, layer.across or down


def run_layer(integer: IntegerLayer, tensors: Mapping[str, NDArray[np.int8]]) -> NDArray[np.int8]:
    layer, weights = integer.layer, integer.weights
    if layer.unfold is not None:  # back to the convolution of the model, of an input that is not unfolded
        outputs, _, height, _ = weights.shape
        weights = weights.reshape(outputs, layer.unfold[0], -1, height).transpose(0, 2, 3, 1)
        layer = replace(layer, across=layer.unfold)
    (kernel, stride, pad), (kernel_x, stride_x, pad_x) = window_of(layer)
    data = tensors[layer.data].astype(np.int64)
    if layer.kind == "conv2d_transpose":
        # Zeros between the inputs, then a convolution with the window turned around.
        spread = np.zeros((*data.shape[:2], *((np.array(data.shape[2:]) - 1) * (stride, stride_x) + 1)), np.int64)
        spread[:, :, ::stride, ::stride_x] = data
        extra = layer.output_padding
        around = ((kernel - 1 - pad, kernel - 1 - pad + extra), (kernel_x - 1 - pad_x, kernel_x - 1 - pad_x + extra))
        data, stride, stride_x, weights = np.pad(spread, ((0, 0), (0, 0), *around)), 1, 1, weights[:, :, ::-1, ::-1]
    else:
        data = np.pad(data, ((0, 0), (0, 0), (pad, pad), (pad_x, pad_x)))
    windows = np.lib.stride_tricks.sliding_window_view(data, (kernel, kernel_x), axis=(2, 3))
    windows = windows[:, :, ::stride, ::stride_x]  # N, C, rows, columns, KH, KW
    if layer.kind == "max_pool2d":
        return windows.max(axis=(4, 5)).astype(np.int8)
    n, channels, rows, columns = windows.shape[:4]
    groups, outputs = layer.groups, len(weights)
    seen = windows.reshape(n, groups, channels // groups, rows, columns, -1).transpose(1, 0, 3, 4, 2, 5)
    seen = seen.reshape(groups, n * rows * columns, -1).astype(np.float64)
    taps = weights.reshape(groups, outputs // groups, -1).astype(np.float64)
    # Sums are below 2**31, products of float64 are exact up to 2**53.
    sums = np.einsum("gpk,gok->gop", seen, taps, optimize=True).reshape(outputs, n, rows, columns)
    total = sums.astype(np.int64).transpose(1, 0, 2, 3) + integer.bias[None, :, None, None]
    if layer.residual is not None:
        total += tensors[layer.residual].astype(np.int64) << integer.residual_shift
    return np.clip(total >> integer.shift, integer.low, integer.high).astype(np.int8)
