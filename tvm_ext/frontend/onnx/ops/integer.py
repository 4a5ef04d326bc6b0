"""Integer products of quantised tensors: ConvInteger, MatMulInteger, QLinearConv, QLinearMatMul and their kin.

Values are widened to int32 and freed of their zero points before the product, so that a padded zero is a zero; products
are exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.relax.frontend.onnx import onnx_frontend

from tvm_ext.frontend.onnx.ops.base import (
    Converter,
    Node,
    add,
    astype,
    dtype_of,
    emit,
    known,
    multiply,
    reshape,
    subtract,
)
from tvm_ext.relax_utils import OPAQUE

_CONV_OPSET = 11


def centred(node: Node, bb: relax.BlockBuilder, value: Any, zero_point: Any | None, name: str, axis: int) -> Any:
    """Widen to int32 and subtract the zero point.

    Parameters
    ----------
    value : relax.Expr
        8-bit or 16-bit integers.
    zero_point : relax.Expr, optional
        A scalar, one value per index of ``axis``, or of a shape that broadcasts; None is zero.
    name : str
        Of the zero point, for messages.
    axis : int
        May be negative.

    Returns
    -------
    relax.Expr or np.ndarray
        int32; an array if both are constants.
    """
    shape = node.dims(value, name.removesuffix("_zero_point"))
    wide = astype(bb, known(node, value), "int32")
    if zero_point is None:
        return wide
    shift = known(node, zero_point)
    if isinstance(shift, np.ndarray) and not shift.any():
        return wide
    shift = astype(bb, shift, "int32")
    shift_shape = node.dims(zero_point, name)
    if len(shift_shape) == 1:
        count, extent = shift_shape[0], shape[axis]
        if isinstance(count, int) and count != 1 and isinstance(extent, int) and count != extent:
            node.damaged(f"input {name} has shape {shift_shape}, () or ({shape[axis]},) was expected")
        spread = [1] * len(shape)
        spread[axis] = shift_shape[0]
        shift = reshape(bb, shift, spread)
    return subtract(bb, wide, shift)


def integer_matmul(node: Node, bb: relax.BlockBuilder, a: Any, b: Any, a_zero_point: Any, b_zero_point: Any) -> Any:
    """Product in int32; zero points are scalars, or one per row of ``a`` and per column of ``b``."""
    # A vector has no row or column to give a zero point to; its only axis has to do.
    a_axis = -2 if len(node.dims(a, "A")) > 1 else -1
    left = emit(bb, centred(node, bb, a, a_zero_point, "a_zero_point", a_axis))
    right = emit(bb, centred(node, bb, b, b_zero_point, "b_zero_point", -1))
    return bb.emit(relax.op.matmul(left, right, out_dtype="int32"))


def integer_convolution(
    node: Node, bb: relax.BlockBuilder, x: Any, weights: Any, x_zero_point: Any, w_zero_point: Any, bias: Any
) -> Any:
    """Convolution in int32 with the node's strides, dilations, groups and padding."""
    data = emit(bb, centred(node, bb, x, x_zero_point, "x_zero_point", 1))
    kernel = emit(bb, centred(node, bb, weights, w_zero_point, "w_zero_point", 0))
    operands = onnx_frontend.onnx_input([data, kernel, bias])
    attributes = dict(node.attributes)  # TVM's converter edits them
    convert = onnx_frontend.Conv.get_converter(_CONV_OPSET)
    return emit(bb, convert(bb, operands, attributes, node.parameters))


def requantize(
    node: Node, bb: relax.BlockBuilder, total: Any, scales: list[Any], zero_point: Any, channel_axis: int, rank: int
) -> Any:
    """Scale int32 sums to the output's integers: round half to even, shift, saturate.

    Parameters
    ----------
    total : relax.Expr
        int32.
    scales : list of relax.Expr
        Of the first operand, the second and the output; the second may hold one value per channel.
    zero_point : relax.Expr
        Of the output; its type is the output's.
    channel_axis : int
        Of the second operand's scales.
    rank : int
        Of ``total``.
    """
    factors = [astype(bb, known(node, scale), "float32") for scale in scales]
    shape = node.shape(scales[1], "scale of the second operand")
    if len(shape) == 1 and shape[0] > 1:
        spread = [1] * rank
        spread[channel_axis] = shape[0]
        factors[1] = reshape(bb, factors[1], spread)
    factor = multiply(bb, factors[0], factors[1])
    if isinstance(factor, np.ndarray) and isinstance(factors[2], np.ndarray):
        factor = factor / factors[2]
    else:
        factor = bb.emit(relax.op.divide(emit(bb, factor), emit(bb, factors[2])))
    scaled = bb.emit(relax.op.multiply(astype(bb, total, "float32"), emit(bb, factor)))
    return saturate(node, bb, relax.op.round(scaled), zero_point)


def saturate(node: Node, bb: relax.BlockBuilder, rounded: Any, zero_point: Any) -> Any:
    """Shift whole numbers, held as float32, by the zero point and cast them to its type."""
    dtype = dtype_of(zero_point)
    limits = np.iinfo(dtype)
    shift = astype(bb, known(node, zero_point), "float32")
    if not isinstance(shift, np.ndarray) or shift.any():
        rounded = relax.op.add(rounded, emit(bb, shift))
    return bb.emit(relax.op.astype(relax.op.clip(rounded, float(limits.min), float(limits.max)), dtype))


def dynamic_quantization(bb: relax.BlockBuilder, x: Any) -> tuple[Any, Any, Any]:
    """Quantise to uint8 over the range of the values, which is widened to hold zero.

    Returns
    -------
    tuple of relax.Expr
        Values (uint8), scale (float32 scalar), zero point (uint8 scalar). A tensor of zeros has scale 1.
    """
    ends = [bb.emit(reduce(x)) for reduce in (relax.op.max, relax.op.min)]
    # One kernel: numbers that several others read are not merged with what computes them.
    steps = bb.emit_te(_steps, *ends, primfunc_name_hint="dynamic_steps", primfunc_attrs={"op_pattern": OPAQUE})
    scale, point, zero_point = (bb.emit(relax.TupleGetItem(steps, place)) for place in range(3))
    rounded = relax.op.add(relax.op.round(relax.op.divide(x, scale)), point)
    values = bb.emit(relax.op.astype(relax.op.clip(rounded, 0.0, 255.0), "uint8"))
    return values, scale, zero_point


def _steps(largest: te.Tensor, smallest: te.Tensor) -> list[te.Tensor]:
    """Compute the scale and the zero point, as a float and as a byte, of values between two ends."""
    zero, one, most = (tirx.const(value, "float32") for value in (0.0, 1.0, 255.0))
    high = te.compute((), lambda: tirx.Max(largest(), zero), name="high")
    low = te.compute((), lambda: tirx.Min(smallest(), zero), name="low")
    scale = te.compute((), lambda: tirx.Select(high() == low(), one, (high() - low()) / most), name="scale")
    point = te.compute((), lambda: tirx.round(tirx.Min(tirx.Max((zero - low()) / scale(), zero), most)), name="point")
    return [scale, point, te.compute((), lambda: point().astype("uint8"), name="zero_point")]


class DynamicQuantizeLinear(Converter):
    """Quantise to uint8 with a scale found at run time."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give values, scale and zero point."""
        return node.outputs(dynamic_quantization(bb, emit(bb, inputs[0])))


class MatMulInteger(Converter):
    """Product of 8-bit matrices in int32."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the product."""
        return integer_matmul(node, bb, inputs[0], inputs[1], inputs[2], inputs[3])


class ConvInteger(Converter):
    """Convolution of 8-bit tensors in int32."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the convolution."""
        return integer_convolution(node, bb, inputs[0], inputs[1], inputs[2], inputs[3], None)


class QLinearConv(Converter):
    """Convolution of 8-bit tensors to an 8-bit tensor."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the quantised convolution."""
        x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, bias = (
            inputs[index] for index in range(9)
        )
        total = integer_convolution(node, bb, x, w, x_zero_point, w_zero_point, bias)
        rank = len(node.dims(x, "x"))
        return requantize(node, bb, total, [x_scale, w_scale, y_scale], y_zero_point, 1, rank)


class QLinearMatMul(Converter):
    """Product of 8-bit matrices to an 8-bit matrix."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the quantised product."""
        a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point = (inputs[i] for i in range(8))
        if len(node.shape(a_scale, "a_scale")) == 1 and node.shape(a_scale, "a_scale")[0] > 1:
            node.refuse("one scale per row of A is not supported, only a scalar")
        total = integer_matmul(node, bb, a, b, a_zero_point, b_zero_point)
        rank = len(node.dims(total, "Y"))
        return requantize(node, bb, total, [a_scale, b_scale, y_scale], y_zero_point, rank - 1, rank)


def dequantized_product(
    node: Node, bb: relax.BlockBuilder, total: Any, a_scale: Any, b_scale: Any, bias: Any | None
) -> Any:
    """Scale int32 sums to float32; ``b_scale`` is a scalar or one value per column."""
    factor = multiply(bb, astype(bb, known(node, a_scale), "float32"), astype(bb, known(node, b_scale), "float32"))
    result = multiply(bb, astype(bb, total, "float32"), factor)
    return result if bias is None else add(bb, result, known(node, bias))


class MatMulIntegerToFloat(Converter):
    """Product of 8-bit matrices, scaled to float32."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the scaled product."""
        a, b, a_scale, b_scale, a_zero_point, b_zero_point, bias = (inputs[index] for index in range(7))
        total = integer_matmul(node, bb, a, b, a_zero_point, b_zero_point)
        return dequantized_product(node, bb, total, a_scale, b_scale, bias)


class DynamicQuantizeMatMul(Converter):
    """Product of a float32 matrix, quantised at run time, and an 8-bit matrix, scaled to float32."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the scaled product."""
        a, b, b_scale, b_zero_point, bias = (inputs[index] for index in range(5))
        values, scale, zero_point = dynamic_quantization(bb, emit(bb, a))
        total = integer_matmul(node, bb, values, b, zero_point, b_zero_point)
        return dequantized_product(node, bb, total, scale, b_scale, bias)


CONVERTERS = {
    ("", "ConvInteger"): ConvInteger,
    ("", "DynamicQuantizeLinear"): DynamicQuantizeLinear,
    ("", "MatMulInteger"): MatMulInteger,
    ("", "QLinearConv"): QLinearConv,
    ("", "QLinearMatMul"): QLinearMatMul,
    ("com.microsoft", "DynamicQuantizeMatMul"): DynamicQuantizeMatMul,
    ("com.microsoft", "MatMulIntegerToFloat"): MatMulIntegerToFloat,
}
