"""Converters of what is found by its rank along a dimension: extremes with their places, and the k-th value.

As in PyTorch, NaN is the largest value, and both extremes of a row that holds NaN. Of equal values the first is found,
but of running extremes the last.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

from torch.fx import Node
from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_ext.frontend.torch.arguments import argument


def extreme(search: Callable[..., Any], importer: Any, node: Node) -> Any:
    """``x.max(dim)`` or ``x.min(dim)``: values and their places (int64)."""
    emit = importer.block_builder.emit
    data = importer.env[node.args[0]]
    keep = bool(argument(node, 2, "keepdim", False))
    if not len(data.ty.shape):
        return _alone(emit, data)
    axis = node.args[1] % len(data.ty.shape)
    searched = emit(relax.op.astype(data, "int8")) if str(data.ty.dtype) == "bool" else data
    places = emit(search(searched, axis, keepdims=True))
    return _found(emit, data, places, axis, keep)


def kth_value(importer: Any, node: Node) -> Any:
    """``x.kthvalue(k, dim)``: the k-th smallest values, and their places (int64)."""
    emit = importer.block_builder.emit
    data, rank = importer.env[node.args[0]], node.args[1]
    keep = bool(argument(node, 3, "keepdim", False))
    if not len(data.ty.shape):
        return _alone(emit, data)
    axis = argument(node, 2, "dim", -1) % len(data.ty.shape)
    places = emit(relax.op.argsort(data, axis, False, "int64"))
    places = emit(relax.op.strided_slice(places, [axis], [rank - 1], [rank]))
    return _found(emit, data, places, axis, keep)


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
    searched = emit(relax.op.astype(data, "int8")) if dtype == "bool" else data
    axis = node.args[1] % len(shape)
    scan = partial(_running, axis=axis, beats=beats)
    found = importer.block_builder.emit_te(scan, searched, primfunc_name_hint="running_extreme")
    if dtype != "bool":
        return found
    return emit(relax.Tuple([emit(relax.op.astype(emit(found[0]), "bool")), emit(found[1])]))


def _running(x: te.Tensor, axis: int, beats: Callable[[Any, Any], Any]) -> list[te.Tensor]:
    """Describe the kernel: values and places, each by the one before and the next element; rows go to the threads."""
    shape, one = list(x.shape), tirx.const(1, "int64")
    length = shape[axis]
    before, after = prod(shape[:axis], start=one), prod(shape[axis + 1 :], start=one)
    has_nan = "float" in str(x.dtype)

    def kernel(source: Any, values: Any, places: Any) -> Any:
        with IRBuilder() as ib:
            source, values, places = (T.buffer_proxy(buffer) for buffer in (source, values, places))
            with T.parallel(0, before * after) as row:
                first = row // after * length * after + row % after
                with T.serial(0, length) as k:
                    here = first + k * after
                    taken = source[here]
                    with T.If(k == 0):  # nothing is before it
                        with T.Then():
                            values[here] = taken
                            places[here] = tirx.const(0, "int64")
                        with T.Else():
                            # What comes after a NaN and is none does not beat it: the comparison is false.
                            wins = beats(taken, values[here - after])
                            with T.If(tirx.any(wins, tirx.isnan(taken)) if has_nan else wins):
                                with T.Then():
                                    values[here] = taken
                                    places[here] = k.astype("int64")
                                with T.Else():
                                    values[here] = values[here - after]
                                    places[here] = places[here - after]
            return ib.get()

    results: list[te.Tensor] = te.extern(
        [shape, shape], [x], lambda ins, outs: kernel(*ins, *outs), dtype=[str(x.dtype), "int64"], name="running"
    )
    return results


ORDER: Mapping[str, Callable[[Any, Node], Any]] = {
    "cummax.default": partial(running_extreme, operator.ge),
    "cummin.default": partial(running_extreme, operator.le),
    "kthvalue.default": kth_value,
    "max.dim": partial(extreme, relax.op.argmax),
    "min.dim": partial(extreme, relax.op.argmin),
}
"""By name of operator and overload."""
