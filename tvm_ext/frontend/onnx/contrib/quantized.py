"""Operators on quantised tensors that onnxruntime adds, as dequantize, the float operator, quantize.

That is the form of models quantised with explicit quantize and dequantize nodes, so both kinds of model meet the same
graph passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from tvm_ext.frontend.onnx.ops.base import (
    Converter,
    Node,
    add,
    astype,
    constant,
    dtype_of,
    emit,
    known,
    multiply,
    softmax_from,
    subtract,
)
from tvm_ext.frontend.onnx.ops.integer import centred, requantize

_POOL_OPSET = 11


def _zero_point(value: Any | None, dtype: str) -> Any:
    return constant(0, dtype) if value is None else value


def dequantize(bb: relax.BlockBuilder, value: Any, scale: Any, zero_point: Any | None) -> Any:
    """Float32 values of a tensor with one scale."""
    point = _zero_point(zero_point, dtype_of(value))
    return bb.emit(relax.op.dequantize(value, _scalar(bb, scale), _scalar(bb, point), axis=0, out_dtype="float32"))


def quantize(bb: relax.BlockBuilder, value: Any, scale: Any, zero_point: Any | None, dtype: str) -> Any:
    """Round a float tensor to integers with one scale; the zero point's type is the result's, else ``dtype``."""
    point = _zero_point(zero_point, dtype)
    return bb.emit(relax.op.quantize(value, _scalar(bb, scale), _scalar(bb, point), axis=0, out_dtype=dtype_of(point)))


def _scalar(bb: relax.BlockBuilder, value: Any) -> Any:
    """Take the one element of a tensor of shape (1,) out of it."""
    if not len(value.ty.shape):
        return value
    return bb.emit(relax.op.reshape(value, ()))


class _Binary(Converter):
    """Two quantised operands, each with scale and zero point, then those of the result."""

    operation: Callable[[Any, Any], Any]

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the quantised result."""
        left = dequantize(bb, inputs[0], inputs[1], inputs[2])
        right = dequantize(bb, inputs[3], inputs[4], inputs[5])
        return quantize(bb, cls.operation(left, right), inputs[6], inputs[7], dtype_of(inputs[0]))


class QLinearAdd(_Binary):
    """Sum."""

    operation = staticmethod(relax.op.add)


class QLinearMul(_Binary):
    """Product."""

    operation = staticmethod(relax.op.multiply)


class _Unary(Converter):
    """One quantised operand with scale and zero point, then those of the result."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the quantised result."""
        result = cls.compute(node, bb, dequantize(bb, inputs[0], inputs[1], inputs[2]))
        return quantize(bb, result, inputs[3], inputs[4], dtype_of(inputs[0]))

    @classmethod
    def compute(cls, node: Node, bb: relax.BlockBuilder, x: Any) -> Any:
        """Apply the operator to float32 values."""
        raise NotImplementedError(f"{cls.__name__} defines no computation")


class QLinearSigmoid(_Unary):
    """Logistic function."""

    @classmethod
    def compute(cls, node: Node, bb: relax.BlockBuilder, x: Any) -> Any:
        """Apply the operator to float32 values."""
        return relax.op.sigmoid(x)


class QLinearLeakyRelu(_Unary):
    """Leaky rectifier."""

    @classmethod
    def compute(cls, node: Node, bb: relax.BlockBuilder, x: Any) -> Any:
        """Apply the operator to float32 values."""
        return relax.op.nn.leakyrelu(x, node.number("alpha", 0.01))


class QLinearSoftmax(_Unary):
    """Softmax; before opset 13 over all axes from ``axis`` on."""

    @classmethod
    def compute(cls, node: Node, bb: relax.BlockBuilder, x: Any) -> Any:
        """Apply the operator to float32 values."""
        opset = node.integer("opset", 13)
        axis = node.axis("axis", len(node.dims(x, "X")), 1 if opset < 13 else -1)
        if opset >= 13:
            return relax.op.nn.softmax(x, axis)
        return softmax_from(node, bb, x, axis)


class QLinearReduceMean(_Unary):
    """Mean over axes."""

    @classmethod
    def compute(cls, node: Node, bb: relax.BlockBuilder, x: Any) -> Any:
        """Apply the operator to float32 values."""
        axes = node.integers("axes") or None
        return relax.op.mean(x, axes, keepdims=bool(node.integer("keepdims", 1)))


class _Pool(_Unary):
    """Pooling, on channels first or last."""

    @classmethod
    def compute(cls, node: Node, bb: relax.BlockBuilder, x: Any) -> Any:
        """Apply the operator to float32 values."""
        rank = len(node.dims(x, "X"))
        if not node.integer("channels_last", 0):
            return cls.pool(node, bb, x)
        x = bb.emit(relax.op.permute_dims(x, [0, rank - 1, *range(1, rank - 1)]))
        return relax.op.permute_dims(emit(bb, cls.pool(node, bb, x)), [0, *range(2, rank), 1])

    @classmethod
    def pool(cls, node: Node, bb: relax.BlockBuilder, x: Any) -> Any:
        """Pool float32 values with channels first."""
        raise NotImplementedError(f"{cls.__name__} defines no computation")


class QLinearGlobalAveragePool(_Pool):
    """Mean over the spatial axes."""

    @classmethod
    def pool(cls, node: Node, bb: relax.BlockBuilder, x: Any) -> Any:
        """Pool float32 values with channels first."""
        return relax.op.mean(x, list(range(2, len(node.dims(x, "X")))), keepdims=True)


class QLinearAveragePool(_Pool):
    """Mean over windows."""

    @classmethod
    def pool(cls, node: Node, bb: relax.BlockBuilder, x: Any) -> Any:
        """Pool float32 values with channels first."""
        convert = onnx_frontend.AveragePool.get_converter(_POOL_OPSET)
        return convert(bb, onnx_frontend.onnx_input([x]), dict(node.attributes), node.parameters)


class QLinearConcat(Converter):
    """Concatenation of tensors that each have a scale and zero point."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the quantised result."""
        if len(inputs) < 5 or (len(inputs) - 2) % 3:
            node.damaged(f"{len(inputs)} inputs, scale and zero point and then groups of three were expected")
        parts = [dequantize(bb, *(inputs[index] for index in range(at, at + 3))) for at in range(2, len(inputs), 3)]
        joined = relax.op.concat(parts, node.integer("axis", 1))
        return quantize(bb, joined, inputs[0], inputs[1], dtype_of(inputs[2]))


class QLinearWhere(Converter):
    """Choice between two quantised tensors."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the quantised result."""
        left = dequantize(bb, inputs[1], inputs[2], inputs[3])
        right = dequantize(bb, inputs[4], inputs[5], inputs[6])
        chosen = relax.op.where(inputs[0], left, right)
        return quantize(bb, chosen, inputs[7], inputs[8], dtype_of(inputs[1]))


class QGemm(Converter):
    """Product of 8-bit matrices plus an int32 bias, to an 8-bit matrix, or to float32 if no output scale is given."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the result."""
        a, a_scale, a_zero_point, b, b_scale, b_zero_point, bias, y_scale, y_zero_point = (
            inputs[index] for index in range(9)
        )
        left = emit(bb, centred(node, bb, a, a_zero_point, "a_zero_point", 0))
        right = emit(bb, centred(node, bb, b, b_zero_point, "b_zero_point", 0 if node.integer("transB", 0) else 1))
        if node.integer("transA", 0):
            left = bb.emit(relax.op.permute_dims(left, [1, 0]))
        if node.integer("transB", 0):
            right = bb.emit(relax.op.permute_dims(right, [1, 0]))
        total = bb.emit(relax.op.matmul(left, right, out_dtype="int32"))
        if bias is not None:
            total = add(bb, total, known(node, bias))
        alpha = np.float32(node.number("alpha", 1.0))
        scale = emit(bb, multiply(bb, known(node, a_scale), np.asarray(alpha)))
        if y_scale is not None and y_zero_point is not None:
            return requantize(node, bb, total, [scale, b_scale, y_scale], y_zero_point, 1, 2)
        factor = multiply(bb, known(node, scale), astype(bb, known(node, b_scale), "float32"))
        return multiply(bb, astype(bb, total, "float32"), factor)


class MatMulNBits(Converter):
    """Product with weights packed to 2, 4 or 8 bits in blocks, which stay integers for passes that keep them so."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the product."""
        a, packed, scales, zero_points, order, bias = (inputs[index] for index in range(6))
        columns, depth = node.integer("N", 0), node.integer("K", 0)
        bits, size = node.integer("bits", 4), node.integer("block_size", 32)
        if bits not in (2, 4, 8):
            node.refuse(f"weights of {bits} bits are not supported, only 2, 4 and 8")
        if columns < 1 or depth < 1 or size < 1:
            node.refuse(f"N {columns}, K {depth} and block_size {size} describe no weights; expected numbers above 0")
        blocks = -(-depth // size)
        weight_bytes = node.constant(packed, "B")
        wanted = [columns, blocks, -(-size * bits // 8)]
        if weight_bytes.dtype != np.uint8 or weight_bytes.size != np.prod(wanted):
            node.refuse(f"input B is {weight_bytes.dtype}{list(weight_bytes.shape)}; expected uint8{wanted}")
        levels = _unpack(weight_bytes.reshape(wanted), bits)[..., :size]
        scale = node.constant(scales, "scales")
        if scale.size != columns * blocks:
            node.refuse(f"input scales has {scale.size} elements; expected {columns * blocks}")
        scale = scale.reshape(columns, blocks, 1).astype("float32")
        if zero_points is None:
            middle: Any = np.float32(2 ** (bits - 1))
        else:
            middle = node.constant(zero_points, "zero_points")
            count = columns * (-(-blocks * bits // 8) if middle.dtype == np.uint8 else blocks)
            if middle.size != count:
                node.refuse(f"input zero_points has {middle.size} elements; expected {count}")
            if middle.dtype == np.uint8:
                middle = _unpack(middle.reshape(columns, -1), bits)[:, :blocks]
            middle = middle.reshape(columns, blocks, 1).astype("float32")
        if order is not None:
            floats = levels.astype("float32").reshape(columns, -1)[:, :depth]
            weights = constant(np.ascontiguousarray(_regrouped(node, floats, scale, middle, order).T), dtype_of(a))
        else:
            wide = bb.emit(relax.op.astype(constant(np.ascontiguousarray(levels), "uint8"), "float32"))
            centred_levels = subtract(bb, wide, np.asarray(middle, "float32"))
            scaled = bb.emit(relax.op.reshape(emit(bb, multiply(bb, centred_levels, scale)), (columns, blocks * size)))
            if depth != blocks * size:
                scaled = bb.emit(relax.op.strided_slice(scaled, [1], [0], [depth]))
            weights = emit(bb, astype(bb, bb.emit(relax.op.permute_dims(scaled)), dtype_of(a)))
        product = bb.emit(relax.op.matmul(a, weights))
        return product if bias is None else add(bb, product, known(node, bias))


def _regrouped(node: Node, levels: np.ndarray, scale: np.ndarray, middle: Any, order: Any) -> np.ndarray:
    """Weights whose rows have their block in ``g_idx``, and not in turn."""
    found, (depth, blocks) = node.constant(order, "g_idx").ravel(), (levels.shape[1], scale.shape[1])
    if found.size < depth or np.any((found < 0) | (found >= blocks)):
        node.refuse(f"input g_idx has {found.size} elements; expected {depth} from 0 to {blocks - 1}")
    block = found[:depth].astype("int64")
    points = middle if np.ndim(middle) == 0 else middle[:, block, 0]
    return np.asarray((levels - points) * scale[:, block, 0])


def _unpack(packed: np.ndarray, bits: int) -> np.ndarray:
    """Split bytes into values of ``bits`` bits, lowest first, along the last axis."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    values = (packed[..., None] >> shifts) & np.uint8(2**bits - 1)
    return values.reshape(*packed.shape[:-1], -1)


_OPERATORS = (
    MatMulNBits,
    QGemm,
    QLinearAdd,
    QLinearAveragePool,
    QLinearConcat,
    QLinearGlobalAveragePool,
    QLinearLeakyRelu,
    QLinearMul,
    QLinearReduceMean,
    QLinearSigmoid,
    QLinearSoftmax,
    QLinearWhere,
)
CONVERTERS: dict[tuple[str, str], type] = {
    ("com.microsoft", operator.__name__): operator for operator in _OPERATORS
} | {
    # onnxruntime has these for types that older operator sets lack; they are the same operators.
    ("com.microsoft", "DequantizeLinear"): onnx_frontend.DequantizeLinear,
    ("com.microsoft", "QuantizeLinear"): onnx_frontend.QuantizeLinear,
}
