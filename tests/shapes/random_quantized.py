"""Draws quantised networks over images of open number, height and width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.cpu import LARGEST_WEIGHT
from tests.shapes import random_images
from tests.shapes.random_images import SAMPLES, SIZES, join_step, slice_step
from tests.shapes.random_network import Network, some_open

__all__ = ["SIZES", "draw"]

MOST_CHANNELS = 48


def draw(seed: int, length: int = 10) -> Network:
    """Draw a network of about ``length`` nodes, with a quantised convolution at least."""
    rng = np.random.default_rng(seed)
    channels = int(rng.choice([1, 3, 5, 8, 17, 33]))
    network = Network(rng, {"x": ("float32", ("n", channels, "h", "w"))}, SAMPLES, some_open(rng, "nhw"))
    CONVOLUTIONS[int(rng.integers(len(CONVOLUTIONS)))](network)
    return network.take(STEPS, length)


def _floats(network: Network) -> str | None:
    """Draw a picture of floats of few channels."""
    name = network.pick(4)
    if name is None or network.values[name][0].dtype != np.float32:
        return None
    channels = network.extent(name)
    return None if channels is None or channels > MOST_CHANNELS else name


def _steps(network: Network, name: str) -> list[str]:
    """Add a scale and a zero point that fit a value of floats."""
    rng, dtype = network.rng, str(network.rng.choice(["uint8", "int8"]))
    largest = max(float(np.abs(array).max()) for array in network.values[name])
    limits = np.iinfo(dtype)
    point = int(rng.choice([limits.min, (limits.min + limits.max + 1) // 2, rng.integers(limits.min, limits.max + 1)]))
    scale = max(largest, 1e-3) / float(rng.integers(60, 128))
    return [network.constant(scale), network.constant(point, dtype)]


def _quantized(network: Network, name: str, steps: list[str]) -> str | None:
    return network.last() if network.add("QuantizeLinear", [name, *steps]) else None


def _rounded(network: Network, name: str | None = None) -> str | None:
    """Quantise a value of floats, and dequantise it."""
    name = name or _floats(network)
    if name is None:
        return None
    steps = _steps(network, name)
    integers = _quantized(network, name, steps)
    if integers is None or not network.add("DequantizeLinear", [integers, *steps]):
        return None
    return network.last()


def _rounding_step(network: Network) -> None:
    _rounded(network)


def _window(network: Network, channels: int) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Draw what a convolution does, and the shape of its weights."""
    rng = network.rng
    kernel = [int(value) for value in rng.choice([1, 1, 3, 3, 2, 5], 2)]
    divisors = [count for count in range(1, channels + 1) if channels % count == 0]
    groups = int(rng.choice([1, 1, 1, channels, rng.choice(divisors)]))
    outputs = channels if groups == channels > 1 else groups * int(rng.choice([1, 2, 3, 5, 8, 16, 17]))
    attributes = {
        "kernel_shape": kernel,
        "strides": [int(value) for value in rng.choice([1, 1, 2, 3], 2)],
        "dilations": [int(value) for value in rng.choice([1, 1, 1, 2], 2)],
        "pads": [int(value) for value in rng.integers(0, 4, 4)],
        "group": groups,
    }
    return attributes, (outputs, channels // groups, *kernel)


def _weights(network: Network, shape: tuple[int, ...], dtype: str, point: bool) -> tuple[str, str, np.ndarray]:
    """Add weights, their zero points and draw their scales, one for each channel or for all."""
    rng, limits = network.rng, np.iinfo(dtype)
    count: tuple[int, ...] = (shape[0],) if rng.random() < 0.5 else ()
    middle = 0 if dtype == "int8" else 128
    points = np.full(count, rng.integers(limits.min, limits.max + 1) if point else middle)
    lowest, highest = (-LARGEST_WEIGHT - 1, LARGEST_WEIGHT) if dtype == "int8" else (limits.min, limits.max)
    values = rng.integers(lowest, highest + 1, shape)
    scale = (rng.random(count) + 0.5) / (100 * np.sqrt(np.prod(shape[1:])))
    return network.constant(values, dtype), network.constant(points, dtype), np.asarray(scale)


def _explicit_convolution(network: Network) -> None:
    """Convolve dequantised operands and quantise the result."""
    name = _floats(network)
    channels = None if name is None else network.extent(name)
    data = None if name is None else _rounded(network, name)
    if data is None or channels is None:
        return
    attributes, shape = _window(network, channels)
    integers, points, scale = _weights(network, shape, "int8", network.rng.random() < 0.3)
    if not network.add("DequantizeLinear", [integers, network.constant(scale), points], axis=0):
        return
    weights = network.last()
    if network.add("Conv", [data, weights], **attributes):
        if network.rng.random() < 0.5:
            network.add("Relu", [network.last()])
        _rounded(network, network.last())


def _linear_convolution(network: Network) -> None:
    """Convolve integers, and give integers."""
    name = _floats(network)
    channels = None if name is None else network.extent(name)
    if name is None or channels is None:
        return
    steps = _steps(network, name)
    data = _quantized(network, name, steps)
    if data is None:
        return
    attributes, shape = _window(network, channels)
    kind = str(network.values[data][0].dtype)
    integers, points, scale = _weights(network, shape, "int8", False)
    result = [network.constant(0.05), network.constant(int(network.rng.integers(0, 100)), kind)]
    operands = [data, *steps, integers, network.constant(scale), points, *result]
    if network.rng.random() < 0.5:
        operands.append(network.constant(network.rng.integers(-500, 500, shape[0]), "int32"))
    if network.add("QLinearConv", operands, **attributes):
        network.add("DequantizeLinear", [network.last(), *result])


def _dynamic_convolution(network: Network) -> None:
    """Convolve integers whose scale and zero point are found by running, as quantisation without data makes it."""
    name = _floats(network)
    channels = None if name is None else network.extent(name)
    if name is None or channels is None or not network.add("DynamicQuantizeLinear", [name], 3):
        return
    data, step, point = list(network.values)[-3:]
    attributes, shape = _window(network, channels)
    integers, points, scale = _weights(network, shape, "uint8", network.rng.random() < 0.5)
    scale = scale.reshape(-1)[0]
    points = network.constant(int(network.rng.integers(256)), "uint8")
    if not network.add("ConvInteger", [data, integers, point, points], **attributes):
        return
    total = network.last()
    if network.add("Cast", [total], to=TensorProto.FLOAT):
        floats = network.last()
        if network.add("Mul", [step, network.constant(scale)]):
            network.add("Mul", [floats, network.last()])


def _sum(network: Network) -> None:
    """Add two rounded values, as a residual block does."""
    name = _floats(network)
    other = None if name is None else network.partner(name)
    if name is not None and other is not None and network.add("Add", [name, other]):
        _rounded(network, network.last())


def _largest(network: Network) -> None:
    name, rng = network.pick(4), network.rng
    if name is not None:
        sizes = [int(value) for value in rng.choice([2, 3], 2)]
        network.add(
            "MaxPool", [name], kernel_shape=sizes, strides=[int(value) for value in rng.choice([1, 2], 2)],
            pads=[int(value) for value in rng.integers(0, 2, 4)],
        )  # fmt: skip


def _average(network: Network) -> None:
    name = _rounded(network)
    if name is not None and network.add("GlobalAveragePool", [name]):
        _rounded(network, network.last())


def _smooth(network: Network) -> None:
    """Apply a function without steps, which would make much of a difference that rounding makes."""
    name = _floats(network)
    if name is not None:
        network.add(str(network.rng.choice(["Relu", "Sigmoid", "Tanh", "HardSwish", "Abs", "Neg"])), [name])


CONVOLUTIONS: list[Callable[[Network], None]] = [_explicit_convolution, _linear_convolution, _dynamic_convolution]
STEPS: list[Callable[[Network], None]] = [
    *([_explicit_convolution] * 4),
    *([_linear_convolution] * 3),
    *([_dynamic_convolution] * 2),
    *([_sum] * 2),
    *([_largest] * 2),
    _average,
    _rounding_step,
    _smooth,
    join_step,
    slice_step,
    random_images.pool_step,
]
