"""Converters of what keeps numbers within bounds: ``clamp``, ``fmax`` and ``fmin``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import tvm
from torch.fx import Node
from tvm import relax

from tvm_ext.frontend.torch.arguments import argument, number_tensor
from tvm_ext.frontend.torch.promotion import relax_dtype


def clamp(importer: Any, node: Node) -> Any:
    """``torch.clamp`` with numbers as bounds, of which one may be missing; the upper one wins over a larger lower."""
    emit = importer.block_builder.emit
    data, dtype = importer.env[node.args[0]], relax_dtype(node.meta["val"].dtype)
    low, high = argument(node, 1, "min"), argument(node, 2, "max")
    if isinstance(low, Node) or isinstance(high, Node):  # extents, as in replicated padding
        for bound, bounded in ((low, relax.op.maximum), (high, relax.op.minimum)):
            if isinstance(bound, Node):
                value = importer.env[bound]
                value = number_tensor(emit, value) if tvm.ir.is_prim_expr(value) else value
                data = emit(bounded(data, emit(relax.op.astype(value, dtype))))
            elif bound is not None:
                data = emit(bounded(data, relax.const(bound, dtype)))
        return data
    low, high = (-math.inf if low is None else low), (math.inf if high is None else high)
    if not node.meta["val"].is_floating_point():
        low, high = (_wrapped(bound, dtype) for bound in (low, high))
    if math.isnan(low) or math.isnan(high):
        return emit(relax.op.add(data, relax.const(math.nan, dtype)))
    if low >= high:  # TVM would lose NaN in x, and takes the lower bound
        if not node.meta["val"].is_floating_point():
            return emit(relax.op.add(emit(relax.op.multiply(data, relax.const(0, dtype))), relax.const(high, dtype)))
        return emit(relax.op.where(emit(relax.op.isnan(data)), data, relax.const(high, dtype)))
    if low == -math.inf:
        return data if high == math.inf else emit(relax.op.minimum(data, relax.const(high, dtype)))
    if high == math.inf:
        return emit(relax.op.maximum(data, relax.const(low, dtype)))
    return emit(relax.op.clip(data, low, high))


def _wrapped(bound: float, dtype: str) -> float:
    """Convert a bound to a type of integers as PyTorch does: a negative one of unsigned integers wraps around."""
    limits = np.iinfo(dtype)
    return int(bound) % (limits.max + 1) if bound < 0 == limits.min and not math.isinf(bound) else bound


def clamp_by_tensors(importer: Any, node: Node) -> Any:
    """``torch.clamp`` with tensors as bounds, which all three are broadcast; the upper one wins over a larger lower."""
    value = importer.env[node.args[0]]
    for place, name, bounded in ((1, "min", relax.op.maximum), (2, "max", relax.op.minimum)):
        bound = argument(node, place, name)
        if bound is not None:
            value = importer.block_builder.emit(bounded(value, importer.env[bound]))
    return value


def extreme_but_nan(operation: Callable[[Any, Any], Any], importer: Any, node: Node) -> Any:
    """``torch.fmax`` and ``fmin``: a NaN is only given where both are."""
    emit = importer.block_builder.emit
    left, right = (importer.env[operand] for operand in node.args)
    if not node.meta["val"].is_floating_point():
        return emit(operation(left, right))
    known = emit(operation(left, right))
    known = emit(relax.op.where(emit(relax.op.isnan(right)), left, known))
    return emit(relax.op.where(emit(relax.op.isnan(left)), right, known))


BOUNDS: Mapping[str, Callable[[Any, Node], Any]] = {
    "clamp.Tensor": clamp_by_tensors,
    "clamp.default": clamp,
    "fmax.default": partial(extreme_but_nan, relax.op.maximum),
    "fmin.default": partial(extreme_but_nan, relax.op.minimum),
}
"""By name of operator and overload."""
