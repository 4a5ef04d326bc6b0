"""Draws networks whose products tensor cores multiply: dense layers, convolutions and attention of 16 to 200."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from tests.shapes.random_images import join_step, slice_step, softmax_step
from tests.shapes.random_network import Network

EXTENTS = (16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 65, 72, 80, 96, 100, 112, 127, 128, 129, 144, 160, 192, 200)
DEEP = (208, 231, 256, 264, 320, 384)
"""From 193 on the depth has the steps that tiles for ``wgmma`` need."""
FEW = (1, 1, 2, 3, 5)
MOST_PRODUCTS = 6_000_000
"""Multiply-adds of a network, as the emulator takes a microsecond for four."""


class Products(Network):
    """A network under construction, with what its products cost so far.

    Attributes
    ----------
    spent : int
        Multiply-adds.
    """

    spent = 0

    @property
    def dtype(self) -> str:
        """The type that everything is computed in."""
        return self.inputs["x"][0]

    def weight(self, *shape: int) -> str:
        """Add a random constant whose products keep their magnitude."""
        scale = np.sqrt(max(1, int(np.prod(shape[1:]))))
        return self.constant(self.rng.standard_normal(shape) / scale, self.dtype)

    def affords(self, products: int) -> bool:
        """Whether so many multiply-adds more are not too many; they are counted then."""
        if self.spent + products > MOST_PRODUCTS:
            return False
        self.spent += products
        return True

    def shape(self, name: str) -> tuple[int, ...]:
        """Give the shape of a value."""
        return self.values[name][0].shape

    def extent_of_result(self) -> int:
        """Draw rows, columns or channels."""
        return int(self.rng.choice(DEEP if self.rng.random() < 0.4 else EXTENTS))

    def floats(self, rank: int | None = None) -> str | None:
        """Draw a value in the type of the network."""
        name = self.pick(rank)
        return None if name is None or str(self.values[name][0].dtype) != self.dtype else name


def draw(seed: int, dtype: str = "float32", deep: bool = False, quantized: bool = False, length: int = 8) -> Products:
    """Draw a network of about ``length`` nodes that begins with a product: a deep one, or of bytes, if asked for."""
    rng = np.random.default_rng(seed)
    extents = [int(extent) for extent in rng.choice(EXTENTS, 3)]
    if deep or rng.random() < 0.3:
        extents[1] = int(rng.choice(DEEP))
    small = [int(extent) for extent in rng.integers(3, 15, 2)]
    inputs: dict[str, tuple[str, Sequence[int | str]]] = [
        {"x": (dtype, extents[:2])},
        {"x": (dtype, [int(rng.choice(FEW)), *extents[:2]]), "y": (dtype, [1, *extents[1:]])},
        {"x": (dtype, [int(rng.choice(FEW)), extents[0], *small])},
        {"x": (dtype, [int(rng.choice(FEW)), int(rng.choice([3, 8, *extents]) if not deep else extents[1]), *small])},
    ][int(rng.integers(4))]
    network = Products(rng, inputs, ({}, {}), ())
    if quantized:
        first = (_quantized_convolution if len(inputs["x"][1]) == 4 else _quantized_dense,)
    else:
        first = {2: (_dense,), 3: (_dense, _attention), 4: (_convolution,)}[len(inputs["x"][1])]
    for _ in range(8):
        if not network.nodes:
            first[int(rng.integers(len(first)))](network)
    network.take(QUANTIZED if quantized else STEPS, 3 * length if quantized else length)
    return network


def _dense(network: Products) -> None:
    """Multiply with a weight that lies either way, add a bias perhaps, and apply a function perhaps."""
    name, rng = network.floats(), network.rng
    if name is None or len(network.shape(name)) < 2:
        return
    shape, outputs = network.shape(name), network.extent_of_result()
    if shape[-1] > 512 or not network.affords(prod(shape) * outputs):
        return
    kind = rng.random()
    if len(shape) == 2 and kind < 0.4:
        turned = rng.random() < 0.5
        weight = network.weight(*((outputs, shape[1]) if turned else (shape[1], outputs)))
        operands = [name, weight, *([network.weight(outputs)] if rng.random() < 0.5 else [])]
        network.add("Gemm", operands, transB=int(turned), alpha=float(rng.choice([1.0, 0.5])))
    elif kind < 0.7:
        if not network.add("Transpose", [network.weight(outputs, shape[-1])], perm=[1, 0]):
            return
        network.add("MatMul", [name, network.last()])
    else:
        network.add("MatMul", [name, network.weight(shape[-1], outputs)])
    _behind(network)


def _rounded(network: Products, name: str) -> str:
    """Quantise a value, and dequantise it."""
    rng, kind = network.rng, str(network.rng.choice(["uint8", "int8"]))
    largest = max(float(np.abs(network.values[name][0]).max()), 1e-3)
    scale, point = largest / float(rng.integers(60, 128)), int(rng.choice([0, 0, 3])) + (128 if kind == "uint8" else 0)
    steps = [network.constant(scale), network.constant(point, kind)]
    network.add("QuantizeLinear", [name, *steps])
    network.add("DequantizeLinear", [network.last(), *steps])
    return network.last()


def _rounded_weight(network: Products, shape: Sequence[int], axis: int) -> str:
    """Add a weight in bytes, with a scale for each of its outputs or for all."""
    rng = network.rng
    per = shape[axis] if rng.random() < 0.5 else 1
    scale = (rng.random(per) + 0.5) / (70 * np.sqrt(prod(shape) / shape[axis]))
    points = network.constant(np.zeros(per), "int8")
    integers = network.constant(rng.integers(-127, 128, shape), "int8")
    if per == 1:
        scale, points = scale[0], network.constant(0, "int8")
    network.add("DequantizeLinear", [integers, network.constant(scale), points], axis=axis)
    return network.last()


def _quantized_dense(network: Products) -> None:
    name, rng = network.floats(), network.rng
    if name is None or len(network.shape(name)) < 2:
        return
    shape, outputs = network.shape(name), network.extent_of_result()
    if shape[-1] > 512 or not network.affords(prod(shape) * outputs):
        return
    given = _rounded(network, name)
    if len(shape) == 2 and rng.random() < 0.5:
        weight = _rounded_weight(network, (outputs, shape[1]), 0)
        added = network.add("Gemm", [given, weight], transB=1)
    else:
        added = network.add("MatMul", [given, _rounded_weight(network, (shape[-1], outputs), 1)])
    if added:
        _behind(network)
        _rounded(network, network.last())


def _quantized_convolution(network: Products) -> None:
    name, rng = network.floats(4), network.rng
    if name is None:
        return
    shape = network.shape(name)
    kernel = [int(size) for size in rng.choice([1, 1, 3], 2)]
    groups = 2 if shape[1] % 32 == 0 and rng.random() < 0.2 else 1
    outputs = groups * int(rng.choice([16, 17, 32, 48, 64, 100]))
    if not network.affords(prod(shape) * outputs // groups * prod(kernel)):
        return
    given = _rounded(network, name)
    weight = _rounded_weight(network, (outputs, shape[1] // groups, *kernel), 0)
    pads = [int(size) for size in rng.integers(0, 2, 4)]
    if network.add("Conv", [given, weight], kernel_shape=kernel, pads=pads, group=groups):
        _behind(network)
        _rounded(network, network.last())


def _rounded_sum(network: Products) -> None:
    """Add two values in bytes, as residual blocks do."""
    name = network.floats()
    other = None if name is None else network.partner(name)
    if name is not None and other is not None and network.add("Add", [name, other]):
        _rounded(network, network.last())


def _behind(network: Products) -> None:
    """Continue with what is fused to a product."""
    rng = network.rng
    channel = 1 if len(network.shape(network.last())) == 4 else -1
    for _ in range(int(rng.integers(3))):
        name = network.last()
        shape = network.shape(name)
        kind = rng.random()
        if kind < 0.35:
            bias = network.weight(shape[channel], *([1, 1] if channel == 1 else []))
            network.add("Add", [name, bias])
        elif kind < 0.6:
            network.add(str(rng.choice(["Relu", "Sigmoid", "Tanh", "HardSwish", "LeakyRelu"])), [name])
        elif kind < 0.7:
            network.add("Erf", [name])
            network.add("Mul", [network.last(), name])
        elif (other := network.partner(name)) is not None:
            network.add("Add", [name, other])


def _between(network: Products) -> None:
    """Multiply two values: each other's rows, or a value with itself turned round."""
    name, other = network.floats(), network.floats()
    if name is None or other is None:
        return
    left, right = network.shape(name), network.shape(other)
    if len(left) < 2 or len(left) != len(right) or left[:-2] != right[:-2]:
        return
    swapped = [*range(len(left) - 2), len(left) - 1, len(left) - 2]
    if left[-1] == right[-1] and network.affords(prod(left) * right[-2]):
        if network.add("Transpose", [other], perm=swapped):
            network.add("MatMul", [name, network.last()])
    elif left[-2] == right[-2] and network.affords(prod(left) * right[-1]):
        if network.add("Transpose", [name], perm=swapped):
            network.add("MatMul", [network.last(), other])
    elif left[-1] == right[-2] and network.affords(prod(left) * right[-1]):
        network.add("MatMul", [name, other])
    else:
        return
    network.add("Mul", [network.last(), network.constant(1 / np.sqrt(left[-1]), network.dtype)])


def _attention(network: Products) -> None:
    """Let a sequence attend to itself in heads, with projections that lie beside each other or apart."""
    name, rng = network.floats(3), network.rng
    if name is None:
        return
    batch, length, width = network.shape(name)
    heads, size = int(rng.choice([1, 2, 3, 4])), int(rng.choice([8, 16, 32, 33, 40, 64]))
    inner = heads * size
    cost = batch * length * (3 * width * inner + 2 * length * inner)
    if width > 256 or not network.affords(cost):
        return
    parts = []
    for _ in range(3):
        network.add("MatMul", [name, network.weight(width, inner)])
        if rng.random() < 0.5:
            network.add("Add", [network.last(), network.weight(inner)])
        network.add("Reshape", [network.last(), network.constant([0, 0, heads, size], "int64")])
        parts.append(network.last())
    query, key, value = parts
    network.add("Transpose", [query], perm=[0, 2, 1, 3])
    query = network.last()
    network.add("Transpose", [key], perm=[0, 2, 3, 1])
    network.add("MatMul", [query, network.last()])
    network.add("Mul", [network.last(), network.constant(size**-0.5, network.dtype)])
    if rng.random() < 0.4:
        kept = np.where(np.tri(length) > 0, 0.0, -1e4) if rng.random() < 0.5 else rng.standard_normal((length, length))
        network.add("Add", [network.last(), network.constant(kept, network.dtype)])
    network.add("Softmax", [network.last()], axis=-1)
    scores = network.last()
    network.add("Transpose", [value], perm=[0, 2, 1, 3])
    network.add("MatMul", [scores, network.last()])
    if rng.random() < 0.8:
        network.add("Transpose", [network.last()], perm=[0, 2, 1, 3])
        network.add("Reshape", [network.last(), network.constant([0, 0, inner], "int64")])
    if (
        rng.random() < 0.5
        and len(network.shape(network.last())) == 3
        and network.affords(batch * length * inner * width)
    ):
        network.add("MatMul", [network.last(), network.weight(inner, width)])
        network.add("Add", [network.last(), name])


def _convolution(network: Products) -> None:
    """Convolve images, or sequences, in one group or in several."""
    name, rng = network.floats(4 if network.rng.random() < 0.8 else 3), network.rng
    if name is None:
        return
    if len(network.shape(name)) == 3:
        if not network.add("Transpose", [name], perm=[0, 2, 1]):
            return
        name = network.last()
    shape = network.shape(name)
    channels, axes = shape[1], len(shape) - 2
    kernel = [int(size) for size in rng.choice([1, 1, 2, 3, 3, 5], axes)]
    groups = int(rng.choice([count for count in (1, 1, 1, 2, 3, 4) if channels % count == 0]))
    outputs = groups * int(rng.choice([8, 16, 32, 48, 64]) if groups > 1 else network.extent_of_result())
    attributes: dict[str, Any] = {
        "strides": [int(step) for step in rng.choice([1, 1, 2], axes)],
        "dilations": [int(step) for step in rng.choice([1, 1, 1, 2], axes)],
        "pads": [int(size) for size in rng.integers(0, 3, 2 * axes)],
        "group": groups,
    }
    pixels = prod(shape[2:]) / prod(attributes["strides"])
    cost = int(shape[0] * pixels * outputs * channels // groups * prod(kernel))
    if channels // groups * prod(kernel) > 2048 or not network.affords(cost):
        return
    operands = [name, network.weight(outputs, channels // groups, *kernel)]
    operands += [network.weight(outputs)] if rng.random() < 0.5 else []
    if network.add("Conv", operands, kernel_shape=kernel, **attributes):
        _behind(network)


def _transposed(network: Products) -> None:
    name, rng = network.floats(4), network.rng
    if name is None:
        return
    shape, outputs = network.shape(name), int(rng.choice([8, 16, 24, 33]))
    kernel = [int(size) for size in rng.choice([2, 3, 4], 2)]
    if not network.affords(prod(shape) * outputs * prod(kernel)):
        return
    strides = [int(step) for step in rng.choice([1, 2], 2)]
    if network.add("ConvTranspose", [name, network.weight(shape[1], outputs, *kernel)], strides=strides):
        _behind(network)


def _normalization(network: Products) -> None:
    name = network.floats()
    if name is not None and len(network.shape(name)) > 1:
        width = network.shape(name)[-1]
        network.add("LayerNormalization", [name, network.weight(width), network.weight(width)], axis=-1, epsilon=1e-2)


def _rearrangement(network: Products) -> None:
    """Turn axes, join some, divide one, or go from images to sequences."""
    name, rng = network.floats(), network.rng
    if name is None:
        return
    shape = network.shape(name)
    rank = len(shape)
    kind = int(rng.integers(5))
    if kind == 0:
        network.add("Transpose", [name], perm=[int(axis) for axis in rng.permutation(rank)])
    elif kind == 1 and rank > 2:
        place = int(rng.integers(rank - 1))
        joined = [*shape[:place], shape[place] * shape[place + 1], *shape[place + 2 :]]
        network.add("Reshape", [name, network.constant(joined, "int64")])
    elif kind == 2 and rank < 5:
        place = int(rng.integers(rank))
        factors = [size for size in (2, 3, 4, 8) if shape[place] % size == 0]
        if factors:
            factor = int(rng.choice(factors))
            divided = [*shape[:place], shape[place] // factor, factor, *shape[place + 1 :]]
            network.add("Reshape", [name, network.constant(divided, "int64")])
    elif kind == 3 and rank == 4:
        network.add("Reshape", [name, network.constant([shape[0], shape[1], -1], "int64")])
        network.add("Transpose", [network.last()], perm=[0, 2, 1])
    elif kind == 4:
        network.add("Flatten", [name], axis=int(rng.integers(1, max(2, rank))))


def _pool(network: Products) -> None:
    name, rng = network.floats(4), network.rng
    if name is None:
        return
    kind = str(rng.choice(["MaxPool", "AveragePool", "GlobalAveragePool"]))
    network.add(kind, [name], **({} if kind == "GlobalAveragePool" else {"kernel_shape": [2, 2], "strides": [2, 2]}))


def _edge(network: Products) -> None:
    """Pad the last axis, or repeat what is there."""
    name, rng = network.floats(), network.rng
    rank = 0 if name is None else len(network.shape(name))
    if name is None or rank < 2:
        return
    if rng.random() < 0.5:
        pads = [*[0] * (rank - 1), int(rng.integers(2)), *[0] * (rank - 1), int(rng.integers(3))]
        network.add("Pad", [name, network.constant(pads, "int64")])
    else:
        network.add("Tile", [name, network.constant([*[1] * (rank - 1), 2], "int64")])


STEPS: list[Callable[[Any], None]] = [
    *([_dense] * 5),
    *([_convolution] * 4),
    *([_between] * 3),
    *([_attention] * 2),
    _transposed,
    *([_normalization] * 2),
    softmax_step,
    *([_rearrangement] * 3),
    *([join_step] * 2),
    slice_step,
    _pool,
    _edge,
]

QUANTIZED: list[Callable[[Any], None]] = [
    *([_quantized_dense] * 4),
    *([_quantized_convolution] * 4),
    *([_rounded_sum] * 2),
    *([_rearrangement] * 2),
    join_step,
    _pool,
]
