"""Converters of means, variances and `any`, where TVM's importer converts the usual case only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node
from tvm import relax, tirx

from tvm_ext.frontend.torch.arguments import argument, number_tensor
from tvm_ext.frontend.torch.promotion import relax_dtype


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
        return stock(node) if correction == 0 else _open_variance(emit, data, axes, keep, correction)
    if math.prod(int(size) for size in sizes) > (1 if correction is None else correction):
        return stock(node)
    dtype = str(data.ty.dtype)
    centred = emit(relax.op.subtract(data, emit(relax.op.mean(data, axes, keepdims=True)))) if _holds(data) else data
    squares = emit(relax.op.sum(emit(relax.op.multiply(centred, centred)), axes, keep))
    return emit(relax.op.multiply(squares, relax.const(math.inf, dtype)))  # TVM divides nothing by a constant 0


def _open_variance(emit: Callable[[Any], Any], data: Any, axes: list[int], keep: bool, correction: float | None) -> Any:
    """Divide by a number of elements that a run tells, less the correction."""
    dtype = str(data.ty.dtype)
    single = "float64" if dtype == "float64" else "float32"
    count = number_tensor(emit, math.prod(data.ty.shape[axis] for axis in axes), single)
    divisor = emit(relax.op.subtract(count, relax.const(1 if correction is None else correction, single)))
    divisor = emit(relax.op.astype(emit(relax.op.maximum(divisor, relax.const(0, single))), dtype))
    centred = emit(relax.op.subtract(data, emit(relax.op.mean(data, axes, keepdims=True))))
    squares = emit(relax.op.sum(emit(relax.op.multiply(centred, centred)), axes, keep))
    return emit(relax.op.divide(squares, divisor))


def _holds(data: Any) -> bool:
    return all(not isinstance(size, tirx.IntImm) or int(size) > 0 for size in data.ty.shape)


def variance_and_mean(
    data: torch.Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decompose ``torch.var_mean`` into both, which PyTorch does not."""
    every = list(range(data.dim())) if dim is None or not len(dim) else dim
    return torch.var(data, every, correction=correction, keepdim=keepdim), torch.mean(data, every, keepdim=keepdim)


def first_result_only(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """Convert a normalisation by TVM's converter, which knows the normalised tensor only."""
    no_statistics_read(node)
    return stock(node)


def layer_norm(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """Layer normalisation; TVM's converter cannot make weights of open extents, as ``F.layer_norm(x, x.shape[1:])``."""
    no_statistics_read(node)
    extents = node.args[1]
    weights = [argument(node, 2, "weight"), argument(node, 3, "bias")]
    if all(isinstance(extent, int) for extent in extents) or None not in weights:
        return stock(node)
    emit, data = importer.block_builder.emit, importer.env[node.args[0]]
    shape = list(data.ty.shape)[-len(extents) :]
    scale, bias = (
        emit(relax.op.full(shape, relax.const(number, "float32"), str(data.ty.dtype)))
        if given is None
        else importer.env[given]
        for given, number in zip(weights, (1.0, 0.0), strict=True)
    )
    epsilon = float(argument(node, 4, "eps", 1e-5))
    return emit(relax.op.nn.layer_norm(data, scale, bias, list(range(-len(extents), 0)), epsilon))


def no_statistics_read(node: Node) -> None:
    """Refuse a normalisation of which the means and deviations are asked for, too: what is converted has none."""
    if any(user.args[1] != 0 and user.users for user in node.users):
        raise NotImplementedError(
            "only the normalised tensor is converted, not the means and deviations beside it; compute those by "
            "torch.mean and torch.var"
        )


def normalised_by_itself(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """Instance normalisation, which torch writes as that of one image of all channels; first result only."""
    no_statistics_read(node)
    data = importer.env[node.args[0]]
    shape = list(data.ty.shape)
    if all(isinstance(size, tirx.IntImm) for size in shape):
        return stock(node)
    emit, dtype = importer.block_builder.emit, str(data.ty.dtype)
    axes = [0, *range(2, len(shape))]
    centred = emit(relax.op.subtract(data, emit(relax.op.mean(data, axes, keepdims=True))))
    spread = emit(relax.op.mean(emit(relax.op.multiply(centred, centred)), axes, keepdims=True))
    spread = emit(relax.op.add(spread, relax.const(float(argument(node, 5, "eps", 1e-5)), dtype)))
    result = emit(relax.op.multiply(centred, emit(relax.op.rsqrt(spread))))
    for given, operation in ((node.args[1], relax.op.multiply), (node.args[2], relax.op.add)):
        if given is not None:
            each = emit(relax.op.reshape(importer.env[given], [1, shape[1], *[1] * (len(shape) - 2)]))
            result = emit(operation(result, each))
    return (result,)


def any_of(importer: Any, node: Node) -> Any:
    """``x.any()`` over all or some dimensions; of none it is False, and a uint8 of uint8."""
    emit, data = importer.block_builder.emit, importer.env[node.args[0]]
    dtype = str(data.ty.dtype)
    found = data if dtype == "bool" else emit(relax.op.not_equal(data, relax.const(0, dtype)))
    if len(data.ty.shape):
        axes = argument(node, 1, "dim")
        axes = [axes] if isinstance(axes, int) else list(axes or []) or None
        # The largest of no unsigned numbers is 0.
        found = relax.op.max(emit(relax.op.astype(found, "uint8")), axes, bool(argument(node, 2, "keepdim", False)))
        found = emit(found)
    return emit(relax.op.astype(found, relax_dtype(node.meta["val"].dtype)))


STATISTICS: Mapping[str, Callable[[Any, Node], Any]] = {
    "any.default": any_of,
    "any.dim": any_of,
    "any.dims": any_of,
}
"""By name of operator and overload."""

REFINED_STATISTICS: Mapping[str, Callable[[Callable[[Node], Any], Any, Node], Any]] = {
    "_native_batch_norm_legit.no_stats": normalised_by_itself,
    "native_batch_norm.default": first_result_only,
    "native_layer_norm.default": layer_norm,
    "var.correction": variance,
}
"""Those that leave to TVM's converter what it does right."""
