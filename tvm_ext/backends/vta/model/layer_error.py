"""What a layer alone loses in integers, measured on some of its results: no other layer, and no simulator, is run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.model.layers import IntegerLayer, IntegerNetwork
from tvm_ext.backends.vta.model.unfold import unfold_columns

# Places of a result that are looked at; all of its channels count at each.
PLACES = 256


def layer_noise(network: IntegerNetwork, integer: IntegerLayer, tensors: Mapping[str, NDArray]) -> float | None:
    """Return the mean square of a layer's errors as a share of that of its results.

    Parameters
    ----------
    network : IntegerNetwork
    integer : IntegerLayer
        One of its layers.
    tensors : mapping
        Tensor to the floats of the model, (N, C, H, W): those that the layer reads and gives.

    Returns
    -------
    float or None
        None for a layer of another kind than a convolution.
    """
    layer = integer.layer
    if layer.kind != "conv2d" or integer.weights is None or integer.bias is None:
        return None
    result = tensors[layer.name]
    data = network.integers(layer.data, tensors[layer.data]).astype(np.float64)
    if layer.unfold is not None:
        data = unfold_columns(data, layer.unfold)
    kernel_x, stride_x, pad_x = layer.across or (layer.kernel, layer.stride, layer.padding)
    data = np.pad(data, ((0, 0), (0, 0), (layer.padding, layer.padding), (pad_x, pad_x)))
    windows = np.lib.stride_tricks.sliding_window_view(data, (layer.kernel, kernel_x), axis=(2, 3))
    windows = windows[:, :, :: layer.stride, ::stride_x].transpose(0, 2, 3, 1, 4, 5)
    n, _, rows, columns = result.shape
    places = np.random.default_rng(0).integers(0, (n, rows, columns), (PLACES, 3))
    at = tuple(places.T)
    seen = windows[at].reshape(PLACES, layer.groups, -1)
    taps = integer.weights.reshape(layer.groups, len(integer.weights) // layer.groups, -1).astype(np.float64)
    sums = np.einsum("pgk,gok->pgo", seen, taps).reshape(PLACES, -1) + integer.bias
    if layer.residual is not None:
        added = network.integers(layer.residual, tensors[layer.residual]).transpose(0, 2, 3, 1)[at]
        sums += np.ldexp(added.astype(np.float64), integer.residual_shift)
    values = np.clip(np.floor(np.ldexp(sums, -integer.shift)), integer.low, integer.high).astype(np.int8)
    found = network.floats(layer.name, values).astype(np.float64)
    expected = result.transpose(0, 2, 3, 1)[at].astype(np.float64)
    signal = float(np.square(expected).mean())
    return float(np.square(found - expected).mean()) / signal if signal else 0.0


def lossy_layers(network: IntegerNetwork, tensors: Mapping[str, NDArray], largest: float) -> dict[str, str]:
    """Return the layers that lose more than a share of their results' size, and a sentence for each."""
    found = {}
    for integer in network.layers:
        noise = layer_noise(network, integer, tensors)
        if noise is not None and noise > largest**2:
            found[integer.layer.name] = (
                f"8 bits with one scale for all channels lose {noise**0.5:.1%} of its results, more than {largest:.0%}"
            )
    return found
