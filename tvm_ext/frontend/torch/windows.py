"""Converters of pooling to a size, sums of embeddings, transposed convolutions of volumes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.fx import Node
from tvm import relax

from tvm_ext.frontend.torch.arguments import argument, static_size

Emit = Callable[[Any], Any]


def adaptive_max_pool(axes: int, importer: Any, node: Node) -> Any:
    """Largest elements of windows that split each axis as evenly as possible; first result only.

    Window ``i`` of ``m`` on an axis of ``n`` goes from ``floor(i * n / m)`` up to ``ceil((i + 1) * n / m)``: windows
    overlap where ``m`` does not divide ``n``, and then are gathered.
    """
    if any(user.args[1] == 1 and user.users for user in node.users):
        raise NotImplementedError("it returns the places of the maxima, too, which have no converter")
    emit = importer.block_builder.emit
    data = importer.env[node.args[0]]
    rank = len(data.ty.shape)
    sizes = [int(size) for size in node.args[1]]
    lengths = [static_size(data, axis) for axis in range(rank - axes, rank)]
    for axis, length, size in zip(range(rank - axes, rank), lengths, sizes, strict=True):
        shape = list(data.ty.shape)
        if size == 1:
            data = emit(relax.op.max(data, [axis], keepdims=True))
            continue
        if length == size:
            continue
        if length % size:
            starts = np.arange(size) * length // size
            ends = -(-(np.arange(size) + 1) * length // size)
            width = int((ends - starts).max())
            # Shorter windows hold their last element twice.
            places = np.minimum(starts[:, None] + np.arange(width), ends[:, None] - 1).reshape(-1)
            data = emit(relax.op.take(data, relax.const(places, "int64"), axis, mode="clip"))
        else:
            width = length // size
        windows = emit(relax.op.reshape(data, [*shape[:axis], size, width, *shape[axis + 1 :]]))
        data = emit(relax.op.max(windows, [axis + 1]))
    return (data,)


def embedding_bag(importer: Any, node: Node) -> Any:
    """``F.embedding_bag``: sum, mean or maximum of the rows of each bag; an empty bag is zero. First result only."""
    emit = importer.block_builder.emit
    weight, indices = importer.env[node.args[0]], importer.env[node.args[1]]
    mode = int(argument(node, 4, "mode", 0))
    scales = argument(node, 6, "per_sample_weights")
    padding = int(argument(node, 8, "padding_idx", -1))
    dtype, count, width = str(weight.ty.dtype), static_size(indices, 0), weight.ty.shape[1]
    bags = int(node.meta["val"][0].shape[0])
    rows = emit(relax.op.take(weight, indices, 0, mode="clip"))
    if scales is not None:
        rows = emit(relax.op.multiply(rows, emit(relax.op.reshape(importer.env[scales], [count, 1]))))
    neutral = relax.const(-math.inf if mode == 2 else 0.0, dtype)
    counted = relax.const(np.ones([count, 1]), dtype)
    if padding >= 0:
        skipped = emit(relax.op.equal(indices, relax.const(padding, str(indices.ty.dtype))))
        skipped = emit(relax.op.reshape(skipped, [count, 1]))
        rows = emit(relax.op.where(skipped, neutral, rows))
        counted = emit(relax.op.where(skipped, relax.const(0, dtype), counted))
    if bags and count and _evenly(node.args[2], count, bags):
        shape = [bags, count // bags]
        totals = emit((relax.op.max if mode == 2 else relax.op.sum)(emit(relax.op.reshape(rows, [*shape, width])), [1]))
        sizes = emit(relax.op.sum(emit(relax.op.reshape(counted, [*shape, 1])), [1]))
    else:
        bag = _bag_of_each(emit, importer.env[node.args[2]], count, bags)
        totals = _gathered(emit, rows, bag, neutral, [bags, width], "max" if mode == 2 else "add")
        sizes = _gathered(emit, counted, bag, relax.const(0, dtype), [bags, 1], "add")
    one = relax.const(1, dtype)
    if mode == 1:
        totals = emit(relax.op.divide(totals, emit(relax.op.maximum(sizes, one))))
    elif mode == 2:
        totals = emit(relax.op.where(emit(relax.op.less(sizes, one)), relax.const(0, dtype), totals))
    return (totals,)


def _evenly(offsets: Node, count: int, bags: int) -> bool:
    """Whether bags are of one size, as torch makes them of an input of two dimensions."""
    whole = offsets.target is torch.ops.aten.arange.start_step and all(isinstance(part, int) for part in offsets.args)
    return whole and count % bags == 0 and tuple(offsets.args) == (0, count, count // bags)


def _bag_of_each(emit: Emit, offsets: Any, count: int, bags: int) -> Any:
    """Find the bag of each index: the last one that begins before it or with it."""
    offsets = emit(relax.op.reshape(offsets, [-1, 1]))
    if static_size(offsets, 0) > bags:  # with the end of the last bag
        offsets = emit(relax.op.strided_slice(offsets, [0], [0], [bags]))
    positions = relax.const(np.arange(count).reshape(1, count), str(offsets.ty.dtype))
    begun = emit(relax.op.astype(emit(relax.op.less_equal(offsets, positions)), "int64"))
    return emit(relax.op.subtract(emit(relax.op.sum(begun, [0])), relax.const(1, "int64")))


def _gathered(emit: Emit, rows: Any, bag: Any, neutral: Any, shape: list[Any], how: str) -> Any:
    start = emit(relax.op.broadcast_to(neutral, shape))
    index = emit(relax.op.reshape(bag, [-1, 1]))
    index = emit(relax.op.broadcast_to(index, list(rows.ty.shape)))
    return emit(relax.op.scatter_elements(start, index, rows, 0, how))


def convolution(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """Transposed convolutions of volumes; all others are TVM's."""
    transposed = bool(argument(node, 6, "transposed", False))
    if not transposed or len(importer.env[node.args[0]].ty.shape) != 5:
        return stock(node)
    emit = importer.block_builder.emit
    data, weight = (importer.env[operand] for operand in node.args[:2])
    strides, pads, dilation, output_padding = (
        [int(size) for size in node.args[place]] * (1 if len(node.args[place]) == 3 else 3) for place in (3, 4, 5, 7)
    )
    result = emit(
        relax.op.nn.conv3d_transpose(
            data, weight, strides, pads, output_padding, dilation, int(node.args[8]), out_dtype=str(data.ty.dtype)
        )
    )
    if node.args[2] is None:
        return result
    bias = emit(relax.op.reshape(importer.env[node.args[2]], [1, -1, 1, 1, 1]))
    return emit(relax.op.add(result, bias))


WINDOWS: Mapping[str, Callable[[Any, Node], Any]] = {
    "_embedding_bag.default": embedding_bag,
    "_embedding_bag_forward_only.default": embedding_bag,
    "adaptive_max_pool2d.default": partial(adaptive_max_pool, 2),
    "adaptive_max_pool3d.default": partial(adaptive_max_pool, 3),
}
"""By name of operator and overload."""
