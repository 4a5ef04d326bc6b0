"""Draws networks over images of open number, height and width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.shapes.random_network import Network, some_open

SAMPLES = ({"n": 1, "h": 1, "w": 1}, {"n": 2, "h": 7, "w": 9}, {"n": 5, "h": 33, "w": 18})
SIZES = (*SAMPLES[:2], {"n": 1, "h": 17, "w": 1}, {"n": 3, "h": 1, "w": 31}, {"n": 4, "h": 33, "w": 40})
"""Number, height and width of the images for which a network is drawn, and for which it is tried."""


def draw(seed: int, length: int = 6) -> Network:
    """Draw a network of about ``length`` nodes."""
    rng = np.random.default_rng(seed)
    network = Network(rng, {"x": ("float32", ("n", 5, "h", "w"))}, SAMPLES, some_open(rng, "nhw"))
    return network.take(STEPS, length)


def _convolution(network: Network) -> None:
    name, rng = network.pick(4), network.rng
    channels = None if name is None else network.extent(name)
    if name is None or channels is None or channels > 64:
        return
    kernel = [int(value) for value in rng.choice([1, 2, 3, 5], 2)]
    strides = [int(value) for value in rng.choice([1, 1, 2, 3], 2)]
    attributes: dict[str, Any] = {"strides": strides}
    # Where steps leave pixels out, automatic padding may depend on the extent, which is refused.
    if rng.random() < 0.3 and all(size >= step for size, step in zip(kernel, strides, strict=True)):
        attributes["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER"]))
    else:
        attributes["dilations"] = [int(value) for value in rng.choice([1, 1, 2], 2)]
        attributes["pads"] = [int(value) for value in rng.integers(0, 4, 4)]
    group = int(rng.choice([1, 1, channels]))
    results = group * int(rng.choice([1, 2])) if group > 1 else int(rng.choice([3, 8, 16]))
    network.add(
        "Conv", [name, network.weight(results, channels // group, *kernel), network.weight(results)],
        kernel_shape=kernel, group=group, **attributes,
    )  # fmt: skip


def _transposed(network: Network) -> None:
    name, rng = network.pick(4), network.rng
    channels = None if name is None else network.extent(name)
    if name is None or channels is None or channels > 64:
        return
    kernel = [int(value) for value in rng.choice([2, 3, 4], 2)]
    strides = [int(value) for value in rng.choice([1, 2, 3], 2)]
    network.add("ConvTranspose", [name, network.weight(channels, 4, *kernel)], kernel_shape=kernel, strides=strides)


def pool_step(network: Network) -> None:
    name, rng = network.pick(4), network.rng
    if name is None:
        return
    kernel = [int(value) for value in rng.choice([2, 3, 5], 2)]
    pads = [int(rng.integers(0, size)) for size in (*kernel, *kernel)]
    strides = [int(value) for value in rng.choice([1, 2, 3], 2)]
    if rng.random() < 0.5:
        network.add("MaxPool", [name], kernel_shape=kernel, strides=strides, pads=pads)
    else:
        include = int(rng.random() < 0.5)
        network.add("AveragePool", [name], kernel_shape=kernel, strides=strides, pads=pads, count_include_pad=include)


def _resize(network: Network) -> None:
    name, rng = network.pick(4), network.rng
    if name is None:
        return
    scales = [1.0, 1.0, *(float(value) for value in rng.choice([1, 2, 3], 2))]
    kind = rng.random()
    if kind < 0.5:
        attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    else:
        way = str(rng.choice(["half_pixel", "align_corners", "asymmetric"]))
        attributes = {"mode": "linear", "coordinate_transformation_mode": way}
    other = network.pick(4)
    if kind < 0.75 or other is None:
        network.add("Resize", [name, "", network.constant(scales)], **attributes)
    elif network.add("Shape", [other], start=2, end=4):
        sizes = network.last()
        if network.add("Shape", [name], start=0, end=2):
            whole = network.last()
            if network.add("Concat", [whole, sizes], axis=0):
                network.add("Resize", [name, "", "", network.last()], **attributes)


def elementwise_step(network: Network) -> None:
    name = network.pick()
    operators = ["Relu", "Sigmoid", "Tanh", "HardSwish", "Abs", "Neg", "Softplus", "Erf", "Ceil", "Sign"]
    if name is not None:
        network.add(str(network.rng.choice(operators)), [name])


def binary_step(network: Network) -> None:
    name = network.pick()
    other = None if name is None else network.partner(name)
    if name is not None and other is not None:
        network.add(str(network.rng.choice(["Add", "Sub", "Mul", "Max", "Min"])), [name, other])


def _gate(network: Network) -> None:
    """Multiply with a number of every channel."""
    name = network.pick(4)
    if name is not None and network.add(str(network.rng.choice(["GlobalAveragePool", "GlobalMaxPool"])), [name]):
        gate = network.last()
        network.add(str(network.rng.choice(["Mul", "Add"])), [name, gate])


def _normalization(network: Network) -> None:
    name, rng = network.pick(4), network.rng
    channels = None if name is None else network.extent(name)
    if name is None or channels is None:
        return
    scale, bias = network.weight(channels), network.weight(channels)
    if rng.random() < 0.5:
        mean, variance = network.weight(channels), network.constant(rng.random(channels) + 0.5)
        network.add("BatchNormalization", [name, scale, bias, mean, variance])
    else:
        network.add("InstanceNormalization", [name, scale, bias], epsilon=0.1)


def join_step(network: Network) -> None:
    name = network.pick()
    other = None if name is None else network.partner(name)
    if name is not None and other is not None:
        rank = network.values[name][0].ndim
        network.add("Concat", [name, other], axis=int(network.rng.integers(-rank, rank)) if rank else 0)


def slice_step(network: Network) -> None:
    name, rng = network.pick(), network.rng
    rank = 0 if name is None else network.values[name][0].ndim
    if name is None or not rank:
        return
    axis = int(rng.integers(rank))
    start, stop, step = [(0, 2**31, 2), (1, 2**31, 1), (-1, -(2**31), -1), (0, -1, 1), (-3, 2**31, 1), (0, 3, 1)][
        int(rng.integers(6))
    ]
    network.add("Slice", [name, *(network.constant([value], "int64") for value in (start, stop, axis, step))])


def _pad(network: Network) -> None:
    name, rng = network.pick(4), network.rng
    if name is not None:
        pads = [0, 0, *(int(value) for value in rng.integers(0, 3, 2))]
        pads += [0, 0, *(int(value) for value in rng.integers(0, 3, 2))]
        network.add("Pad", [name, network.constant(pads, "int64")], mode=str(rng.choice(["constant", "edge"])))


def rearrange_step(network: Network) -> None:
    name, rng = network.pick(), network.rng
    rank = 0 if name is None else network.values[name][0].ndim
    if name is None or rank < 2:
        return
    kind = int(rng.integers(6))
    if kind == 0:
        network.add("Transpose", [name], perm=[int(axis) for axis in rng.permutation(rank)])
    elif kind == 1:
        network.add("Flatten", [name], axis=int(rng.integers(1, rank)))
    elif kind == 2:
        network.add("Reshape", [name, network.constant([0, -1, *([] if rank < 3 else [0][: rank - 3])], "int64")])
    elif kind == 3 and rank == 4:
        network.add("SpaceToDepth", [name], blocksize=2)
    elif kind == 4 and rank == 4:
        network.add("DepthToSpace", [name], blocksize=2, mode=str(rng.choice(["DCR", "CRD"])))
    else:
        network.add("Unsqueeze", [name, network.constant([int(rng.integers(rank))], "int64")])


def reduction_step(network: Network) -> None:
    name, rng = network.pick(), network.rng
    rank = 0 if name is None else network.values[name][0].ndim
    if name is None or rank < 2:
        return
    axes = sorted({int(axis) for axis in rng.integers(0, rank, 2)})
    operator = str(rng.choice(["ReduceMean", "ReduceMax", "ReduceSum", "ReduceL2"]))
    if operator == "ReduceSum":
        network.add(operator, [name, network.constant(axes, "int64")], keepdims=int(rng.random() < 0.5))
    else:
        network.add(operator, [name, network.constant(axes, "int64")], keepdims=int(rng.random() < 0.7))


def softmax_step(network: Network) -> None:
    name = network.pick()
    rank = 0 if name is None else network.values[name][0].ndim
    if name is not None and rank:
        axis = int(network.rng.integers(-rank, rank))
        network.add(str(network.rng.choice(["Softmax", "LogSoftmax"])), [name], axis=axis)


def product_step(network: Network) -> None:
    name, rng = network.pick(), network.rng
    if name is None or network.values[name][0].ndim < 2:
        return
    depth = network.extent(name, -1)
    if depth is not None and depth <= 512:
        network.add("MatMul", [name, network.weight(depth, int(rng.choice([3, 17, 32])))])
    elif network.add("Transpose", [name], perm=_swapped(network.values[name][0].ndim)):
        other = network.last()
        network.add("MatMul", [name, other] if rng.random() < 0.5 else [other, name])


def _swapped(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


def split_step(network: Network) -> None:
    name = network.pick(4)
    channels = None if name is None else network.extent(name)
    if name is not None and channels is not None and channels > 1:
        sizes = [channels // 2, channels - channels // 2]
        network.add("Split", [name, network.constant(sizes, "int64")], outputs=2, axis=1)


def repeat_step(network: Network) -> None:
    name, rng = network.pick(), network.rng
    rank = 0 if name is None else network.values[name][0].ndim
    if name is None or not rank:
        return
    if rng.random() < 0.5:
        network.add("Tile", [name, network.constant([int(value) for value in rng.choice([1, 1, 2], rank)], "int64")])
    else:
        network.add("CumSum", [name, network.constant(int(rng.integers(rank)), "int64")])


STEPS: list[Callable[[Network], None]] = [
    *([_convolution] * 4),
    _transposed,
    *([pool_step] * 2),
    *([_resize] * 2),
    *([elementwise_step] * 2),
    *([binary_step] * 2),
    _gate,
    _normalization,
    *([join_step] * 2),
    slice_step,
    _pad,
    *([rearrange_step] * 2),
    reduction_step,
    softmax_step,
    *([product_step] * 2),
    split_step,
    repeat_step,
]
