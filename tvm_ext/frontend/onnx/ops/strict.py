"""Operators of which TVM's converters take a variant for another one, without a word."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from tvm import relax, tirx
from tvm.relax.frontend.onnx import onnx_frontend

from tvm_ext.frontend.onnx.ops.base import Converter, Node, constant, dtype_of, emit, known
from tvm_ext.frontend.onnx.ops.extents import (
    allocated_extents,
    can_prove,
    is_computed_shape,
    is_number,
    listed,
    normal,
    number,
)


def nonzero(node: Node, bb: relax.BlockBuilder, divisor: Any) -> Any:
    """Give a divisor of integers without zeros, which would end the process; 1 takes the place of a computed zero."""
    array = node.array(divisor)
    if array is None:
        dtype = dtype_of(divisor)
        is_zero = bb.emit(relax.op.equal(divisor, constant(0, dtype)))
        return bb.emit(relax.op.where(is_zero, constant(1, dtype), divisor))
    if not np.all(array):
        node.damaged("it divides integers by zero")
    return divisor


class Div(Converter):
    """Quotient; of integers it is rounded towards zero."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the quotient."""
        if "float" not in dtype_of(inputs[1]):
            inputs[1] = nonzero(node, bb, inputs[1])
        return onnx_frontend.Div.get_converter(14)(bb, inputs, dict(node.attributes), node.parameters)


class Mod(Converter):
    """Remainder with the sign of the divisor, or with that of the dividend (``fmod``)."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the remainder."""
        dividend, divisor = emit(bb, inputs[0]), emit(bb, inputs[1])
        dtype = dtype_of(dividend)
        if node.integer("fmod", 0):
            return relax.op.mod(dividend, divisor if "float" in dtype else nonzero(node, bb, divisor))
        if "float" not in dtype:
            return relax.op.floor_mod(dividend, nonzero(node, bb, divisor))
        # floor_mod of floats is x - floor(x / y) y, which is NaN where y is infinite.
        rest = bb.emit(relax.op.mod(dividend, divisor))
        zero = constant(0.0, dtype)
        differ = relax.op.logical_xor(relax.op.less(rest, zero), relax.op.less(divisor, zero))
        moved = relax.op.logical_and(relax.op.not_equal(rest, zero), differ)
        return relax.op.where(bb.emit(moved), bb.emit(relax.op.add(rest, divisor)), rest)


class Expand(Converter):
    """Broadcast to a shape; a dimension of the input that is no 1 stays."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the broadcast tensor."""
        data, target = emit(bb, inputs[0]), known(node, inputs[1])
        if data.ty.shape is None:
            return onnx_frontend.Expand.get_converter(13)(bb, inputs, dict(node.attributes), node.parameters)
        extents = listed(node, allocated_extents(bb, target) if is_computed_shape(target) else target) or []
        dims = list(data.ty.shape)
        if isinstance(target, np.ndarray) and all(map(is_number, dims)):
            return relax.op.broadcast_to(data, list(np.broadcast_shapes(tuple(map(int, dims)), tuple(target.ravel()))))
        rank = max(len(dims), len(extents))
        if rank > len(dims):
            dims = [number(1)] * (rank - len(dims)) + dims
            data = bb.emit(relax.op.reshape(data, relax.ShapeExpr(dims)))
        extents = [number(1)] * (rank - len(extents)) + extents
        for axis, (dim, extent) in enumerate(zip(dims, extents, strict=True)):
            if is_number(dim) or can_prove(dim == extent) or can_prove(extent == number(1)):
                extents[axis] = extent if can_prove(dim == number(1)) else dim
                continue
            # Whether there is one element to repeat only a run tells: places beyond the last one are the last one's.
            places = bb.emit(relax.op.arange(0, normal(tirx.Select(dim == number(1), extent, dim)), 1, "int64"))
            extents[axis] = tirx.Var(f"extent_{axis}", "int64")  # kernels take no choice for an extent
            places = bb.match_cast(places, relax.TensorType([extents[axis]], "int64"))
            data = bb.emit(relax.op.take(data, places, axis, mode="clip"))
        return relax.op.broadcast_to(data, relax.ShapeExpr(extents))


class CumProd(Converter):
    """Cumulative product along an axis."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the products."""
        x = emit(bb, inputs[0])
        axis = node.in_range(int(node.scalar(inputs[1], "axis")), len(node.dims(x, "x")))
        backwards = node.integer("reverse", 0)
        x = bb.emit(relax.op.flip(x, axis)) if backwards else x
        result = bb.emit(relax.op.cumprod(x, axis, dtype_of(x), exclusive=bool(node.integer("exclusive", 0))))
        return relax.op.flip(result, axis) if backwards else result


_INTEGERS_AS_FLOATS = dict.fromkeys(("int32", "int64", "uint32", "uint64"), "float64")
"""What roots, logarithms and exponentials of integers are computed in, before they are cut off to integers again."""


class _Reduction(Converter):
    """A reduction by TVM's converter, of types that are too narrow for it in a wider one."""

    stock: Any
    wider: ClassVar[Mapping[str, str]]
    step: Callable[[Any], Any] | None = None
    """What is done to each element where an empty list of axes is to reduce nothing; None for nothing."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        return cls._reduce(1, bb, inputs, attr, params)

    @classmethod
    def _impl_v11(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        return cls._reduce(11, bb, inputs, attr, params)

    @classmethod
    def _impl_v18(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        return cls._reduce(18, bb, inputs, attr, params)

    @classmethod
    def _reduce(cls, version: int, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: Any) -> Any:
        convert = cls.stock.get_converter(version)
        dtype = dtype_of(inputs[0])
        if dtype in cls.wider:
            inputs[0] = bb.emit(relax.op.astype(inputs[0], cls.wider[dtype]))
        if cls.step is not None and attr.get("noop_with_empty_axes", 0) and _has_no_axes(cls.__name__, inputs, params):
            result = cls.step(inputs[0])
        else:
            result = convert(bb, inputs, attr, params)
        return relax.op.astype(bb.normalize(result), dtype) if dtype in cls.wider else result


def _has_no_axes(name: str, inputs: Any, params: Any) -> bool:
    axes = inputs[1] if len(inputs) > 1 else None
    return axes is None or Node(name, {}, params).constant(axes, "axes").size == 0


class ReduceMax(_Reduction):
    """Maximum along axes; of booleans as of bytes."""

    stock = onnx_frontend.ReduceMax
    wider: ClassVar = {"bool": "uint8"}


class ReduceMin(_Reduction):
    """Minimum along axes; of booleans as of bytes."""

    stock = onnx_frontend.ReduceMin
    wider: ClassVar = {"bool": "uint8"}


class ReduceMean(_Reduction):
    """Mean along axes; that of integers is rounded towards zero, and has their type."""

    stock = onnx_frontend.ReduceMean
    wider: ClassVar = {"int32": "int64", "uint32": "int64"}


class ReduceL2(_Reduction):
    """Root of the sum of squares; in half precision a square of 256 is no number any more."""

    stock = onnx_frontend.ReduceL2
    wider: ClassVar = {"float16": "float32", "bfloat16": "float32"} | _INTEGERS_AS_FLOATS
    step = staticmethod(relax.op.abs)


class ReduceLogSum(_Reduction):
    """Logarithm of a sum, which half precision may not hold."""

    stock = onnx_frontend.ReduceLogSum
    wider: ClassVar = {"float16": "float32", "bfloat16": "float32"} | _INTEGERS_AS_FLOATS
    step = staticmethod(relax.op.log)


class ReduceL1(_Reduction):
    """Sum of absolute values."""

    stock = onnx_frontend.ReduceL1
    wider: ClassVar = {}
    step = staticmethod(relax.op.abs)


class ReduceSumSquare(_Reduction):
    """Sum of squares."""

    stock = onnx_frontend.ReduceSumSquare
    wider: ClassVar = {}
    step = staticmethod(relax.op.square)


class ReduceLogSumExp(Converter):
    """Logarithm of a sum of exponentials, less the largest where that is finite: infinities are what they are."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the logarithms."""
        x, keep = emit(bb, inputs[0]), bool(node.integer("keepdims", 1))
        dtype = dtype_of(x)
        given = inputs[1] if len(inputs) > 1 else None
        axes = node.integers("axes") if given is None else [int(axis) for axis in node.constant(given, "axes").ravel()]
        if not axes and node.integer("noop_with_empty_axes", 0):
            return x
        places = axes or None
        if dtype in _INTEGERS_AS_FLOATS:
            x = bb.emit(relax.op.astype(x, _INTEGERS_AS_FLOATS[dtype]))
        largest = bb.emit(relax.op.max(x, places, True))
        zero, infinity = (constant(value, dtype_of(x)) for value in (0.0, np.inf))
        is_finite = bb.emit(relax.op.less(bb.emit(relax.op.abs(largest)), infinity))
        shift = bb.emit(relax.op.where(is_finite, largest, zero))
        total = bb.emit(relax.op.sum(bb.emit(relax.op.exp(bb.emit(relax.op.subtract(x, shift)))), places, True))
        result = bb.emit(relax.op.add(bb.emit(relax.op.log(total)), shift))
        if dtype != dtype_of(x):
            result = bb.emit(relax.op.astype(result, dtype))
        return result if keep else relax.op.squeeze(result, places)


class Unique(Converter):
    """Distinct elements; without an axis those of the tensor as a vector, which is what the inverse has places for."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the distinct elements, and where and how often each is found."""
        x = emit(bb, inputs[0])
        operands = onnx_frontend.onnx_input([x if "axis" in node.attributes else bb.emit(relax.op.flatten(x))])
        return onnx_frontend.Unique.get_converter(11)(bb, operands, dict(node.attributes), node.parameters)


class Binarizer(Converter):
    """1 where an element is above the threshold, else 0."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the zeros and ones."""
        x = emit(bb, inputs[0])
        above = relax.op.greater(x, constant(node.number("threshold", 0.0), dtype_of(x)))
        return relax.op.astype(bb.emit(above), dtype_of(x))


class ArrayFeatureExtractor(Converter):
    """Columns of the last axis, by their indices."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the columns."""
        x, columns = emit(bb, inputs[0]), bb.emit(relax.op.reshape(emit(bb, inputs[1]), [-1]))
        shape = node.dims(x, "X")
        picked = bb.emit(relax.op.take(x, columns, len(shape) - 1, mode="clip"))
        return picked if len(shape) > 1 else relax.op.reshape(picked, [1, -1])


_OPERATORS = (
    CumProd, Div, Expand, Mod, ReduceL1, ReduceL2, ReduceLogSum, ReduceLogSumExp, ReduceMax,
    ReduceMean, ReduceMin, ReduceSumSquare, Unique,
)  # fmt: skip
CONVERTERS: dict[tuple[str, str], type] = {("", operator.__name__): operator for operator in _OPERATORS}
CONVERTERS |= {("ai.onnx.ml", operator.__name__): operator for operator in (ArrayFeatureExtractor, Binarizer)}
