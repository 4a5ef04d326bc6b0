"""Draws networks over sequences of open number and lengths: attention, recurrences, places and masks by shapes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.shapes import random_images as images
from tests.shapes.random_network import Network, some_open

WIDTH = 8
SAMPLES = ({"n": 1, "t": 1, "s": 1}, {"n": 2, "t": 5, "s": 7}, {"n": 5, "t": 17, "s": 4})
SIZES = (*SAMPLES[:2], {"n": 1, "t": 33, "s": 1}, {"n": 4, "t": 1, "s": 31}, {"n": 2, "t": 40, "s": 65})
"""Number and two lengths of the sequences for which a network is drawn, and for which it is tried."""


def draw(seed: int, length: int = 8) -> Network:
    """Draw a network of about ``length`` nodes."""
    rng = np.random.default_rng(seed)
    inputs = {
        "x": ("float32", ("n", "t", WIDTH)),
        "memory": ("float32", ("n", "s", WIDTH)),
        "ids": ("int64", ("n", "t")),
    }
    return Network(rng, inputs, SAMPLES, some_open(rng, "nts")).take(STEPS, length)


def _sequence(network: Network) -> str | None:
    """Draw a value of three axes whose last extent is known."""
    name = network.pick(3)
    return None if name is None or network.extent(name, -1) is None else name


def _layer_norm(network: Network) -> None:
    name = _sequence(network)
    width = None if name is None else network.extent(name, -1)
    if name is not None and width is not None:
        network.add("LayerNormalization", [name, network.weight(width), network.weight(width)], axis=-1)


def _attention(network: Network) -> None:
    """Let a sequence attend to itself, to another one, or to what comes before."""
    queries, keys = _sequence(network), _sequence(network)
    width = None if queries is None else network.extent(queries, -1)
    if queries is None or keys is None or width != network.extent(keys, -1):
        return
    if not network.add("Transpose", [keys], perm=[0, 2, 1]):
        return
    if not network.add("MatMul", [queries, network.last()]):
        return
    scores = network.last()
    if network.rng.random() < 0.4 and network.add("Trilu", [scores], upper=0):
        kept = network.last()
        network.add("Equal", [kept, network.constant(0.0)])
        network.add("Where", [network.last(), network.constant(-50.0), scores])
        scores = network.last()
    if network.add("Softmax", [scores], axis=-1):
        network.add("MatMul", [network.last(), keys])


def _heads(network: Network) -> None:
    """Divide the last axis into heads, and put them before the positions."""
    name = _sequence(network)
    width = None if name is None else network.extent(name, -1)
    if name is None or width is None or width % 2:
        return
    if network.add("Reshape", [name, network.constant([0, 0, 2, width // 2], "int64")]):
        network.add("Transpose", [network.last()], perm=[0, 2, 1, 3])


def _recurrence(network: Network) -> None:
    name, rng = _sequence(network), network.rng
    width = None if name is None else network.extent(name, -1)
    if name is None or width is None or width > 64:
        return
    if not network.add("Transpose", [name], perm=[1, 0, 2]):
        return
    hidden, way = 4, str(rng.choice(["forward", "reverse", "bidirectional"]))
    ways, operator = 2 if way == "bidirectional" else 1, str(rng.choice(["GRU", "LSTM"]))
    gates = 3 if operator == "GRU" else 4
    weights = [network.weight(ways, gates * hidden, width), network.weight(ways, gates * hidden, hidden)]
    if network.add(operator, [network.last(), *weights], hidden_size=hidden, direction=way):
        made = network.last()
        if network.add("Transpose", [made], perm=[2, 0, 1, 3]):
            network.add("Reshape", [network.last(), network.constant([0, 0, ways * hidden], "int64")])


def _convolution(network: Network) -> None:
    name, rng = _sequence(network), network.rng
    if name is None or not network.add("Transpose", [name], perm=[0, 2, 1]):
        return
    turned = network.last()
    channels = network.extent(turned)
    if channels is None or channels > 64:
        return
    kernel, group = int(rng.choice([1, 3, 5])), int(rng.choice([1, channels]))
    before = int(rng.integers(0, kernel))
    network.add(
        "Conv", [turned, network.weight(channels, channels // group, kernel)],
        pads=[before, kernel - 1 - before], strides=[int(rng.choice([1, 1, 2]))], group=group,
    )  # fmt: skip


def _embedding(network: Network) -> None:
    network.add("Gather", [network.weight(16, WIDTH), "ids"], axis=0)


def _positions(network: Network) -> None:
    """Add to each position a vector of its number, which comes from the shape."""
    name = _sequence(network)
    width = None if name is None else network.extent(name, -1)
    if name is None or width is None or not network.add("Shape", [name], start=1, end=2):
        return
    zero, one = network.constant(0, "int64"), network.constant(1, "int64")
    network.add("Squeeze", [network.last()])
    if network.add("Range", [zero, network.last(), one]) and network.add("Cast", [network.last()], to=1):
        network.add("Unsqueeze", [network.last(), network.constant([1], "int64")])
        network.add("Mul", [network.last(), network.weight(width)])
        network.add("Sin", [network.last()])
        network.add("Add", [name, network.last()])


def _mask(network: Network) -> None:
    name = network.pick()
    if name is not None and network.values[name][0].dtype == np.float32:
        network.add("Greater", [name, network.constant(0.1)])
        network.add("Where", [network.last(), name, network.constant(-1.0)])


def _edge(network: Network) -> None:
    """Take the first or last position, or leave it out."""
    name = network.pick(3)
    if name is not None:
        network.add("Gather", [name, network.constant(int(network.rng.choice([0, -1])), "int64")], axis=1)


def _expansion(network: Network) -> None:
    """Repeat a pooled sequence for every position of another one."""
    name, other = network.pick(3), network.pick(3)
    if name is None or other is None:
        return
    axes = network.constant([1], "int64")
    pooled = network.add("ReduceMean", [name, axes], keepdims=1) and network.last()
    if pooled and network.add("Shape", [other]):
        network.add("Expand", [pooled, network.last()])


def _largest(network: Network) -> None:
    name = network.pick(3)
    if name is not None:
        network.add("TopK", [name, network.constant([1], "int64")], outputs=2, axis=int(network.rng.integers(3)))


STEPS: list[Callable[[Network], None]] = [
    *([_layer_norm] * 2),
    *([_attention] * 4),
    _heads,
    *([_recurrence] * 2),
    *([_convolution] * 2),
    *([_embedding] * 2),
    *([_positions] * 2),
    _mask,
    _edge,
    *([_expansion] * 2),
    _largest,
    images.elementwise_step,
    *([images.binary_step] * 2),
    *([images.join_step] * 2),
    images.slice_step,
    images.rearrange_step,
    images.reduction_step,
    *([images.product_step] * 3),
    images.repeat_step,
]
