"""Convolutions of few channels: places of a window's rows become channels, and fill the blocks that zeros would fill.

A 7x7 convolution of 3 channels takes 49 steps for each output where a block has 16 channels; with the 7 places of a row
beside each other it is a 7x1 convolution of 21 channels, which takes 14. The CPU, which has to pack the input anyway,
puts them there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.model.layers import Layer

# Steps that must be saved, as a ratio: the unfolded input is larger.
LEAST_GAIN = 1.5


def unfold_layers(layers: Sequence[Layer], block: int) -> dict[str, Layer]:
    """Rewrite the convolutions that gain by it.

    Parameters
    ----------
    layers : sequence of Layer
    block : int
        Channels of a block.

    Returns
    -------
    dict
        Name of a layer to what it becomes: ``unfold`` says how its input is unfolded. Only layers whose input comes
        from the CPU and that nothing else reads.
    """
    given = {layer.name for layer in layers}
    readers = Counter(name for layer in layers for name in layer.inputs)
    return {
        layer.name: unfold_layer(layer)
        for layer in layers
        if layer.data not in given and readers[layer.data] == 1 and _gains(layer, block)
    }


def _gains(layer: Layer, block: int) -> bool:
    kernel, _, _ = layer.across or (layer.kernel, layer.stride, layer.padding)
    if layer.kind != "conv2d" or layer.groups > 1 or kernel == 1:
        return False
    channels = layer.in_shape[1]
    before, after = -(-channels // block) * kernel, -(-channels * kernel // block)
    return before >= LEAST_GAIN * after


def unfold_layer(layer: Layer) -> Layer:
    """Write a convolution as one whose window has one column: of an input unfolded by :func:`unfold_columns`."""
    unfold = layer.across or (layer.kernel, layer.stride, layer.padding)
    n, channels, height, _ = layer.in_shape
    kernel, out_width = unfold[0], layer.out_shape[3]
    weights = None
    if layer.weights is not None:  # (O, C, KH, KW) -> (O, KW * C, KH, 1)
        moved = layer.weights.transpose(0, 3, 1, 2)
        weights = np.ascontiguousarray(moved.reshape(len(moved), kernel * channels, layer.kernel, 1))
    return replace(
        layer,
        in_shape=(n, kernel * channels, height, out_width),
        weights=weights,
        across=(1, 1, 0),
        unfold=unfold,
    )


def unfold_columns(values: NDArray, unfold: tuple[int, int, int]) -> NDArray:
    """Put the places of a window's rows beside each other: (N, C, H, W) -> (N, KW * C, H, columns of the output).

    Parameters
    ----------
    values : NDArray
    unfold : tuple of int
        Kernel, stride and padding along rows.
    """
    kernel, stride, padding = unfold
    padded = np.pad(values, ((0, 0), (0, 0), (0, 0), (padding, padding)))
    last = (padded.shape[3] - kernel) // stride * stride
    return np.concatenate([padded[..., place : place + last + 1 : stride] for place in range(kernel)], axis=1)
