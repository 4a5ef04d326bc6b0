"""Converters of max pooling, pooling to a size, folding, sums of embeddings, transposed convolutions of volumes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import tvm
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from tvm import relax

from tvm_ext.frontend.relax.columns import picture_of_columns
from tvm_ext.frontend.torch.arguments import argument, extent_of, static_size
from tvm_ext.frontend.torch.sample_convolutions import (
    GroupedWindows,
    convolution_by_columns,
    transposed_convolution_by_columns,
)

Emit = Callable[[Any], Any]


def adaptive_max_pool(axes: int, importer: Any, node: Node) -> Any:
    """Largest elements of windows that split each axis as evenly as possible, and their places if these are read.

    Window ``i`` of ``m`` on an axis of ``n`` goes from ``floor(i * n / m)`` up to ``ceil((i + 1) * n / m)``: windows
    overlap where ``m`` does not divide ``n``, and then are gathered.
    """
    emit = importer.block_builder.emit
    data = importer.env[node.args[0]]
    rank = len(data.ty.shape)
    sizes = [int(size) for size in node.args[1]]
    placed = any(user.args[1] == 1 and user.users for user in node.users)
    if not placed and not all(isinstance(extent, tvm.tirx.IntImm) for extent in list(data.ty.shape)[rank - axes :]):
        for axis, size in zip(range(rank - axes, rank), sizes, strict=True):
            data = _largest_of_open(emit, data, axis, size)
        return (data,)
    lengths = [static_size(data, axis) for axis in range(rank - axes, rank)]
    if placed:
        windows = []
        for length, size in zip(lengths, sizes, strict=True):
            starts, ends = np.arange(size) * length // size, -(-(np.arange(size) + 1) * length // size)
            at = starts + np.arange((ends - starts).max(initial=0))[:, None]
            windows.append((at, at < ends))
        return _largest_with_places(emit, data, lengths, sizes, windows)
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


def _largest_of_open(emit: Emit, data: Any, axis: int, size: int) -> Any:
    """Pool along one axis whose extent may be open: each window is a slice of it."""
    length, one = data.ty.shape[axis], tvm.tirx.const(1, "int64")
    parts = []
    for place in range(size):
        ends = (place * length // size, (((place + 1) * length) + (size - 1)) // size)
        begin, end = (tvm.sym.Analyzer().simplify(end) for end in ends)
        window = emit(relax.op.strided_slice(data, [axis], [begin], [end], [one], assume_inbound=True))
        parts.append(emit(relax.op.max(window, [axis], keepdims=True)))
    return parts[0] if size == 1 else emit(relax.op.concat(parts, axis))


def max_pool(axes: int, stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """Max pooling, also with the places of the maxima in the picture; TVM gives the maxima in place of those."""
    size = for_each_axis(node.args[1], axes)
    strides = for_each_axis(argument(node, 2, "stride") or size, axes)
    pads, dilation = (
        for_each_axis(argument(node, place, name, default), axes)
        for place, name, default in ((3, "padding", 0), (4, "dilation", 1))
    )
    if not any(user.args[1] == 1 and user.users for user in node.users):
        node.args = (*node.args[:2], strides, pads, dilation, bool(argument(node, 5, "ceil_mode", False)))
        return stock(node)
    emit, data = importer.block_builder.emit, importer.env[node.args[0]]
    rank = len(data.ty.shape)
    lengths = [static_size(data, axis) for axis in range(rank - axes, rank)]
    counts = [int(extent) for extent in node.meta["val"][0].shape[-axes:]]
    windows = []
    for length, count, width, stride, pad, step in zip(lengths, counts, size, strides, pads, dilation, strict=True):
        at = (np.arange(count) * stride - pad)[None, :] + (np.arange(width) * step)[:, None]
        windows.append((at, (at >= 0) & (at < length)))
    return _largest_with_places(emit, data, lengths, counts, windows)


def _largest_with_places(
    emit: Emit, data: Any, lengths: list[int], counts: list[int], windows: list[tuple[np.ndarray, np.ndarray]]
) -> Any:
    """Find the largest element of each window and its place in the flat picture.

    ``windows`` holds for each axis arrays of shape (elements of a window, windows): places, and whether these count.
    """
    shape, axes = list(data.ty.shape), len(lengths)
    if not all(counts):
        return tuple(emit(relax.op.zeros([*shape[:-axes], *counts], dtype)) for dtype in (str(data.ty.dtype), "int64"))
    flat = emit(relax.op.reshape(data, [*shape[:-axes], math.prod(lengths)]))
    best: Any = None
    for places in _places_of_windows(lengths, windows):
        values = emit(relax.op.take(flat, relax.const(places, "int64"), len(shape) - axes, mode="clip"))
        index = emit(relax.op.broadcast_to(relax.const(places, "int64"), list(values.ty.shape)))
        best = (values, index) if best is None else _larger(emit, best, (values, index))
    return tuple(emit(relax.op.reshape(part, [*shape[:-axes], *counts])) for part in best)


def _places_of_windows(lengths: list[int], windows: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """List, for each element of a window, its places in all windows of a flat picture.

    Where an element lies outside the window, it is the one before it of that window, or else the first one inside.
    """
    inside, places = np.ones(1, bool), np.zeros(1, "int64")
    for length, (at, fits) in zip(lengths, windows, strict=True):
        # (element of the window, window), both flat over the axes so far
        inside = np.atleast_2d(inside)[:, None, :, None] & fits[None, :, None, :]
        places = np.atleast_2d(places)[:, None, :, None] * length + at[None, :, None, :]
        inside, places = (part.reshape(part.shape[0] * len(at), -1) for part in (inside, places))
    first = np.take_along_axis(places, inside.argmax(0)[None], 0)[0]
    found = [first]
    for element in range(len(places)):
        found.append(np.where(inside[element], places[element], found[-1]))
    return found[1:]


def _larger(emit: Emit, before: tuple[Any, Any], here: tuple[Any, Any]) -> tuple[Any, Any]:
    """Choose the first of the largest values, or the last NaN."""
    value = here[0]
    wins = emit(relax.op.greater(value, before[0]))
    dtype = str(value.ty.dtype)
    if "float" in dtype:
        single = emit(relax.op.astype(value, "float32")) if dtype == "bfloat16" else value
        wins = emit(relax.op.logical_or(wins, emit(relax.op.isnan(single))))
    values, index = (emit(relax.op.where(wins, new, old)) for new, old in zip(here, before, strict=True))
    return values, index


def embedding_bag(importer: Any, node: Node) -> Any:
    """``F.embedding_bag``: sum, mean or maximum of the rows of each bag; an empty bag is zero. First result only."""
    emit = importer.block_builder.emit
    weight, indices = importer.env[node.args[0]], importer.env[node.args[1]]
    mode = int(argument(node, 4, "mode", 0))
    scales = argument(node, 6, "per_sample_weights")
    padding = int(argument(node, 8, "padding_idx", -1))
    dtype, count, width = str(weight.ty.dtype), indices.ty.shape[0], weight.ty.shape[1]
    rows = emit(relax.op.take(weight, indices, 0, mode="clip"))
    if scales is not None:
        rows = emit(relax.op.multiply(rows, emit(relax.op.reshape(importer.env[scales], [count, 1]))))
    neutral = relax.const(-math.inf if mode == 2 else 0.0, dtype)
    counted = emit(relax.op.broadcast_to(relax.const(1, dtype), [count, 1]))
    if padding >= 0:
        skipped = emit(relax.op.equal(indices, relax.const(padding, str(indices.ty.dtype))))
        skipped = emit(relax.op.reshape(skipped, [count, 1]))
        rows = emit(relax.op.where(skipped, neutral, rows))
        counted = emit(relax.op.where(skipped, relax.const(0, dtype), counted))
    shape = _even_bags(importer, node)
    if shape is not None:
        totals = emit((relax.op.max if mode == 2 else relax.op.sum)(emit(relax.op.reshape(rows, [*shape, width])), [1]))
        sizes = emit(relax.op.sum(emit(relax.op.reshape(counted, [*shape, 1])), [1]))
    else:
        offsets = importer.env[node.args[2]]
        bags = tvm.sym.Analyzer().simplify(offsets.ty.shape[0] - int(bool(argument(node, 7, "include_last_offset"))))
        bag = _bag_of_each(emit, offsets, count, bags)
        totals = _gathered(emit, rows, bag, neutral, [bags, width], "max" if mode == 2 else "add")
        sizes = _gathered(emit, counted, bag, relax.const(0, dtype), [bags, 1], "add")
    one = relax.const(1, dtype)
    if mode == 1:
        totals = emit(relax.op.divide(totals, emit(relax.op.maximum(sizes, one))))
    elif mode == 2:
        totals = emit(relax.op.where(emit(relax.op.less(sizes, one)), relax.const(0, dtype), totals))
    return (totals,)


def _even_bags(importer: Any, node: Node) -> list[Any] | None:
    """Give the extents of a matrix whose rows are bags, which torch makes a list of indices and one of offsets."""
    source, offsets = node.args[1], node.args[2]
    if offsets.target is not torch.ops.aten.arange.start_step or source.target is not torch.ops.aten.view.default:
        return None
    matrix = importer.env[source.args[0]]
    traced = source.args[0].meta["val"]
    if traced.dim() != 2 or any(type(extent) is int and not extent for extent in traced.shape):
        return None
    start, end, step = (part.meta["val"] if isinstance(part, Node) else part for part in (*offsets.args, 1)[:3])
    same = (start == 0, end == traced.numel(), step == traced.shape[1])
    return list(matrix.ty.shape) if all(map(statically_known_true, same)) else None


def _bag_of_each(emit: Emit, offsets: Any, count: Any, bags: Any) -> Any:
    """Find the bag of each index: the last one that begins before it or with it."""
    offsets = emit(relax.op.reshape(offsets, [-1, 1]))
    if not tvm.sym.Analyzer().can_prove_equal(offsets.ty.shape[0], bags):  # with the end of the last bag
        offsets = emit(relax.op.strided_slice(offsets, [0], [0], [bags]))
    positions = emit(relax.op.arange(0, count, 1, str(offsets.ty.dtype)))
    positions = emit(relax.op.reshape(positions, [1, count]))
    begun = emit(relax.op.astype(emit(relax.op.less_equal(offsets, positions)), "int64"))
    return emit(relax.op.subtract(emit(relax.op.sum(begun, [0])), relax.const(1, "int64")))


def _gathered(emit: Emit, rows: Any, bag: Any, neutral: Any, shape: list[Any], how: str) -> Any:
    start = emit(relax.op.broadcast_to(neutral, shape))
    index = emit(relax.op.reshape(bag, [-1, 1]))
    index = emit(relax.op.broadcast_to(index, list(rows.ty.shape)))
    return emit(relax.op.scatter_elements(start, index, rows, 0, how))


def as_strided(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """``x.as_strided(size, stride, offset)`` of a contiguous tensor: elements gathered from it, also more than once."""
    places = _places_by_strides(node, node.args[1], node.args[2], argument(node, 3, "storage_offset") or 0)
    if places is None:
        return stock(node)
    flat = importer.block_builder.emit(relax.op.reshape(importer.env[node.args[0]], [-1]))
    return importer.block_builder.emit(relax.op.take(flat, relax.const(places, "int64"), 0, mode="clip"))


def as_strided_scatter(importer: Any, node: Node) -> Any:
    """``x.as_strided(size, stride, offset)[:] = y``, which ``x.fill_diagonal_`` becomes."""
    places = _places_by_strides(node, node.args[2], node.args[3], argument(node, 4, "storage_offset") or 0)
    if places is None:
        raise NotImplementedError("its sizes or steps are open")
    if np.unique(places).size < places.size:
        raise NotImplementedError("it writes elements more than once")
    emit, data = importer.block_builder.emit, importer.env[node.args[0]]
    flat, given = (emit(relax.op.reshape(importer.env[operand], [-1])) for operand in node.args[:2])
    found = emit(relax.op.scatter_elements(flat, relax.const(places.reshape(-1), "int64"), given, 0, "update"))
    return emit(relax.op.reshape(found, data.ty.shape))


def _places_by_strides(node: Node, size: Any, strides: Any, offset: Any) -> np.ndarray | None:
    """Give the places of elements in a contiguous tensor; None if they are open."""
    value = node.args[0].meta["val"]
    if not all(isinstance(number, int) for number in (*size, *strides, offset, *value.shape)):
        return None
    if not value.is_contiguous() or value.storage_offset():
        raise NotImplementedError("it reads memory in another order than that of its tensor's elements")
    places = np.full([1] * len(size), offset, "int64")
    for axis, (extent, stride) in enumerate(zip(size, strides, strict=True)):
        places = places + (np.arange(extent) * stride).reshape([-1 if k == axis else 1 for k in range(len(size))])
    if places.size and places.max() >= value.numel():
        raise NotImplementedError("it reads memory beyond its tensor's elements")
    return places


def convolution(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """Transposed convolutions of volumes, those whose output padding is not below the stride, and open groups.

    Others are TVM's.

    An output padding of the stride or more is less padding at the end, and zeros where there is none to take away.
    """
    transposed = bool(argument(node, 6, "transposed", False))
    data, weight = (importer.env[operand] for operand in node.args[:2])
    axes = len(data.ty.shape) - 2
    strides, pads, dilation, further = (for_each_axis(node.args[place], axes) for place in (3, 4, 5, 7))
    if not isinstance(node.args[8], int):
        by_columns = transposed_convolution_by_columns if transposed else convolution_by_columns
        windows = GroupedWindows(extent_of(importer, node.args[8]), strides, pads, dilation, further)
        result = by_columns(importer.block_builder, data, weight, windows)
        return _with_bias(importer, node, result, axes)
    beyond = any(extra >= stride for extra, stride in zip(further, strides, strict=True))
    if not transposed or (axes < 3 and not beyond):
        return stock(node)
    emit = importer.block_builder.emit
    zeros = [0] * axes
    if beyond:
        zeros = [max(extra - pad, 0) for extra, pad in zip(further, pads, strict=True)]
        pads = [*pads, *(max(pad - extra, 0) for extra, pad in zip(further, pads, strict=True))]
        further = [0] * axes
    make = {1: relax.op.nn.conv1d_transpose, 2: relax.op.nn.conv2d_transpose, 3: relax.op.nn.conv3d_transpose}[axes]
    result = emit(make(data, weight, strides, pads, further, dilation, int(node.args[8]), out_dtype=str(data.ty.dtype)))
    if any(zeros):
        widths = [0, 0, 0, 0, *(width for count in zeros for width in (0, count))]
        result = emit(relax.op.nn.pad(result, widths, "constant", 0.0))
    return _with_bias(importer, node, result, axes)


def _with_bias(importer: Any, node: Node, result: Any, axes: int) -> Any:
    if node.args[2] is None:
        return result
    emit = importer.block_builder.emit
    bias = emit(relax.op.reshape(importer.env[node.args[2]], [1, -1, *[1] * axes]))
    return emit(relax.op.add(result, bias))


def pool_to_size(axes: int, stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """Means of windows of a tensor without a batch, which TVM's operator does not take."""
    data, emit = importer.env[node.args[0]], importer.block_builder.emit
    if len(data.ty.shape) > axes + 1:
        return stock(node)
    importer.env[node.args[0]] = emit(relax.op.expand_dims(data, [0]))
    try:
        return emit(relax.op.squeeze(stock(node), [0]))
    finally:
        importer.env[node.args[0]] = data


def fold_decomposition(others: Callable[..., Any]) -> Callable[..., Any]:
    """Make the decomposition of ``col2im``, which stays whole; ``others`` is asked where an extent is open.

    PyTorch's own adds every element where it belongs, one after the other.
    """

    def fold(data: Any, *sizes: Any) -> Any:
        known = all(isinstance(size, int) for listed in sizes for size in listed)
        return NotImplemented if known and isinstance(data.shape[-1], int) else others(data, *sizes)

    return fold


def fold(importer: Any, node: Node) -> Any:
    """Pictures whose windows are columns that are added up."""
    emit, data = importer.block_builder.emit, importer.env[node.args[0]]
    picture, block, dilations, pads, strides = ([int(size) for size in sizes] for sizes in node.args[1:6])
    batched = len(data.ty.shape) == 3
    columns = data if batched else emit(relax.op.expand_dims(data, [0]))
    found = picture_of_columns(importer.block_builder, columns, picture, block, strides, dilations, pads * 2)
    return found if batched else emit(relax.op.squeeze(found, [0]))


def for_each_axis(value: Any, axes: int) -> list[int]:
    """Write an extent, or one for each of some axes, as a list of one for each."""
    values = [int(value)] if isinstance(value, int) else [int(item) for item in value]
    return values * axes if len(values) == 1 else values


WINDOWS: Mapping[str, Callable[[Any, Node], Any]] = {
    "_embedding_bag.default": embedding_bag,
    "_embedding_bag_forward_only.default": embedding_bag,
    "adaptive_max_pool2d.default": partial(adaptive_max_pool, 2),
    "adaptive_max_pool3d.default": partial(adaptive_max_pool, 3),
    "as_strided_scatter.default": as_strided_scatter,
    "col2im.default": fold,
}
"""By name of operator and overload."""

REFINED_WINDOWS: Mapping[str, Callable[[Callable[[Node], Any], Any, Node], Any]] = {
    "_adaptive_avg_pool2d.default": partial(pool_to_size, 2),
    "_adaptive_avg_pool3d.default": partial(pool_to_size, 3),
    "adaptive_avg_pool1d.default": partial(pool_to_size, 1),
    "convolution.default": convolution,
    "max_pool2d_with_indices.default": partial(max_pool, 2),
    "max_pool3d_with_indices.default": partial(max_pool, 3),
}
"""Those that leave to TVM's converter what it does right."""
