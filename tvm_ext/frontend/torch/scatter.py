"""Converters of what writes into a tensor at places that another tensor names.

All become ``scatter_elements`` along one axis, whose kernel takes the updates of one place in their order: the last of
several wins, sums are taken in the order of PyTorch, and no two threads write to one place. TVM's ``index_put`` gives
threads updates of the same place, and reads values that are to be broadcast past their end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import tvm
import tvm_ffi
from torch.fx import Node
from tvm import relax

from tvm_ext.frontend.torch.arguments import argument, counted_from_start, size_tensor, static_size
from tvm_ext.frontend.torch.assumptions import assume_at_most, assume_equal
from tvm_ext.frontend.torch.promotion import dtype_of

Emit = Callable[[Any], Any]

REDUCTIONS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}
"""What TVM calls the ways to combine several updates of one place."""

OF_TRUTH_VALUES = {"update": "update", "add": "max", "mul": "min", "max": "max", "min": "min"}
"""What these are of truth values as 0 and 1: a sum says whether any is true, as in PyTorch."""


def index_put(importer: Any, node: Node) -> Any:
    """``x[i, :, j] = v`` with tensors as indices, and ``x[i, :, j] += v``, repeated ones added, with ``accumulate``.

    Index tensors are broadcast against each other, may be negative, and the values are broadcast to the place that
    they go to, which has the shape of ``x[i, :, j]``.
    """
    emit = importer.block_builder.emit
    data, values = importer.env[node.args[0]], importer.env[node.args[2]]
    places = [None if index is None else importer.env[index] for index in node.args[1]]
    axes = [axis for axis, index in enumerate(places) if index is not None]
    accumulate = bool(argument(node, 3, "accumulate", False))
    dtypes = [dtype_of(node.args[1][axis]) for axis in axes]
    if torch.bool in dtypes or torch.uint8 in dtypes:
        if len(axes) > 1 or dtypes != [torch.bool]:
            raise NotImplementedError("with a mask among several indices, how much is written depends on values")
        return _put_by_mask(emit, data, places[axes[0]], axes[0], values, accumulate)
    shape = list(data.ty.shape)
    position: Any = None
    for axis in axes:
        size = size_tensor(emit, data, axis)
        index = counted_from_start(emit, places[axis], size)
        if position is None:
            position = index
        else:
            position = emit(relax.op.add(emit(relax.op.multiply(position, size)), index))
    written = list(position.ty.shape)
    count = math.prod(written)
    rest = [axis for axis in range(len(shape)) if axis not in axes]
    # Where the dimensions of the indices are in x[i, :, j]: as in numpy, in place if they stand side by side.
    start = axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0
    before, after = ([shape[axis] for axis in part] for part in (rest[:start], rest[start:]))
    if [*values.ty.shape] != [*before, *written, *after]:
        _check_spread(importer, values, [*before, *written, *after])
        values = emit(relax.op.broadcast_to(values, [*before, *written, *after]))
    values = emit(relax.op.reshape(values, [*before, count, *after]))
    order = [*rest[:start], *axes, *rest[start:]]
    flat = data
    if len(axes) > 1:
        flat = data if order == sorted(order) else emit(relax.op.permute_dims(data, order))
        flat = emit(relax.op.reshape(flat, [*before, math.prod(shape[axis] for axis in axes), *after]))
    position = emit(relax.op.reshape(position, [*[1] * len(before), count, *[1] * len(after)]))
    position = emit(relax.op.broadcast_to(position, [*before, count, *after]))
    result = _scatter(emit, flat, position, values, start, "add" if accumulate else "update")
    if len(axes) == 1:
        return result
    result = emit(relax.op.reshape(result, [shape[axis] for axis in order]))
    return result if order == sorted(order) else emit(relax.op.permute_dims(result, list(np.argsort(order))))


def _check_spread(importer: Any, values: Any, shape: Sequence[Any]) -> None:
    """Have each run look whether values fit where they are written to, as the kernel reads so many."""
    extents = list(values.ty.shape)
    for extent, wanted in zip(extents, shape[len(shape) - len(extents) :], strict=True):
        one = isinstance(extent, tvm.tirx.IntImm) and int(extent) == 1
        if not one and not assume_equal(importer, extent, wanted):
            raise NotImplementedError(f"how many values it writes, {extent}, and to how many places, depends on values")


def _put_by_mask(emit: Emit, data: Any, mask: Any, axis: int, values: Any, accumulate: bool) -> Any:
    """``x[mask] = v`` where each place gets the same value, or the same slice of the dimensions after the mask."""
    behind = len(data.ty.shape) - axis - len(mask.ty.shape)
    extents = list(values.ty.shape)
    leading, trailing = extents[: max(len(extents) - behind, 0)], extents[max(len(extents) - behind, 0) :]
    if any(not isinstance(extent, tvm.tirx.IntImm | int) or int(extent) != 1 for extent in leading):
        raise NotImplementedError("with a mask as index and a value for each place, which goes where depends on values")
    value = emit(relax.op.reshape(values, trailing))
    mask = emit(relax.op.reshape(mask, [*mask.ty.shape, *[1] * behind]))
    if accumulate:
        value = emit((relax.op.logical_or if str(data.ty.dtype) == "bool" else relax.op.add)(data, value))
    return emit(relax.op.where(mask, value, data))


def masked_scatter(importer: Any, node: Node) -> Any:
    """``x.masked_scatter(mask, v)``: the places of the mask, in order, take the elements of ``v``, in order."""
    emit = importer.block_builder.emit
    data, mask, values = (importer.env[operand] for operand in node.args[:3])
    shape = list(node.meta["val"].shape)  # what both are broadcast to
    if all(isinstance(size, int) for size in shape):
        data = emit(relax.op.broadcast_to(data, shape))
    shape = list(data.ty.shape)
    mask = emit(relax.op.broadcast_to(mask, shape))
    counted = emit(relax.op.astype(emit(relax.op.reshape(mask, [-1])), "int64"))
    before = emit(relax.op.subtract(emit(relax.op.cumsum(counted, 0)), relax.const(1, "int64")))
    places = emit(relax.op.maximum(before, relax.const(0, "int64")))  # before the first, where nothing is taken
    taken = emit(relax.op.take(emit(relax.op.reshape(values, [-1])), places, 0, mode="clip"))
    return emit(relax.op.where(mask, emit(relax.op.reshape(taken, shape)), data))


def diagonal_scatter(importer: Any, node: Node) -> Any:
    """``x.diagonal_scatter(v)``: the elements of a diagonal become those of ``v``."""
    emit = importer.block_builder.emit
    data, values = (importer.env[operand] for operand in node.args[:2])
    shape = [static_size(data, axis) for axis in range(len(data.ty.shape))]
    defaults = (("offset", 0), ("dim1", 0), ("dim2", 1))
    which = [argument(node, place, name, default) for place, (name, default) in enumerate(defaults, start=2)]
    places = torch.arange(math.prod(shape)).reshape(shape).diagonal(*which).reshape(-1).numpy()
    if not len(places):
        return data
    flat, values = (emit(relax.op.reshape(value, [-1])) for value in (data, values))
    return emit(relax.op.reshape(_scatter(emit, flat, relax.const(places, "int64"), values, 0, "update"), shape))


def scatter(importer: Any, node: Node) -> Any:
    """``torch.scatter`` of a tensor or a number, also with ``reduce``."""
    source, dtype = node.args[3], str(importer.env[node.args[0]].ty.dtype)
    index = importer.env[node.args[2]]
    if isinstance(source, Node):
        values = importer.env[source]
    else:
        values = importer.block_builder.emit(relax.op.broadcast_to(relax.const(source, dtype), list(index.ty.shape)))
    reduce = argument(node, 4, "reduce")
    data = importer.env[node.args[0]]
    return _by_element(importer, data, node.args[1], index, values, reduce, True)


def scatter_add(importer: Any, node: Node) -> Any:
    """``torch.scatter_add``."""
    data, index, values = (importer.env[node.args[place]] for place in (0, 2, 3))
    return _by_element(importer, data, node.args[1], index, values, "sum", True)


def scatter_reduce(by_slice: bool, importer: Any, node: Node) -> Any:
    """``torch.scatter_reduce``, and ``torch.index_reduce``, whose index names whole slices."""
    data, index, values = (importer.env[node.args[place]] for place in (0, 2, 3))
    axis = node.args[1] % max(len(data.ty.shape), 1)
    if by_slice and len(data.ty.shape):
        emit = importer.block_builder.emit
        ones = [1] * len(values.ty.shape)
        ones[axis] = values.ty.shape[axis]
        index = emit(relax.op.broadcast_to(emit(relax.op.reshape(index, ones)), list(values.ty.shape)))
    include_self = bool(argument(node, 5, "include_self", True))
    return _by_element(importer, data, axis, index, values, argument(node, 4, "reduce"), include_self)


def _by_element(
    importer: Any, data: Any, axis: int, index: Any, values: Any, reduce: str | None, include_self: bool
) -> Any:
    """Scatter by an index that may have fewer elements than the data along other axes, and the values more."""
    emit, whole = importer.block_builder.emit, data
    if not len(data.ty.shape):
        data, index, values = (emit(relax.op.reshape(value, [1])) for value in (data, index, values))
    axis %= len(data.ty.shape)
    if any(isinstance(extent, tvm.tirx.IntImm) and int(extent) == 0 for extent in index.ty.shape):
        return whole
    extents = list(index.ty.shape)
    if not _same(extents, values.ty.shape):
        inside = all(
            [assume_at_most(importer, *pair) for pair in zip(extents, values.ty.shape, strict=True)]
        )  # as PyTorch demands
        axes, starts = list(range(len(extents))), [tvm.tirx.const(0, "int64")] * len(extents)
        steps = [tvm.tirx.const(1, "int64")] * len(extents)
        values = emit(relax.op.strided_slice(values, axes, starts, extents, steps, assume_inbound=inside))
    cut = [
        other
        for other, (short, long) in enumerate(zip(extents, data.ty.shape, strict=True))
        if other != axis and not _same([short], [long])
    ]
    rests = []
    zero, one = (tvm.tirx.const(number, "int64") for number in (0, 1))
    for other in cut:
        short, long = extents[other], data.ty.shape[other]
        inside = assume_at_most(importer, short, long)
        rest, data = (
            emit(relax.op.strided_slice(data, [other], [begin], [end], [one], assume_inbound=inside))
            for begin, end in ((short, long), (zero, short))
        )
        rests.append(rest)
    result = _reduced(emit, data, axis, index, values, reduce, include_self)
    for other, rest in zip(reversed(cut), reversed(rests), strict=True):
        result = emit(relax.op.concat([result, rest], other))
    return result if len(whole.ty.shape) else emit(relax.op.reshape(result, []))


def _reduced(emit: Emit, data: Any, axis: int, index: Any, values: Any, reduce: str | None, include_self: bool) -> Any:
    if reduce is None:
        return _scatter(emit, data, index, values, axis, "update")
    dtype, shape = str(data.ty.dtype), list(data.ty.shape)
    if reduce == "mean" and dtype == "bool":
        raise NotImplementedError("means of truth values are not supported; make them numbers first")
    start = data
    if not include_self:
        neutral = relax.const(_neutral(reduce, dtype), dtype)
        cleared = emit(relax.op.broadcast_to(neutral, list(index.ty.shape)))
        start = _scatter(emit, data, index, cleared, axis, "update")
    if reduce != "mean":
        return _scatter(emit, start, index, values, axis, REDUCTIONS[reduce])
    total = _scatter(emit, start, index, values, axis, "add")
    one = relax.const(1, dtype)
    zeros = emit(relax.op.broadcast_to(one if include_self else relax.const(0, dtype), shape))
    ones = emit(relax.op.broadcast_to(one, list(index.ty.shape)))
    count = _scatter(emit, zeros, index, ones, axis, "add")
    if not include_self:
        count = emit(relax.op.maximum(count, one))
    return emit(relax.op.divide(total, count) if "float" in dtype else relax.op.floor_divide(total, count))


def _neutral(reduce: str, dtype: str) -> Any:
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if dtype == "bool":
        return reduce == "amin"
    if "float" in dtype:
        return -math.inf if reduce == "amax" else math.inf
    limits = np.iinfo(dtype)
    return limits.min if reduce == "amax" else limits.max


def _scatter(emit: Emit, data: Any, index: Any, values: Any, axis: int, how: str) -> Any:
    if str(data.ty.dtype) != "bool":
        return emit(relax.op.scatter_elements(data, index, values, axis, how))
    numbers, updates = (emit(relax.op.astype(value, "uint8")) for value in (data, values))
    written = emit(relax.op.scatter_elements(numbers, index, updates, axis, OF_TRUTH_VALUES[how]))
    return emit(relax.op.astype(written, "bool"))


def _same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    return all(tvm_ffi.structural_equal(a, b) for a, b in zip(left, right, strict=True))


SCATTERS: Mapping[str, Callable[[Any, Node], Any]] = {
    "diagonal_scatter.default": diagonal_scatter,
    "index_put.default": index_put,
    "index_reduce.default": partial(scatter_reduce, True),
    "masked_scatter.default": masked_scatter,
    "scatter.reduce": scatter,
    "scatter.src": scatter,
    "scatter.value": scatter,
    "scatter.value_reduce": scatter,
    "scatter_add.default": scatter_add,
    "scatter_reduce.two": partial(scatter_reduce, False),
}
"""By name of operator and overload."""
