"""Equalise channels: a factor for each channel of a tensor, so that all of them fill the integers of one scale.

VTA has one shift for all channels of a layer. A tensor whose channel ``c`` is stored ``s[c]`` times as large is the
same to the model if the weights that give it are multiplied by ``s`` and those that read it divided by it; ReLU and
maxima do not mind. The idea is that of Nagel et al., "Data-Free Quantization through Weight Equalization and Bias
Correction", ICCV 2019, section 4.1; here the factors also follow the values that were observed, and tensors at the
border to the CPU take part, as conversions multiply anyway. A factor that all channels have in common makes up for the
scales' being powers of two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.model.layers import Layer
from tvm_ext.backends.vta.model.quantize import best_fraction

Factors = NDArray[np.float64]

# A channel is amplified at most so much more than another one.
LARGEST_RATIO = 256.0
# Factors of a tensor depend on those of its neighbours; more rounds change little.
SWEEPS = 3
# Common factors that are tried, as fractions of a power of two.
COMMON = tuple(2.0 ** (step / 8) for step in range(8))


@dataclass(frozen=True, eq=False)
class Equalized:
    """Layers whose tensors are scaled.

    Attributes
    ----------
    layers : tuple of Layer
        With weights, biases and bounds for the scaled tensors.
    observed : mapping
        Scaled tensor to values, (channels, values).
    scales : mapping
        Tensor to a positive factor for each channel.
    """

    layers: tuple[Layer, ...]
    observed: Mapping[str, NDArray]
    scales: Mapping[str, Factors]


def equalize(layers: Sequence[Layer], observed: Mapping[str, NDArray], fixed: Mapping[str, int]) -> Equalized:
    """Choose factors and write layers for tensors scaled by them.

    Parameters
    ----------
    layers : sequence of Layer
    observed : mapping
        Tensor to values, (channels, values); a tensor that is missing is left as it is.
    fixed : mapping
        Tensors whose scale is known are left as they are.
    """
    scales: dict[str, Factors] = {}
    for layer in layers:
        for name, shape in ((layer.data, layer.in_shape), (layer.name, layer.out_shape)):
            places = 1 if layer.unfold is None or name != layer.data else layer.unfold[0]
            scales.setdefault(name, np.ones(shape[1] // places))
        if layer.residual is not None:
            scales.setdefault(layer.residual, scales[layer.name])
    free = [tensors for tensors in _tied(layers) if all(name in observed and name not in fixed for name in tensors)]
    bounded = {layer.name for layer in layers if not _is_homogeneous(layer)}
    values = {
        at: np.concatenate([observed[name] for name in sorted(tensors)], axis=1) for at, tensors in enumerate(free)
    }
    for _ in range(SWEEPS):
        for at, tensors in enumerate(free):
            if tensors & bounded:
                continue
            first = min(tensors)
            touching = [scale_layer(x, scales) for x in layers if tensors & {*x.inputs, x.name}]
            living = _living(tensors, touching, len(scales[first]))
            if not living.any():
                continue
            balanced = _balanced(tensors, touching, _largest(values[at]) * scales[first], living)
            balanced *= scales[first][living]
            factors = np.ones(len(living))
            factors[living] = balanced / np.median(balanced)
            scales |= dict.fromkeys(tensors, factors)
    for at, tensors in enumerate(free):
        first = min(tensors)
        scaled_values = values[at] * scales[first].astype(values[at].dtype)[:, None]
        scales |= dict.fromkeys(tensors, scales[first] * best_fraction(scaled_values, COMMON)[1])
    scaled = {name: values * scales[name][:, None] if name in scales else values for name, values in observed.items()}
    return Equalized(tuple(scale_layer(layer, scales) for layer in layers), scaled, scales)


def scale_layer(layer: Layer, scales: Mapping[str, Factors]) -> Layer:
    """Write a layer for scaled tensors; a bound that is not zero needs the same factor for all channels."""
    after = scales[layer.name]
    bounds = {"low": layer.low * float(after[0]), "high": layer.high * float(after[0])}
    if layer.weights is None or layer.bias is None:
        return replace(layer, **bounds)  # type: ignore[arg-type]
    before = scales[layer.data]
    if layer.unfold is not None:
        before = np.tile(before, layer.unfold[0])
    weights = layer.weights.astype(np.float64) * after[:, None, None, None] / _by_group(layer, before)
    bias = layer.bias.astype(np.float64) * after
    return replace(layer, weights=_narrow(weights), bias=_narrow(bias), **bounds)  # type: ignore[arg-type]


def _narrow(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Round to single precision; what is finite stays finite."""
    narrow = values.astype(np.float32)
    largest = np.copysign(np.finfo(np.float32).max, narrow)
    return np.where(np.isinf(narrow) & np.isfinite(values), largest, narrow)


def _by_group(layer: Layer, before: Factors) -> NDArray[np.float64]:
    """Factors of a layer's inputs in the form of its weights, (O, I / groups, 1, 1)."""
    each = before.reshape(layer.groups, -1)
    return each.repeat(layer.out_shape[1] // layer.groups, axis=0)[:, :, None, None]


def _tied(layers: Sequence[Layer]) -> list[set[str]]:
    """Group tensors that must have the same factors: maxima and averages keep them, sums need equal ones."""
    graph = nx.Graph()
    for layer in layers:
        graph.add_nodes_from((*layer.inputs, layer.name))
        if layer.residual is not None:
            graph.add_edge(layer.name, layer.residual)
        if layer.kind == "max_pool2d" or layer.operator in ("average", "add"):
            graph.add_edge(layer.name, layer.data)
    return [set(tensors) for tensors in nx.connected_components(graph)]


def _is_homogeneous(layer: Layer) -> bool:
    """Return whether the bounds of a layer are the same for values times any factor."""
    return all(bound == 0 or not np.isfinite(bound) for bound in (layer.low, layer.high))


def _products(layers: Sequence[Layer]) -> list[Layer]:
    return [layer for layer in layers if layer.weights is not None and layer.operator not in ("average", "add")]


def _living(tensors: set[str], layers: Sequence[Layer], channels: int) -> NDArray[np.bool_]:
    """Say which channels any product gives or reads; the others fill a block up, and are zero or of no consequence.

    Counted with the others they would be taken for channels of very small values, and where they are the most, all
    that is not zero would be scaled down next to them.
    """
    touched = [_given(layer) for layer in _products(layers) if layer.name in tensors]
    touched += [
        np.asarray(layer.bias, np.float64)
        for layer in _products(layers)
        if layer.name in tensors and layer.bias is not None
    ]
    touched += [_read(layer, channels) for layer in _products(layers) if layer.data in tensors]
    return np.any(touched, axis=0) if touched else np.ones(channels, bool)


def _balanced(
    tensors: set[str], layers: Sequence[Layer], limits: Factors, living: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Make the living channels as large as the weights that read them allow.

    With ``a`` the values of a channel and ``w`` the weights that read it, rounding either adds an error of the largest
    of one times the other; both are least for ``a * s == w / s``. Where only the CPU reads, all channels become equal.
    """
    given = [_largest(_given(layer)[living, None]) for layer in _products(layers) if layer.name in tensors]
    read = [_largest(_read(x, len(limits))[living, None]) for x in _products(layers) if x.data in tensors]
    size = limits[living]
    if given:
        rows = np.maximum.reduce(given)
        size = np.maximum(size, rows / np.median(rows / size))
    factors = 1 / size if not read else np.sqrt(np.maximum.reduce(read) / size)
    return np.asarray(np.maximum(factors, factors.max() / LARGEST_RATIO))


def _largest(values: NDArray) -> Factors:
    """Largest magnitude of each row; one that has none counts as much smaller than the largest of all."""
    found = np.abs(values).max(axis=1, initial=0.0).astype(np.float64)
    largest = float(found.max(initial=0.0))
    return np.maximum(found, largest / LARGEST_RATIO) if largest else np.ones(len(found))


def _given(layer: Layer) -> Factors:
    """Largest weight that gives each channel of a layer's result."""
    weights = layer.weights
    assert weights is not None
    return np.asarray(np.abs(weights.reshape(len(weights), -1)).max(axis=1, initial=0.0), np.float64)


def _read(layer: Layer, channels: int) -> Factors:
    """Largest weight that reads each channel of a layer's data."""
    weights = layer.weights
    assert weights is not None
    by_group = np.abs(weights).reshape(layer.groups, -1, *weights.shape[1:]).max(axis=(1, 3, 4), initial=0.0)
    return np.asarray(by_group.reshape(-1, channels).max(axis=0), np.float64)
