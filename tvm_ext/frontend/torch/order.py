"""Converters of what is found by its rank along a dimension: extremes with their places, and the k-th value.

As in PyTorch, NaN is the largest value, and both extremes of a row that holds NaN. Of equal values the first is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch.fx import Node
from tvm import relax

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


ORDER: Mapping[str, Callable[[Any, Node], Any]] = {
    "kthvalue.default": kth_value,
    "max.dim": partial(extreme, relax.op.argmax),
    "min.dim": partial(extreme, relax.op.argmin),
}
"""By name of operator and overload."""
