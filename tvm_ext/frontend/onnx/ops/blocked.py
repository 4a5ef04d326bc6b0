"""Quantisation with a scale for each block of elements along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from tvm_ext.frontend.onnx.ops.base import (
    Node,
    astype,
    dtype_of,
    element_type,
    emit,
    known,
    take_slice,
)
from tvm_ext.frontend.onnx.ops.casts import SMALL_FLOATS, read_small


def spread(node: Node, bb: relax.BlockBuilder, value: Any, shape: tuple[int, ...], axis: int, size: int) -> Any:
    """Repeat each element of a block's parameter along the axis, to the shape of the tensor."""
    found = node.shape(value, "scale")
    blocks = -(-shape[axis] // size)
    expected = (*shape[:axis], blocks, *shape[axis + 1 :])
    if found != expected:
        node.damaged(f"a scale or zero point has shape {found}, {expected} was expected for blocks of {size}")
    value = known(node, value)
    if isinstance(value, np.ndarray):
        value = np.repeat(value, size, axis)
    else:
        value = bb.emit(relax.op.repeat(value, size, axis))
    return take_slice(bb, value, axis, 0, shape[axis])


_HALF = ("float16", "bfloat16")


class DequantizeLinear(onnx_frontend.DequantizeLinear):
    """Integers to floats; TVM's converter does all but blocks, and the arithmetic of halves.

    Differences of integers of 16 bits are no halves: they are computed in single precision, as onnxruntime does.
    """

    @classmethod
    def _impl_v19(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        return cls._in_single(super()._impl_v19, bb, inputs, attr, params)

    @staticmethod
    def _in_single(
        stock: Callable[..., Any], bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]
    ) -> Any:
        dtype = dtype_of(inputs[1])
        if dtype not in _HALF:
            return stock(bb, inputs, attr, params)
        code = attr.get("output_dtype", 0)
        single = [inputs[0], emit(bb, astype(bb, inputs[1], "float32")), *inputs[2:]]
        plain = {name: value for name, value in attr.items() if name != "output_dtype"}
        return astype(bb, emit(bb, stock(bb, single, plain, params)), element_type(code) if code else dtype)

    @classmethod
    def _impl_v21(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        node = Node("DequantizeLinear", attr, params)
        if dtype_of(inputs[0]) in SMALL_FLOATS and not node.integer("block_size", 0):
            return cls._small(node, bb, inputs)
        if not node.integer("block_size", 0):
            return cls._in_single(super()._impl_v21, bb, inputs, attr, params)
        return cls._blocked(node, bb, inputs)

    @classmethod
    def _impl_v23(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        node = Node("DequantizeLinear", attr, params)
        if dtype_of(inputs[0]) in SMALL_FLOATS and not node.integer("block_size", 0):
            return cls._small(node, bb, inputs)
        if not node.integer("block_size", 0):
            return cls._in_single(super()._impl_v23, bb, inputs, attr, params)
        return cls._blocked(node, bb, inputs)

    @staticmethod
    def _small(node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Scale 8-bit floats; their zero point is a number of the same type."""
        x, scale, zero_point = (None if value is None else emit(bb, value) for value in inputs[:3])
        rank, code = len(node.shape(x, "x")), node.integer("output_dtype", 0)
        spread_shape = [1] * rank
        if node.shape(scale, "x_scale") not in ((), (1,)):
            spread_shape[node.axis("axis", rank, 1)] = -1
        values = emit(bb, read_small(bb, x, "float32"))
        if zero_point is not None:
            point = emit(bb, read_small(bb, zero_point, "float32"))
            values = bb.emit(relax.op.subtract(values, bb.emit(relax.op.reshape(point, spread_shape))))
        factor = bb.emit(relax.op.reshape(emit(bb, astype(bb, scale, "float32")), spread_shape))
        return astype(bb, bb.emit(relax.op.multiply(values, factor)), element_type(code) if code else dtype_of(scale))

    @staticmethod
    def _blocked(node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        x, scale, zero_point = inputs[0], inputs[1], inputs[2]
        shape = node.shape(x, "x")
        axis, size = node.axis("axis", len(shape), 1), node.integer("block_size", 0)
        code = node.integer("output_dtype", 0)
        dtype = element_type(code) if code else dtype_of(scale)
        # Weights are left in the graph as they are: integers, which a pass may keep packed.
        values = astype(bb, x, "float32")
        if zero_point is not None:
            point = astype(bb, spread(node, bb, zero_point, shape, axis, size), "float32")
            values = bb.emit(relax.op.subtract(values, emit(bb, point)))
        factor = astype(bb, spread(node, bb, scale, shape, axis, size), "float32")
        return astype(bb, bb.emit(relax.op.multiply(values, emit(bb, factor))), dtype)


class QuantizeLinear(onnx_frontend.QuantizeLinear):
    """Floats to integers; TVM's converter does all but blocks, and the arithmetic of halves.

    The limits of integers of 16 bits are no halves: what is clipped to 32768 would become -32768.
    """

    @classmethod
    def _impl_v19(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        return cls._in_single(super()._impl_v19, bb, inputs, attr, params)

    @staticmethod
    def _in_single(
        stock: Callable[..., Any], bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]
    ) -> Any:
        if dtype_of(inputs[0]) not in _HALF:
            return stock(bb, inputs, attr, params)
        single = [emit(bb, astype(bb, value, "float32")) for value in inputs[:2]]
        return stock(bb, [*single, *inputs[2:]], attr, params)

    @classmethod
    def _impl_v21(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        node = Node("QuantizeLinear", attr, params)
        if not node.integer("block_size", 0):
            return cls._in_single(super()._impl_v21, bb, inputs, attr, params)
        return cls._blocked(node, bb, inputs)

    @classmethod
    def _impl_v23(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        node = Node("QuantizeLinear", attr, params)
        if not node.integer("block_size", 0):
            return cls._in_single(super()._impl_v23, bb, inputs, attr, params)
        return cls._blocked(node, bb, inputs)

    @staticmethod
    def _blocked(node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        x, scale, zero_point = inputs[0], inputs[1], inputs[2]
        shape = node.shape(x, "x")
        axis, size = node.axis("axis", len(shape), 1), node.integer("block_size", 0)
        code = node.integer("output_dtype", 0)
        dtype = element_type(code) if code else "uint8" if zero_point is None else dtype_of(zero_point)
        try:
            limits = np.iinfo(dtype)
        except ValueError:
            node.refuse(f"blocks of type {dtype} are not supported, only integers of 8 bits and more")
        factor = astype(bb, spread(node, bb, scale, shape, axis, size), "float32")
        levels = relax.op.round(relax.op.divide(astype(bb, x, "float32"), emit(bb, factor)))
        if zero_point is not None:
            point = astype(bb, spread(node, bb, zero_point, shape, axis, size), "float32")
            levels = relax.op.add(levels, emit(bb, point))
        return astype(bb, bb.emit(relax.op.clip(levels, float(limits.min), float(limits.max))), dtype)


CONVERTERS: dict[tuple[str, str], type] = {
    ("", "DequantizeLinear"): DequantizeLinear,
    ("", "QuantizeLinear"): QuantizeLinear,
}
