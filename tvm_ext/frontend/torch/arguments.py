"""What converters of PyTorch operators ask of nodes and tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from torch.fx import Node
from tvm import relax


def argument(node: Node, position: int, name: str, default: Any = None) -> Any:
    """Argument of a node, given by position or by name."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def static_size(value: Any, axis: int) -> int:
    """Size of a dimension that has to be known."""
    size = value.ty.shape[axis]
    if not isinstance(size, tvm.tirx.IntImm):
        raise NotImplementedError(f"dimension {axis} of its input, {size}, has to be known")
    return int(size)


def extent_of(importer: Any, size: Any) -> Any:
    """Give an argument that stands for an extent as an expression: a number, or what nodes compute of extents.

    Raises
    ------
    NotImplementedError
        If it is computed from values of tensors.
    """
    value = importer.env[size] if isinstance(size, Node) else size
    if isinstance(value, int):
        return tvm.tirx.const(value, "int64")
    if tvm.ir.is_prim_expr(value):
        return value
    if isinstance(value, relax.Var):
        value = importer.block_builder.lookup_binding(value)
    if not isinstance(value, tvm.ir.GenericConst):
        raise NotImplementedError("an extent is computed from values of tensors, and not from extents")
    return tvm.tirx.const(int(value.value.numpy()), "int64")


def size_tensor(emit: Callable[[Any], Any], value: Any, axis: int) -> Any:
    """Size of a dimension as a scalar of int64, a constant where it is known."""
    return number_tensor(emit, value.ty.shape[axis])


def number_tensor(emit: Callable[[Any], Any], extent: Any, dtype: str = "int64") -> Any:
    """Extent as a scalar tensor, a constant where it is known."""
    if isinstance(extent, tvm.tirx.IntImm):
        return relax.const(int(extent), dtype)
    scalar = emit(relax.op.reshape(emit(relax.op.shape_to_tensor(relax.ShapeExpr([extent]))), []))
    return scalar if dtype == "int64" else emit(relax.op.astype(scalar, dtype))


def counted_from_start(emit: Callable[[Any], Any], index: Any, size: Any) -> Any:
    """Turn negative positions into those counted from the start, as int64; ``size`` as :func:`size_tensor` gives it."""
    if isinstance(index, tvm.ir.GenericConst):
        values = index.value.numpy().astype("int64")
        if isinstance(size, tvm.ir.GenericConst):
            values = np.where(values < 0, values + size.value.numpy(), values)
        if not np.any(values < 0):
            return relax.const(values, "int64")
        index = relax.const(values, "int64")
    if str(index.ty.dtype) != "int64":
        index = emit(relax.op.astype(index, "int64"))
    turned = emit(relax.op.add(index, size))
    negative = emit(relax.op.less(index, relax.const(0, "int64")))
    return emit(relax.op.where(negative, turned, index))
