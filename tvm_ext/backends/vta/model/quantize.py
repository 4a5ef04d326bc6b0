"""From layers in floats to layers in integers: scales are powers of two, chosen on observed values.

The scheme is that of Moreau et al., "A Hardware-Software Blueprint for Flexible Deep Learning Specialization", IEEE
Micro 2019: 8-bit weights and activations without zero points, 32-bit sums, a shift instead of a scale between layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import floor, isfinite, log2

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.model.layers import ACCUMULATOR_BITS, IntegerLayer, IntegerNetwork, Layer, verify_network
from tvm_ext.backends.vta.model.rounding import RoundedWeights, round_weights
from tvm_ext.errors import GraphError, InputError

# Steps finer than the largest value asks for; what is larger is clipped.
FINER_STEPS = 2
# A fraction beyond these has no use, and a value that is next to nothing would ask for it.
LARGEST_FRACTION = 30
# A result may have so many bits after the binary point more than a tensor added to it (see Residual.repeats).
FINER_THAN_RESIDUAL = 8


def choose_fraction(values: NDArray) -> int:
    """Return the bits after the binary point of int8 that lose least of some values: the smallest squared error.

    Parameters
    ----------
    values : NDArray
        Of any shape; finite.
    """
    return best_fraction(values)[0]


def best_fraction(values: NDArray, factors: Sequence[float] = (1.0,)) -> tuple[int, float]:
    """Return the bits after the binary point, and the factor before rounding, with which int8 loses least.

    Parameters
    ----------
    values : NDArray
        Of any shape; finite. Computed with in their own precision.
    factors : sequence of float
        Positive ones that are tried, near 1.

    Returns
    -------
    tuple of int and float
        Of equally good ones the first factor, and the least bits.
    """
    largest = float(np.abs(values).max(initial=0.0))
    if not largest:
        return 7, factors[0]
    # The largest becomes about 1, so that no square overflows or vanishes.
    exponent = int(np.frexp(largest)[1])
    near = np.ldexp(values.reshape(-1), -exponent)
    rounded = np.empty_like(near)

    def error(fraction: int, factor: float) -> float:
        scale = near.dtype.type(2.0 ** (fraction + exponent) * factor)
        np.multiply(near, scale, out=rounded)
        np.floor(np.add(rounded, 0.5, out=rounded), out=rounded)
        np.divide(np.clip(rounded, -128, 127, out=rounded), scale, out=rounded)
        np.subtract(rounded, near, out=rounded)
        return float(np.square(rounded, out=rounded).sum())

    tried: list[tuple[float, int, float]] = []
    for factor in factors:
        coarsest = min(max(floor(log2(127 / largest / factor)), -LARGEST_FRACTION), LARGEST_FRACTION)
        steps = range(coarsest, coarsest + FINER_STEPS + 1)
        tried.extend((error(fraction, factor), fraction, factor) for fraction in steps)
    _, fraction, factor = min(tried, key=lambda row: row[0])
    return fraction, factor


def to_integers(values: NDArray, fraction: int) -> NDArray[np.int8]:
    """Round to int8 with so many bits after the binary point, halves upwards; what is too large is clipped."""
    return np.clip(np.floor(np.ldexp(values, fraction) + 0.5), -128, 127).astype(np.int8)


def quantize_network(
    layers: Sequence[Layer],
    observed: Mapping[str, NDArray],
    fixed: Mapping[str, int] | None = None,
    rounded: Callable[[Layer, int], RoundedWeights] = round_weights,
) -> IntegerNetwork:
    """Choose scales for all tensors and weights, and write the layers in integers.

    Parameters
    ----------
    layers : sequence of Layer
        In an order in which they can run.
    observed : mapping
        Tensor to values that it takes: all of them or a sample.
    fixed : mapping, optional
        Fractions that are known, as those of a quantised model; they come before observed values.
    rounded : callable, optional
        From a layer and the bits of its weights after the binary point to the weights in integers; each to the nearest
        if left out (see :func:`tvm_ext.backends.vta.model.rounding.round_weights`).

    Returns
    -------
    IntegerNetwork

    Raises
    ------
    InputError
        If nothing was observed of a tensor, or something that is not finite; the message names the tensor.
    """
    fixed = fixed or {}
    names = {name for layer in layers for name in (*layer.inputs, layer.name)}
    pooled = {layer.name for layer in layers if layer.kind == "max_pool2d"}
    wanted = {name: _wanted(name, observed, fixed) for name in sorted(names - pooled)}
    caps: dict[str, int] = {}
    while True:
        fractions, sums_of = dict(wanted), {}
        for name, cap in caps.items():
            fractions[name] = min(fractions.get(name, cap), cap)
        retry = False
        for layer in layers:
            if layer.kind == "max_pool2d":
                fractions[layer.name] = fractions[layer.data]
                continue
            weights, bias = _parameters(layer)
            sums = fractions[layer.data] + _weight_fraction(layer, weights, bias, fractions)
            if layer.residual is not None and fractions[layer.residual] > sums:
                # The residual cannot be shifted down on the chip, so it gets fewer bits.
                caps[_source(layer.residual, layers)] = sums
                retry = True
                break
            fractions[layer.name] = min(fractions[layer.name], sums)
            if layer.residual is not None:
                most = fractions[layer.residual] + FINER_THAN_RESIDUAL
                fractions[layer.name] = min(fractions[layer.name], most)
            sums_of[layer.name] = sums
        if not retry:
            written = [
                _convolution(layer, fractions, sums_of[layer.name], rounded)
                if layer.name in sums_of
                else IntegerLayer(layer)
                for layer in layers
            ]
            network = IntegerNetwork(tuple(written), {name: fractions[name] for name in sorted(names)})
            verify_network(network)
            return network


def _wanted(name: str, observed: Mapping[str, NDArray], fixed: Mapping[str, int]) -> int:
    if name in fixed:
        return fixed[name]
    if name not in observed:
        raise InputError(
            f"tensor {name!r} goes through VTA and nothing says how large its values are; give calibration data "
            "(--calibrate FILE, calibration= of tvm_ext.compile or of the pipeline tvm_ext), or a model with "
            "quantize and dequantize nodes there"
        )
    if not np.isfinite(observed[name]).all():
        raise InputError(f"tensor {name!r} takes values that are not finite on the calibration data; check that data")
    return choose_fraction(observed[name])


def _source(name: str, layers: Sequence[Layer]) -> str:
    """Return the tensor whose steps a tensor has: maxima keep those of their input."""
    given = {layer.name: layer for layer in layers}
    while name in given and given[name].kind == "max_pool2d":
        name = given[name].data
    return name


def _parameters(layer: Layer) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return weights and biases of a convolution."""
    if layer.weights is None or layer.bias is None:
        raise GraphError(f"layer {layer.name!r} is a convolution without weights or bias")
    if not (np.isfinite(layer.weights).all() and np.isfinite(layer.bias).all()):
        raise InputError(f"layer {layer.name!r} has weights or biases that are not finite; check the model")
    return layer.weights, layer.bias


def _weight_fraction(layer: Layer, floats: NDArray, bias: NDArray, fractions: Mapping[str, int]) -> int:
    """Choose the fraction of a layer's weights: what fits them best, unless sums could overflow."""
    fraction = choose_fraction(floats)
    most = (1 << (ACCUMULATOR_BITS - 2)) - 1
    while fraction > -LARGEST_FRACTION:
        weights = to_integers(floats, fraction).astype(np.int64)
        sums = 128.0 * np.abs(weights).sum(axis=(1, 2, 3)).max()
        sums += float(np.ldexp(np.abs(bias.astype(np.float64)), fractions[layer.data] + fraction).max())
        if layer.residual is not None:
            sums += 128 * 2.0 ** max(fractions[layer.data] + fraction - fractions[layer.residual], 0)
        # Half of the last bit shifted out is added as well, at most as much as the result's largest value needs.
        if sums + 2.0 ** max(fractions[layer.data] + fraction - fractions[layer.name], 0) <= most:
            break
        fraction -= 1
    return fraction


def _convolution(
    layer: Layer, fractions: Mapping[str, int], sums: int, rounded: Callable[[Layer, int], RoundedWeights]
) -> IntegerLayer:
    _, bias = _parameters(layer)
    shift = sums - fractions[layer.name]
    rounding = (1 << shift) >> 1
    found = rounded(layer, sums - fractions[layer.data])
    wide = np.ldexp(bias.astype(np.float64), sums) + np.ldexp(found.bias, fractions[layer.data])
    # A bias that no fraction fits is clipped, so that the sums keep within the accumulator.
    room = (1 << (ACCUMULATOR_BITS - 1)) - 1 - rounding - 128 * np.abs(found.integers.astype(np.int64)).sum((1, 2, 3))
    room -= 0 if layer.residual is None else 128 << (sums - fractions[layer.residual])
    whole = np.clip(np.floor(wide + 0.5), -room, room).astype(np.int64) + rounding
    low, high = _bounds(layer, fractions[layer.name])
    return IntegerLayer(
        layer,
        found.integers,
        whole.astype(np.int32),
        shift,
        0 if layer.residual is None else sums - fractions[layer.residual],
        low,
        high,
    )


def _bounds(layer: Layer, fraction: int) -> tuple[int, int]:
    low, high = (
        int(np.clip(np.rint(bound * 2.0**fraction), -128, 127)) if isfinite(bound) else default
        for bound, default in ((layer.low, -128), (layer.high, 127))
    )
    return low, high
