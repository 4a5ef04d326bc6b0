"""Converters of what is found by its rank along a dimension: extremes with their places, and the k-th value.

As in PyTorch, NaN is the largest value, and both extremes of a row that holds NaN. Of equal values the first is found,
but of running extremes the last.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch.fx import Node
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_ext.frontend.torch.arguments import argument, extent_of, static_size
from tvm_ext.frontend.torch.assumptions import assume_at_most


def extreme(search: Callable[..., Any], largest: Callable[..., Any], importer: Any, node: Node) -> Any:
    """``x.max(dim)`` or ``x.min(dim)``: values and their places (int64), which most modules leave out."""
    emit = importer.block_builder.emit
    data = importer.env[node.args[0]]
    keep = bool(argument(node, 2, "keepdim", False))
    if not len(data.ty.shape):
        return _alone(emit, data)
    axis = node.args[1] % len(data.ty.shape)
    is_truth = str(data.ty.dtype) == "bool"
    searched = emit(relax.op.astype(data, "int8")) if is_truth else data
    if all(user.target is operator.getitem and user.args[1] == 0 for user in node.users):
        values = emit(largest(searched, [axis], keep))
        return (emit(relax.op.astype(values, "bool")) if is_truth else values,)
    places = emit(search(searched, axis, keepdims=True))
    return _found(emit, data, places, axis, keep)


def stable_sort(importer: Any, node: Node) -> Any:
    """``x.sort(stable=True)``: the values in order, and their places (int64)."""
    emit, data = importer.block_builder.emit, importer.env[node.args[0]]
    axis = argument(node, 2, "dim", -1) % len(data.ty.shape)
    sorts = emit(relax.op.astype(data, "int32")) if str(data.ty.dtype) in _NARROW else data
    places = emit(relax.op.argsort(sorts, axis, bool(argument(node, 3, "descending", False)), "int64"))
    return _found(emit, data, places, axis, True)


def kth_value(importer: Any, node: Node) -> Any:
    """``x.kthvalue(k, dim)``: the k-th smallest values, and their places (int64)."""
    emit = importer.block_builder.emit
    data, rank = importer.env[node.args[0]], node.args[1]
    keep = bool(argument(node, 3, "keepdim", False))
    if not len(data.ty.shape):
        return _alone(emit, data)
    axis = argument(node, 2, "dim", -1) % len(data.ty.shape)
    sorts = emit(relax.op.astype(data, "int32")) if str(data.ty.dtype) in _NARROW else data
    places = emit(relax.op.argsort(sorts, axis, False, "int64"))
    places = emit(relax.op.strided_slice(places, [axis], [rank - 1], [rank]))
    return _found(emit, data, places, axis, keep)


def median_of_numbers(importer: Any, node: Node) -> Any:
    """``x.nanmedian(dim)``: the median of what is not NaN (of two the lower) and its place; of all elements a value."""
    emit, data = importer.block_builder.emit, importer.env[node.args[0]]
    if not len(data.ty.shape):
        return data if len(node.args) < 2 else _alone(emit, data)
    is_of_all, keep = len(node.args) < 2, bool(argument(node, 2, "keepdim", False))
    data = emit(relax.op.reshape(data, [-1])) if is_of_all else data
    axis = 0 if is_of_all else node.args[1] % len(data.ty.shape)
    if not static_size(data, axis):
        raise NotImplementedError("it is of no elements")
    sorts = emit(relax.op.astype(data, "int32")) if str(data.ty.dtype) in _NARROW else data
    order = emit(relax.op.argsort(sorts, axis, False, "int64"))  # NaN comes last
    count: Any = relax.const(static_size(data, axis), "int64")
    if node.args[0].meta["val"].is_floating_point():
        single = emit(relax.op.astype(data, "float32")) if str(data.ty.dtype) == "bfloat16" else data
        numbers = emit(relax.op.astype(emit(relax.op.logical_not(emit(relax.op.isnan(single)))), "int64"))
        count = emit(relax.op.sum(numbers, [axis], keepdims=True))
    one, two = relax.const(1, "int64"), relax.const(2, "int64")
    rank = emit(relax.op.floor_divide(emit(relax.op.subtract(emit(relax.op.maximum(count, one)), one)), two))
    shape = [1 if place == axis else extent for place, extent in enumerate(data.ty.shape)]
    places = emit(relax.op.gather_elements(order, emit(relax.op.broadcast_to(rank, shape)), axis))
    found = _found(emit, data, places, axis, keep)
    return emit(found[0]) if is_of_all else found


_NARROW = frozenset(["int8", "uint8", "int16", "bool"])
"""Types that TVM's kernels do not sort."""


def of_narrow_integers(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """Sort narrow integers as wider ones, and give those that are returned their type back."""
    emit, data = importer.block_builder.emit, importer.env[node.args[0]]
    dtype = str(data.ty.dtype)
    if dtype not in _NARROW:
        return stock(node)
    importer.env[node.args[0]] = emit(relax.op.astype(data, "int32"))
    try:
        found = stock(node)
    finally:
        importer.env[node.args[0]] = data
    if isinstance(node.meta["val"], torch.Tensor):
        return found if node.meta["val"].dtype == torch.int64 else emit(relax.op.astype(found, dtype))
    return emit(relax.Tuple([emit(relax.op.astype(emit(found[0]), dtype)), emit(found[1])]))


def largest_few(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """``torch.topk``, sorted: what is asked for without an order may be in any."""
    given = node.args
    if isinstance(given[1], Node) or given[1] == 0:  # of which TVM makes all
        return _open_few(importer, node)
    node.args = (*given[:4], True) if len(given) > 4 else given
    try:
        return of_narrow_integers(stock, importer, node)
    finally:
        node.args = given


def _open_few(importer: Any, node: Node) -> Any:
    """Sort all, and keep as many as an extent says."""
    emit, data, count = importer.block_builder.emit, importer.env[node.args[0]], extent_of(importer, node.args[1])
    axis = argument(node, 2, "dim", -1) % len(data.ty.shape)
    inside = assume_at_most(importer, count, data.ty.shape[axis])  # as PyTorch demands
    sorts = emit(relax.op.astype(data, "int32")) if str(data.ty.dtype) in _NARROW else data
    order = emit(relax.op.argsort(sorts, axis, bool(argument(node, 3, "largest", True)), "int64"))
    zero, one = tirx.const(0, "int64"), tirx.const(1, "int64")
    order = emit(relax.op.strided_slice(order, [axis], [zero], [count], [one], assume_inbound=inside))
    return _found(emit, data, order, axis, True)


def _found(emit: Callable[[Any], Any], data: Any, places: Any, axis: int, keep: bool) -> Any:
    values = emit(relax.op.gather_elements(data, places, axis))
    if not keep:
        values, places = (emit(relax.op.squeeze(part, [axis])) for part in (values, places))
    return emit(relax.Tuple([values, places]))


def _alone(emit: Callable[[Any], Any], data: Any) -> Any:
    return emit(relax.Tuple([data, emit(relax.const(0, "int64"))]))


def running_extreme(beats: Callable[[Any, Any], Any], importer: Any, node: Node) -> Any:
    """``x.cummax(dim)`` or ``x.cummin(dim)``: the extreme of all elements so far, and its place (int64)."""
    emit = importer.block_builder.emit
    data = importer.env[node.args[0]]
    if not len(data.ty.shape):
        return _alone(emit, data)
    dtype, shape = str(data.ty.dtype), list(data.ty.shape)
    if any(isinstance(extent, tirx.IntImm) and int(extent) == 0 for extent in shape):
        return emit(relax.Tuple([data, emit(relax.op.zeros(shape, "int64"))]))
    searched_as = {"bool": "int8", "bfloat16": "float32"}.get(dtype, dtype)
    searched = data if searched_as == dtype else emit(relax.op.astype(data, searched_as))
    axis = node.args[1] % len(shape)
    scan = partial(_running, axis=axis, beats=beats)
    found = importer.block_builder.emit_te(scan, searched, primfunc_name_hint="running_extreme")
    if searched_as == dtype:
        return found
    return emit(relax.Tuple([emit(relax.op.astype(emit(found[0]), dtype)), emit(found[1])]))


def _running(x: te.Tensor, axis: int, beats: Callable[[Any, Any], Any]) -> list[te.Tensor]:
    """Describe the kernel: values and places, each by the one before and the next element."""
    has_nan = "float" in str(x.dtype)

    def first(taken: Any, _k: Any) -> list[Any]:
        return [taken, tirx.const(0, "int64")]

    def following(taken: Any, k: Any, value: Any, place: Any) -> list[Any]:
        # What comes after a NaN and is none does not beat it: the comparison is false.
        wins = beats(taken, value)
        wins = tirx.any(wins, tirx.isnan(taken)) if has_nan else wins
        return [tirx.Select(wins, taken, value), tirx.Select(wins, k.astype("int64"), place)]

    return scanned(x, axis, [str(x.dtype), "int64"], first, following)


def scanned(
    x: te.Tensor, axis: int, dtypes: Sequence[str], first: Callable[..., list[Any]], following: Callable[..., list[Any]]
) -> list[te.Tensor]:
    """Describe a kernel whose results follow from an element and those before it; rows go to the threads.

    Parameters
    ----------
    dtypes : sequence of str
        Types of the results, which have the shape of ``x``.
    first, following : callable
        Give the results at a place: of the element, its index along the axis, and the results before it.
    """
    shape, one = list(x.shape), tirx.const(1, "int64")
    length = shape[axis]
    before, after = prod(shape[:axis], start=one), prod(shape[axis + 1 :], start=one)

    def kernel(source: Any, *buffers: Any) -> Any:
        with IRBuilder() as ib:
            source, *results = (T.buffer_proxy(buffer) for buffer in (source, *buffers))
            with T.parallel(0, before * after) as row:
                begin = row // after * length * after + row % after
                with T.serial(0, length) as k:
                    here = begin + k * after
                    with T.If(k == 0):  # nothing is before it
                        with T.Then():
                            for result, value in zip(results, first(source[here], k), strict=True):
                                result[here] = value
                        with T.Else():
                            earlier = [result[here - after] for result in results]
                            for result, value in zip(results, following(source[here], k, *earlier), strict=True):
                                result[here] = value
            return ib.get()

    found = te.extern(
        [shape] * len(dtypes), [x], lambda ins, outs: kernel(*ins, *outs), dtype=[*dtypes], name="running"
    )
    return list(found) if len(dtypes) > 1 else [found]


ORDER: Mapping[str, Callable[[Any, Node], Any]] = {
    "cummax.default": partial(running_extreme, operator.ge),
    "cummin.default": partial(running_extreme, operator.le),
    "kthvalue.default": kth_value,
    "nanmedian.default": median_of_numbers,
    "nanmedian.dim": median_of_numbers,
    "sort.stable": stable_sort,
    "max.dim": partial(extreme, relax.op.argmax, relax.op.max),
    "min.dim": partial(extreme, relax.op.argmin, relax.op.min),
}
"""By name of operator and overload."""

REFINED_ORDER: Mapping[str, Callable[[Callable[[Node], Any], Any, Node], Any]] = {
    "argsort.default": of_narrow_integers,
    "median.default": of_narrow_integers,
    "median.dim": of_narrow_integers,
    "sort.default": of_narrow_integers,
    "topk.default": largest_few,
}
"""Those that leave to TVM's converter what it does right."""
