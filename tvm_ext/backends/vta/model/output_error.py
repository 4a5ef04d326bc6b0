"""What the errors of single layers become at a model's outputs, and which layers to leave to the CPU because of that.

Two things make a layer on VTA wrong: its weights are rounded, and so is what it gives. Both errors are computed in
floats from what the layer reads in the model; the model, run again with one layer's error added to its result, shows
what becomes of it. Errors of different layers are about independent, so that their squares add up.

A layer is worth an error if it saves much time. With a price, in seconds, for the square of the outputs' error, the
assignment with the least sum is a minimum cut as before, and the lowest price at which the error is small enough gives
the fastest assignment that was found (Everett, "Generalized Lagrange Multiplier Method for Solving Problems of Optimum
Allocation of Resources", Operations Research 1963).

An assignment is judged on samples that its scales and weights were not fitted to: each sample is held out from one of
several fits (cross-validation). What must be small enough is not their mean error but what other inputs' may be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tvm_ext.backends.vta.model.calibrate import ObservedModel, finite_tensors
from tvm_ext.backends.vta.model.confidence import upper_mean
from tvm_ext.backends.vta.model.cut import Penalties
from tvm_ext.backends.vta.model.forms import from_form, in_forms
from tvm_ext.backends.vta.model.layers import IntegerLayer, IntegerNetwork, Layer
from tvm_ext.backends.vta.model.partition import Partition
from tvm_ext.backends.vta.model.unfold import unfold_columns
from tvm_ext.errors import InputError

Outputs = Sequence[NDArray]
Sample: TypeAlias = Mapping[str, NDArray]
# Samples that errors are measured on, at most, and those of them that single layers are measured on.
ERROR_SAMPLES, LAYER_SAMPLES = 16, 4
# What is aimed at, as a share of the largest error: errors added in floats are not quite what integers make of them.
MARGIN = 0.95
# One in so many samples is held out from a fit of scales and weights.
HELD_OUT = 3
# An assignment whose error is so large a share of what is aimed at is not worth to be bettered.
ENOUGH = 0.6
# Assignments that are tried; errors add up to something else than their squares' sum.
ROUNDS = 6
# Seconds for the square of an error at which no layer pays that has one.
PROHIBITIVE = 1e12
# Prices that are tried lie between the whole time of the model for so many squares of the largest error.
CHEAPEST, DEAREST, STEPS = 1e-4, 1e4, 16
# Values from which on sums of products may leave single precision.
LARGE = 1e20


def convolve(layer: Layer, data: NDArray, weights: NDArray) -> NDArray:
    """Return the sums of a convolution, transposed or not, without its bias: (N, O, rows, columns).

    Parameters
    ----------
    layer : Layer
        Its form.
    data : NDArray
        (N, C, H, W), not unfolded.
    weights : NDArray
        Of the form of the layer's own.
    """
    if layer.unfold is not None:
        data = unfold_columns(data, layer.unfold)
    down = (layer.kernel, layer.stride, layer.padding)
    (kernel, stride, pad), (kernel_x, stride_x, pad_x) = down, layer.across or down
    n, channels, height, width = data.shape
    rows, columns = layer.out_shape[2:]
    groups, each = layer.groups, channels // layer.groups
    taps = weights.reshape(groups, -1, each, kernel, kernel_x).astype(data.dtype)
    transposed = layer.kind == "conv2d_transpose"
    if transposed:
        results = np.zeros((n, groups, taps.shape[1], rows + 2 * pad, columns + 2 * pad_x), data.dtype)
        count, count_x = height, width
    else:
        data = np.pad(data, ((0, 0), (0, 0), (pad, pad), (pad_x, pad_x)))
        results = np.zeros((n, groups, taps.shape[1], rows, columns), data.dtype)
        count, count_x = rows, columns
    for y in range(kernel):
        down_ = slice(y, y + (count - 1) * stride + 1, stride)
        for x in range(kernel_x):
            across = slice(x, x + (count_x - 1) * stride_x + 1, stride_x)
            seen = (data if transposed else data[:, :, down_, across]).reshape(n, groups, each, -1)
            tap = taps[..., y, x]
            products = (tap * seen if each == 1 else tap @ seen).reshape(n, groups, -1, count, count_x)
            if transposed:
                place = results[:, :, :, down_, across]  # what output padding cuts off is not there
                place += products[..., : place.shape[3], : place.shape[4]]
            else:
                results += products
    if transposed:
        results = results[..., pad : pad + rows, pad_x : pad_x + columns]
    return results.reshape(n, -1, rows, columns)


def rounding_error(network: IntegerNetwork, tensor: str, values: NDArray) -> NDArray:
    """Return what int8 makes of a tensor's values, less the values."""
    return network.floats(tensor, network.integers(tensor, values)) - values


def layer_error(network: IntegerNetwork, integer: IntegerLayer, tensors: Mapping[str, NDArray]) -> NDArray | None:
    """Return what a layer in integers gives of exact data, less what it should give; (N, C, H, W).

    Parameters
    ----------
    network : IntegerNetwork
    integer : IntegerLayer
    tensors : mapping
        Tensor to the floats of the model, (N, C, H, W): those that the layer reads and gives.

    Returns
    -------
    NDArray or None
        None for a maximum, which adds nothing to the errors of what it reads.
    """
    layer = integer.layer
    if integer.weights is None or integer.bias is None or layer.weights is None or layer.bias is None:
        return None
    before, after = (network.scales.get(name, np.ones(1)) for name in (layer.data, layer.name))
    fraction = integer.shift + network.fractions[layer.name] - network.fractions[layer.data]
    rounded = np.ldexp(integer.weights.astype(np.float64), -fraction) - layer.weights
    data: NDArray = tensors[layer.data] * before.astype(np.float32).reshape(1, -1, 1, 1)
    if np.abs(data).max(initial=0) > LARGE:
        data = tensors[layer.data] * before.reshape(1, -1, 1, 1)
    whole = integer.bias - ((1 << integer.shift) >> 1)
    bias = np.ldexp(whole.astype(np.float64), -integer.shift - network.fractions[layer.name]) - layer.bias
    sums = convolve(layer, data, rounded) + bias.astype(data.dtype).reshape(1, -1, 1, 1)
    sums /= after.astype(data.dtype).reshape(1, -1, 1, 1)
    right = tensors[layer.name]
    low, high = layer.low / after[0], layer.high / after[0]
    # Where a bound holds, a small error of the sum leaves it so.
    inside = right + np.where((right > low) & (right < high), sums, 0)
    return np.asarray(network.floats(layer.name, network.integers(layer.name, np.clip(inside, low, high))) - right)


def network_errors(network: IntegerNetwork, tensors: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """Return the errors of all tensors that VTA makes, or that are converted for it, in their shapes in the model.

    Parameters
    ----------
    network : IntegerNetwork
    tensors : mapping
        Tensor to the floats of the model, in their shapes there.
    """
    layers = [integer.layer for integer in network.layers]
    forms, made = in_forms(layers, tensors), {layer.name for layer in layers}
    found = {}
    for integer in network.layers:
        for name in integer.layer.inputs:
            if name not in made and name not in found:
                found[name] = rounding_error(network, name, tensors[name])
        error = layer_error(network, integer, forms)
        if error is not None:
            shape = tensors[integer.layer.name].shape
            found[integer.layer.name] = from_form(error, shape).astype(np.float32)
    return found


def share(found: Outputs, expected: Outputs) -> float:
    """Return the square of the outputs' error as a share of that of the outputs.

    Places where the outputs are not finite are left out; elsewhere a value that is not finite is wholly lost.
    """
    error = signal = 0.0
    for a, b in zip(found, expected, strict=True):
        right = np.where(np.isfinite(b), b, 0).astype(np.float64)
        wrong = np.where(np.isfinite(a) & np.isfinite(b), a, 0).astype(np.float64)
        error += float(np.square(wrong - right).sum())
        signal += float(np.square(right).sum())
    return error / signal if signal else float(error > 0)


def folds(count: int) -> list[range]:
    """Part samples into those that are held out together; a single one is fitted to and judged on.

    Parameters
    ----------
    count : int
        Samples, at least 1.
    """
    parts = min(count, HELD_OUT)
    return [range(first, count, parts) for first in range(parts)]


@dataclass(frozen=True)
class OutputEstimate:
    """What the outputs lose, as shares of their size.

    Attributes
    ----------
    error : float
        Root of the mean square on the samples that were looked at.
    bound : float
        What it is below on other inputs, in all likelihood (see :mod:`tvm_ext.backends.vta.model.confidence`).
    samples : int
        Those that were looked at.
    """

    error: float
    bound: float
    samples: int

    @classmethod
    def of(cls, squares: NDArray) -> OutputEstimate:
        """Estimate from the squares of the samples' errors."""
        return cls(float(np.mean(squares)) ** 0.5, upper_mean(squares) ** 0.5, len(squares))


class OutputError:
    """Measures what errors inside of a model become at its outputs.

    Parameters
    ----------
    model : ObservedModel
        One to which errors can be added.
    samples : sequence of mapping
        Inputs by name.
    fits : sequence of int, optional
        For each sample, which of several networks it was held out from; the first one if left out.
    """

    def __init__(self, model: ObservedModel, samples: Sequence[Sample], fits: Sequence[int] | None = None) -> None:
        self.model, self.samples = model, samples
        self.fits = fits or [0] * len(samples)
        self.right = [finite_tensors(model, sample)[0] for sample in samples]
        outputs = [output for found in self.right for output in found]
        if any(output.size for output in outputs) and not any(np.isfinite(output).any() for output in outputs):
            raise InputError(
                "the model in floats gives no finite value on the calibration data, so that errors cannot be weighed: "
                "give data of the size that the model was made for, or mend what overflows"
            )

    def together(self, networks: Sequence[IntegerNetwork]) -> NDArray[np.float64]:
        """Return the squares of the outputs' errors with all layers of a network in integers, one of each sample.

        Errors of the other sign are as likely, so that each sample tells twice.

        Parameters
        ----------
        networks : sequence of IntegerNetwork
            The same layers, fitted to different samples.
        """
        found = np.zeros(len(self.samples))
        for at, (sample, outputs) in enumerate(zip(self.samples, self.right, strict=True)):
            errors = network_errors(networks[self.fits[at]], self.model.run(sample)[1])
            for sign in (1, -1):
                signed = {name: sign * error for name, error in errors.items()}
                found[at] += share(self.model.run(sample, signed)[0], outputs) / 2
        return found

    def each(self, networks: Sequence[IntegerNetwork]) -> tuple[dict[str, float], dict[str, float]]:
        """Return what each tensor adds to the square of the outputs' error, on average.

        Parameters
        ----------
        networks : sequence of IntegerNetwork
            The same layers, fitted to different samples.

        Returns
        -------
        dict
            Of layers: their weights and their results rounded.
        dict
            Of tensors that are only converted: the share of that which the rounding of values has.
        """
        layers: dict[str, list[float]] = {}
        tensors: dict[str, list[float]] = {}
        for sample, outputs, fit in list(zip(self.samples, self.right, self.fits, strict=True))[:LAYER_SAMPLES]:
            network, values = networks[fit], self.model.run(sample)[1]
            errors = network_errors(network, values)
            for name, error in errors.items():
                added = share(self.model.run(sample, {name: error})[0], outputs)
                rounded = rounding_error(network, name, values[name])
                whole = float(np.square(error).sum())
                part = min(1.0, float(np.square(rounded).sum()) / whole) if whole else 0.0
                layers.setdefault(name, []).append(added)
                tensors.setdefault(name, []).append(added * part)
        return tuple({name: float(np.mean(rows)) for name, rows in found.items()} for found in (layers, tensors))  # type: ignore[return-value]


def fastest_within(
    plan: Callable[[Penalties], Partition],
    layers: Mapping[str, float],
    tensors: Mapping[str, float],
    predicted: Callable[[Partition], float],
    limit: float,
) -> Partition:
    """Return the assignment with the least time whose predicted error is within a limit.

    Parameters
    ----------
    plan : callable
        From penalties to the assignment with the least sum of seconds and penalties.
    layers, tensors : mapping
        Squares of errors, as :meth:`OutputError.each` returns them.
    predicted : callable
        From an assignment to the square of its error.
    limit : float
        Largest square of the error.
    """
    free = plan(Penalties(0.0, layers, tensors))
    if predicted(free) <= limit:
        return free

    def at(exponent: float) -> Partition:
        return plan(Penalties(free.cpu_only_seconds / limit * 10.0**exponent, layers, tensors))

    low, high = np.log10(CHEAPEST), np.log10(DEAREST)
    best = at(high)
    for _ in range(STEPS):
        middle = (low + high) / 2
        partition = at(middle)
        if predicted(partition) <= limit:
            best, high = partition, middle
        else:
            low = middle
    return best


def assign_within(
    errors: OutputError,
    plan: Callable[..., Partition],
    quantized: Callable[[Partition], Sequence[IntegerNetwork]],
    partition: Partition,
    networks: Sequence[IntegerNetwork],
    largest: float,
) -> tuple[Partition, OutputEstimate]:
    """Leave to the CPU the layers that save too little time for their errors, until the outputs' error is small enough.

    Small enough is an error whose bound for other inputs is within the limit. An assignment of which that could not be
    shown has no layers on VTA but those that were put there by name.

    Parameters
    ----------
    errors : OutputError
    plan : callable
        From ``penalties=`` to an assignment.
    quantized : callable
        From an assignment to its layers in integers, once for each fit of ``errors``.
    partition : Partition
        The fastest one.
    networks : sequence of IntegerNetwork
        Its layers.
    largest : float
        Error of the outputs that is allowed, as a share of their size.

    Returns
    -------
    Partition
    OutputEstimate
    """
    limit = MARGIN * largest
    estimate = OutputEstimate.of(errors.together(networks))
    if estimate.bound <= limit:
        return partition, estimate
    layers, tensors = errors.each(networks)
    reads = {integer.layer.name: integer.layer.inputs for integer in networks[0].layers}
    layers = dict.fromkeys(reads, 0.0) | {name: value for name, value in layers.items() if name in reads}

    # Errors that depend on each other add up to more, or cancel out; and few samples do not tell much.
    whole = sum(layers.values()) + sum(tensors[name] for name in tensors.keys() - reads.keys())
    aim = max(whole * (limit / estimate.bound) ** 2, 1e-30)

    def predicted(chosen: Partition) -> float:
        read = {name for at in chosen.on_vta for name in reads[at]} - chosen.on_vta
        return sum(layers[name] for name in chosen.on_vta) + sum(tensors.get(name, 0.0) for name in read)

    judged = {partition.on_vta: estimate}

    def estimated(chosen: Partition) -> OutputEstimate:
        if chosen.on_vta not in judged:
            judged[chosen.on_vta] = OutputEstimate.of(errors.together(quantized(chosen)))
        return judged[chosen.on_vta]

    best: tuple[Partition, OutputEstimate] | None = None
    low, high = 0.0, float("inf")
    for _ in range(ROUNDS):
        partition = fastest_within(lambda penalties: plan(penalties=penalties), layers, tensors, predicted, aim)
        estimate = estimated(partition)
        if estimate.bound <= limit and (best is None or partition.seconds < best[0].seconds):
            best = partition, estimate
        if ENOUGH * limit**2 <= estimate.bound**2 <= limit**2:
            break
        low, high = (max(low, aim), high) if estimate.bound <= limit else (low, min(high, aim))
        aim *= min(max(ENOUGH**0.5 * (limit / max(estimate.bound, 1e-6)) ** 2, 1 / 8), 4.0)
        if not low < aim < high:  # errors add up to something else than was predicted, but not to anything
            aim = (low * high) ** 0.5
    if best is None:
        dear = Penalties(PROHIBITIVE, {name: max(value, 1e-12) for name, value in layers.items()}, tensors)
        partition = plan(penalties=dear)
        best = partition, estimated(partition)
    return best
