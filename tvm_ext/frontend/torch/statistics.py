"""Converters of means and variances, where TVM's importer converts the usual case only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch.fx import Node
from tvm import relax, tirx

from tvm_ext.frontend.torch.arguments import argument


def variance(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """``torch.var``; with a correction as large as the number of elements, or a larger one, the divisor is 0.

    TVM would divide by a negative number.
    """
    emit, data = importer.block_builder.emit, importer.env[node.args[0]]
    dim, keep = argument(node, 1, "dim"), bool(node.kwargs.get("keepdim", False))
    axes = list(range(len(data.ty.shape))) if dim is None or dim == [] else [dim] if isinstance(dim, int) else list(dim)
    sizes = [data.ty.shape[axis] for axis in axes]
    correction = node.kwargs.get("correction")
    if not all(isinstance(size, tirx.IntImm) for size in sizes):
        return stock(node)
    if math.prod(int(size) for size in sizes) > (1 if correction is None else correction):
        return stock(node)
    dtype = str(data.ty.dtype)
    centred = emit(relax.op.subtract(data, emit(relax.op.mean(data, axes, keepdims=True)))) if _holds(data) else data
    squares = emit(relax.op.sum(emit(relax.op.multiply(centred, centred)), axes, keep))
    return emit(relax.op.multiply(squares, relax.const(math.inf, dtype)))  # TVM divides nothing by a constant 0


def _holds(data: Any) -> bool:
    return all(not isinstance(size, tirx.IntImm) or int(size) > 0 for size in data.ty.shape)


def first_result_only(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """Refuse a normalisation of which the means and deviations are asked for, too: what is converted has none."""
    if any(user.args[1] != 0 and user.users for user in node.users):
        raise NotImplementedError(
            "only the normalised tensor is converted, not the means and deviations beside it; compute those by "
            "torch.mean and torch.var"
        )
    return stock(node)


REFINED_STATISTICS: Mapping[str, Callable[[Callable[[Node], Any], Any, Node], Any]] = {
    "native_layer_norm.default": first_result_only,
    "var.correction": variance,
}
"""Those that leave to TVM's converter what it does right."""
