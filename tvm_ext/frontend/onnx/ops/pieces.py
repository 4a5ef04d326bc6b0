"""Operators that take one value or another by a comparison: Max, Min, PRelu, ThresholdedRelu and Celu.

TVM's converters stack the operands of the first two and reduce, copies and all; refuse a PRelu whose slope has one
element or is broadcast; multiply by 0 what ThresholdedRelu leaves out, which is NaN for an infinity, and only in single
precision; and a Celu of a scalar, expanded as ONNX defines it, has an axis too many. That of SequenceAt does not say
what is wrong with a position.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

from tvm_ext.frontend.onnx.ops.base import Converter, Node


class _Extreme(OnnxOpConverter):
    """Operands two by two, left to right; they broadcast."""

    operator: Any = None

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Sequence[Any], attr: dict[str, Any], params: Any) -> Any:
        given = [item for item in inputs if item is not None]
        return functools.reduce(lambda left, right: bb.normalize(cls.operator(left, right)), given)


class Max(_Extreme):
    """``Max`` of any number of tensors."""

    operator = staticmethod(relax.op.maximum)


class Min(_Extreme):
    """``Min`` of any number of tensors."""

    operator = staticmethod(relax.op.minimum)


class PRelu(onnx_frontend.PRelu):
    """``PRelu`` with a slope for each channel of an image as TVM converts it, otherwise as a choice."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Sequence[Any], attr: dict[str, Any], params: Any) -> Any:
        data, slope = inputs
        rank, sides = len(data.ty.shape), list(slope.ty.shape)
        channel = len(sides) == rank - 1 and rank > 2 and all(side == 1 for side in sides[1:])
        if channel and sides[0] == data.ty.shape[1] and sides[0] != 1:
            return super()._impl_v1(bb, inputs, attr, params)
        falling = bb.normalize(relax.op.multiply(data, slope))
        negative = bb.normalize(relax.op.less(data, relax.const(0, str(data.ty.dtype))))
        return relax.op.where(negative, falling, data)


class ThresholdedRelu(OnnxOpConverter):
    """``ThresholdedRelu(x)``: x where it is above alpha, 0 elsewhere and for NaN."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Sequence[Any], attr: dict[str, Any], params: Any) -> Any:
        dtype = str(inputs[0].ty.dtype)
        above = bb.normalize(relax.op.greater(inputs[0], relax.const(float(attr.get("alpha", 1.0)), dtype)))
        return relax.op.where(above, inputs[0], relax.const(0, dtype))


class Celu(OnnxOpConverter):
    """``Celu(x)``: max(0, x) + min(0, alpha (exp(x / alpha) - 1))."""

    @classmethod
    def _impl_v12(cls, bb: relax.BlockBuilder, inputs: Sequence[Any], attr: dict[str, Any], params: Any) -> Any:
        dtype = str(inputs[0].ty.dtype)
        alpha, one, zero = (relax.const(value, dtype) for value in (float(attr.get("alpha", 1.0)), 1, 0))
        grown = bb.normalize(relax.op.exp(bb.normalize(relax.op.divide(inputs[0], alpha))))
        curve = bb.normalize(relax.op.multiply(alpha, bb.normalize(relax.op.subtract(grown, one))))
        below = bb.normalize(relax.op.minimum(curve, zero))
        return relax.op.add(bb.normalize(relax.op.nn.relu(inputs[0])), below)


class SequenceAt(Converter):
    """An element of a sequence."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the element."""
        position, elements = int(node.scalar(inputs[1], "position")), list(inputs[0])
        if not -len(elements) <= position < len(elements):
            node.damaged(f"position {position} is out of range for {len(elements)} elements")
        return elements[position]


class OptionalHasElement(OnnxOpConverter):
    """Whether there is something in an optional value; nothing is in one that is left out."""

    @classmethod
    def _impl_v15(cls, bb: relax.BlockBuilder, inputs: Sequence[Any], attr: dict[str, Any], params: Any) -> Any:
        if len(inputs) == 0:
            return relax.const(False, "bool")
        return onnx_frontend.OptionalHasElement.get_converter(18)(bb, inputs, attr, params)


CONVERTERS: dict[tuple[str, str], type] = {
    ("", "Max"): Max,
    ("", "Min"): Min,
    ("", "PRelu"): PRelu,
    ("", "ThresholdedRelu"): ThresholdedRelu,
    ("", "Celu"): Celu,
    ("", "SequenceAt"): SequenceAt,
    ("", "OptionalHasElement"): OptionalHasElement,
}
