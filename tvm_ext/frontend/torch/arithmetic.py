"""Converters of arithmetic that Relax has no operator for: signs, lengths, shifts, running sums of exponentials."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import tvm
from torch.fx import Node
from tvm import relax, te, tirx
from tvm.ir.prim import expr as prim

from tvm_ext.frontend.torch.arguments import argument, static_size
from tvm_ext.frontend.torch.extent_numbers import EXTENT_NUMBERS, REFINED_EXTENT_NUMBERS
from tvm_ext.frontend.torch.order import scanned
from tvm_ext.frontend.torch.promotion import relax_dtype

Emit = Callable[[Any], Any]


def _operands(importer: Any, node: Node) -> tuple[Any, Any, str]:
    """Both operands in the type of the result, which is named, too."""
    dtype = relax_dtype(node.meta["val"].dtype)
    values = []
    for operand in node.args[:2]:
        value = importer.env[operand] if isinstance(operand, Node) else relax.const(operand, dtype)
        if str(value.ty.dtype) != dtype:
            value = importer.block_builder.emit(relax.op.astype(value, dtype))
        values.append(value)
    return values[0], values[1], dtype


def of_c_library(function: Callable[[Any, Any], Any], importer: Any, node: Node) -> Any:
    """Compute each element by a function of two numbers that the C library has, in single or double precision.

    It knows the sign of a zero or NaN, and the length of a vector whose square would overflow.
    """
    emit = importer.block_builder.emit
    left, right, dtype = _operands(importer, node)
    if dtype not in ("float32", "float64"):
        left, right = (emit(relax.op.astype(value, "float32")) for value in (left, right))
    shape = list(emit(relax.op.add(left, right)).ty.shape)
    left, right = (emit(relax.op.broadcast_to(value, shape)) for value in (left, right))

    def compute(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *places: function(x(*places), y(*places)), name=function.__name__)

    result = importer.block_builder.emit_te(compute, left, right, primfunc_name_hint=function.__name__)
    return result if dtype in ("float32", "float64") else emit(relax.op.astype(result, dtype))


def floor_quotient(x: Any, y: Any) -> Any:
    """Quotient of two floats, rounded down: from what ``fmod`` leaves, as PyTorch has it; of infinity it is NaN."""
    rest = _fmod(x, y)
    zero, one = tirx.const(0.0, x.ty.dtype), tirx.const(1.0, x.ty.dtype)
    quotient = (x - rest) / y - prim.Select(_is_of_other_sign(rest, y), one, zero)
    down = tirx.floor(quotient)
    down = down + prim.Select(quotient - down > tirx.const(0.5, x.ty.dtype), one, zero)
    down = prim.Select(quotient == zero, tirx.copysign(zero, x / y), down)
    return prim.Select(y == zero, x / y, down)


def floor_remainder(x: Any, y: Any) -> Any:
    """Rest that a quotient rounded down leaves, with the sign of the divisor."""
    rest = _fmod(x, y)
    return rest + prim.Select(_is_of_other_sign(rest, y), y, tirx.const(0.0, x.ty.dtype))


def _fmod(x: Any, y: Any) -> Any:
    dtype = str(x.ty.dtype)
    return tirx.call_pure_extern(dtype, "fmod" if dtype == "float64" else "fmodf", x, y)


def _is_of_other_sign(rest: Any, y: Any) -> Any:
    zero = tirx.const(0.0, rest.ty.dtype)
    return tirx.any(tirx.all(rest > zero, y < zero), tirx.all(rest < zero, y > zero))


def of_floats(function: Callable[[Any, Any], Any], stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """Compute floats by a function of two numbers, and leave integers to TVM's converter."""
    if not node.meta["val"].is_floating_point():
        return stock(node)
    return of_c_library(function, importer, node)


def remainder_of_number(importer: Any, node: Node) -> Any:
    """``torch.remainder`` of a number and a tensor."""
    if node.meta["val"].is_floating_point():
        return of_c_library(floor_remainder, importer, node)
    number, divisor, _ = _operands(importer, node)
    return importer.block_builder.emit(relax.op.floor_mod(number, divisor))


def is_nan(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """``torch.isnan``, also of integers and truth values, of which none is."""
    data = importer.env[node.args[0]]
    if str(data.ty.dtype).startswith(("float", "bfloat")):
        return stock(node)
    return importer.block_builder.emit(relax.op.not_equal(data, data))


def negative(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """``-x``; unsigned integers wrap around."""
    data = importer.env[node.args[0]]
    if not str(data.ty.dtype).startswith("uint"):
        return stock(node)
    return importer.block_builder.emit(relax.op.subtract(relax.const(0, str(data.ty.dtype)), data))


def sign(importer: Any, node: Node) -> Any:
    """``torch.sign``, which takes NaN for 0; that of a truth value is itself."""
    emit, data = importer.block_builder.emit, importer.env[node.args[0]]
    if str(data.ty.dtype) == "bool":
        return data
    signs = emit(relax.op.sign(data))
    if not node.meta["val"].is_floating_point():
        return signs
    return emit(relax.op.where(emit(relax.op.isnan(data)), relax.const(0.0, str(data.ty.dtype)), signs))


def power_of_number(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """``x ** 0.5`` is a square root in PyTorch, also of -inf; other powers are TVM's."""
    roots = {0.5: relax.op.sqrt, -0.5: relax.op.rsqrt}
    if node.args[1] not in roots or not node.args[0].meta["val"].is_floating_point():
        return stock(node)
    return importer.block_builder.emit(roots[node.args[1]](importer.env[node.args[0]]))


def function_of_c_library(name: str, importer: Any, node: Node) -> Any:
    """Compute each element by a function of one number that the C library has, in single or double precision."""
    emit = importer.block_builder.emit
    dtype = relax_dtype(node.meta["val"].dtype)
    real = dtype if dtype == "float64" else "float32"
    data = importer.env[node.args[0]]
    data = data if str(data.ty.dtype) == real else emit(relax.op.astype(data, real))
    function = name if real == "float64" else f"{name}f"

    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *places: tirx.call_pure_extern(real, function, x(*places)), name=name)

    result = importer.block_builder.emit_te(compute, data, primfunc_name_hint=name)
    return result if dtype == real else emit(relax.op.astype(result, dtype))


def shift(to_left: bool, importer: Any, node: Node) -> Any:
    """Shift of bits; by fewer than none or more than there are, all are shifted out, as in PyTorch."""
    emit = importer.block_builder.emit
    data, amount, dtype = _operands(importer, node)
    bits = np.dtype(dtype).itemsize * 8
    signed = not dtype.startswith("uint")
    most = bits - 1 if to_left or signed else bits
    zero, last = relax.const(0, dtype), relax.const(most, dtype)
    fits = emit(relax.op.less_equal(amount, last))
    if signed:
        fits = emit(relax.op.logical_and(fits, emit(relax.op.greater_equal(amount, zero))))
    bounded = emit(relax.op.where(fits, amount, relax.const(bits - 1, dtype)))
    if to_left:
        return emit(relax.op.where(fits, emit(relax.op.left_shift(data, bounded)), zero))
    shifted = emit(relax.op.right_shift(data, bounded))
    return shifted if signed else emit(relax.op.where(fits, shifted, zero))


def logcumsumexp(importer: Any, node: Node) -> Any:
    """``log(cumsum(exp(x)))`` without overflow: partial results are combined over distances that double.

    Along an axis whose extent is open, each follows from the one before it.
    """
    emit = importer.block_builder.emit
    data = importer.env[node.args[0]]
    if not len(data.ty.shape):
        return data
    axis, dtype = node.args[1] % len(data.ty.shape), str(data.ty.dtype)
    extent, distance = data.ty.shape[axis], 1
    if not isinstance(extent, tvm.tirx.IntImm):
        real = dtype if dtype == "float64" else "float32"
        wide = data if dtype == real else emit(relax.op.astype(data, real))
        found = importer.block_builder.emit_te(_running_powers, wide, axis, primfunc_name_hint="logcumsumexp")
        return found if dtype == real else emit(relax.op.astype(found, dtype))
    nothing = relax.const(-math.inf, dtype)
    while distance < int(extent):
        shape = list(data.ty.shape)
        shape[axis] = tvm.tirx.const(distance, "int64")
        first = emit(relax.op.broadcast_to(nothing, shape))
        moved = emit(relax.op.concat([first, data], axis))
        ends = [tvm.tirx.const(0, "int64")], [extent], [tvm.tirx.const(1, "int64")]
        earlier = emit(relax.op.strided_slice(moved, [axis], *ends, assume_inbound=True))
        data = _log_add_exp(emit, data, earlier, dtype)
        distance *= 2
    return data


def _running_powers(x: te.Tensor, axis: int) -> te.Tensor:
    def following(taken: Any, _k: Any, earlier: Any) -> list[Any]:
        larger = tirx.Max(taken, earlier)
        base = tirx.Select(tirx.isfinite(larger), larger, tirx.const(0, x.dtype))
        return [base + tirx.log(tirx.exp(taken - base) + tirx.exp(earlier - base))]

    return scanned(x, axis, [str(x.dtype)], lambda taken, _k: [taken], following)[0]


def _log_add_exp(emit: Emit, left: Any, right: Any, dtype: str) -> Any:
    larger = emit(relax.op.maximum(left, right))
    # What is not finite says so by itself; its difference to itself would be NaN.
    base = emit(relax.op.where(emit(relax.op.isfinite(larger)), larger, relax.const(0.0, dtype)))
    powers = [emit(relax.op.exp(emit(relax.op.subtract(value, base)))) for value in (left, right)]
    return emit(relax.op.add(base, emit(relax.op.log(emit(relax.op.add(*powers))))))


def cdist(importer: Any, node: Node) -> Any:
    """Distances of the rows of one matrix to those of another, in the norm of an order, by their differences."""
    emit = importer.block_builder.emit
    left = emit(relax.op.expand_dims(importer.env[node.args[0]], -2))
    right = emit(relax.op.expand_dims(importer.env[node.args[1]], -3))
    order, dtype = float(node.args[2]), str(left.ty.dtype)
    apart = emit(relax.op.abs(emit(relax.op.subtract(left, right))))
    if order == 0:
        apart = emit(relax.op.astype(emit(relax.op.not_equal(apart, relax.const(0, dtype))), dtype))
        return emit(relax.op.sum(apart, [-1]))
    if order == 1:
        return emit(relax.op.sum(apart, [-1]))
    if order == math.inf:
        return emit(relax.op.max(apart, [-1]))
    if order == 2:
        return emit(relax.op.sqrt(emit(relax.op.sum(emit(relax.op.multiply(apart, apart)), [-1]))))
    powers = emit(relax.op.sum(emit(relax.op.power(apart, relax.const(order, dtype))), [-1]))
    return emit(relax.op.power(powers, relax.const(1 / order, dtype)))


def trilinear(importer: Any, node: Node) -> Any:
    """Sum of products of three tensors: what ``nn.Bilinear`` is made of is a matrix product, the rest broadcast."""
    emit = importer.block_builder.emit
    x, weight, y = (importer.env[operand] for operand in node.args[:3])
    expanded, summed = [list(axes) for axes in node.args[3:6]], list(node.args[6])
    if (expanded, summed) == ([[1, 3], [0], [1, 2]], [2, 3]):
        results, left, right = (static_size(weight, axis) for axis in range(3))
        columns = emit(relax.op.permute_dims(weight, [1, 0, 2]))
        columns = emit(relax.op.reshape(columns, [left, results * right]))
        products = emit(relax.op.reshape(emit(relax.op.matmul(x, columns)), [x.ty.shape[0], results, right]))
        return emit(relax.op.sum(emit(relax.op.multiply(products, emit(relax.op.expand_dims(y, [1])))), [-1]))
    total = None
    for value, axes in zip((x, weight, y), expanded, strict=True):
        value = emit(relax.op.expand_dims(value, axes)) if axes else value
        total = value if total is None else emit(relax.op.multiply(total, value))
    return emit(relax.op.sum(total, summed)) if summed else total


def convert_type(importer: Any, node: Node) -> Any:
    """``prims.convert_element_type``, which PyTorch traces numbers of Python with."""
    return importer.block_builder.emit(relax.op.astype(importer.env[node.args[0]], relax_dtype(node.args[1])))


def running(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """``torch.cumsum`` and ``cumprod``, also of a tensor without dimensions."""
    data = importer.env[node.args[0]]
    return stock(node) if len(data.ty.shape) else data


def softmax(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """``torch.softmax``, also of a tensor without dimensions: 1, but NaN of a NaN or an infinity."""
    data, emit = importer.env[node.args[0]], importer.block_builder.emit
    if len(data.ty.shape):
        return stock(node)
    return emit(relax.op.exp(emit(relax.op.subtract(data, data))))


def log_softmax(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """``torch.log_softmax``, also of a tensor without dimensions: 0, but NaN of a NaN or an infinity."""
    data = importer.env[node.args[0]]
    return stock(node) if len(data.ty.shape) else importer.block_builder.emit(relax.op.subtract(data, data))


def scaled_by_power(importer: Any, node: Node) -> Any:
    """``torch.ldexp``: ``x * 2 ** y``, of integers in floats."""
    emit, dtype = importer.block_builder.emit, relax_dtype(node.meta["val"].dtype)
    data, exponent = (emit(relax.op.astype(importer.env[operand], dtype)) for operand in node.args)
    return emit(relax.op.multiply(data, emit(relax.op.power(relax.const(2.0, dtype), exponent))))


def bincount(importer: Any, node: Node) -> Any:
    """Refuse ``torch.bincount``."""
    raise NotImplementedError(
        "how many numbers it counts depends on values; torch.zeros(n).scatter_add(0, x, torch.ones_like(x, "
        "dtype=torch.float32)) counts n of them"
    )


def repeat_interleave(importer: Any, node: Node) -> Any:
    """Refuse ``torch.repeat_interleave`` of as many rows as a tensor says."""
    raise NotImplementedError("how many rows it gives depends on values; say it by output_size=")


def leaky_with_mean_slope(importer: Any, node: Node) -> Any:
    """``F.rrelu`` in evaluation mode: the slope below zero is the mean of those that training draws; and the noise."""
    lower, upper = argument(node, 2, "lower", 1 / 8), argument(node, 3, "upper", 1 / 3)
    if argument(node, 4, "training", False):
        raise NotImplementedError("in training mode it draws random slopes; export it in evaluation mode")
    data = importer.env[node.args[0]]
    result = importer.block_builder.emit(relax.op.nn.leakyrelu(data, (lower + upper) / 2))
    return result, importer.env[node.args[1]]


_SHIFTS = {
    f"{name}.{overload}": partial(shift, to_left)
    for names, to_left in ((("__lshift__", "bitwise_left_shift"), True), (("__rshift__", "bitwise_right_shift"), False))
    for name in names
    for overload in ("Tensor", "Scalar", "Tensor_Scalar", "Scalar_Tensor")
}

ARITHMETIC: Mapping[str, Callable[[Any, Node], Any]] = {
    "_cdist_forward.default": cdist,
    "_trilinear.default": trilinear,
    "bincount.default": bincount,
    "repeat_interleave.Tensor": repeat_interleave,
    "rrelu_with_noise_functional.default": leaky_with_mean_slope,
    "convert_element_type.default": convert_type,
    "copysign.Scalar": partial(of_c_library, tirx.copysign),
    "copysign.Tensor": partial(of_c_library, tirx.copysign),
    "erfc.default": partial(function_of_c_library, "erfc"),
    "exp2.default": partial(function_of_c_library, "exp2"),
    "hypot.default": partial(of_c_library, tirx.hypot),
    "ldexp.Tensor": scaled_by_power,
    "lgamma.default": partial(function_of_c_library, "lgamma"),
    "logcumsumexp.default": logcumsumexp,
    "remainder.Scalar_Tensor": remainder_of_number,
    "sgn.default": sign,
    "sign.default": sign,
    **EXTENT_NUMBERS,
    **_SHIFTS,
}
"""By name of operator and overload."""

REFINED_ARITHMETIC: Mapping[str, Callable[[Callable[[Node], Any], Any, Node], Any]] = {
    **REFINED_EXTENT_NUMBERS,
    "_log_softmax.default": log_softmax,
    "_softmax.default": softmax,
    "cumprod.default": running,
    "cumsum.default": running,
    "floor_divide.default": partial(of_floats, floor_quotient),
    "fmod.Scalar": partial(of_floats, _fmod),
    "fmod.Tensor": partial(of_floats, _fmod),
    "isnan.default": is_nan,
    "neg.default": negative,
    "pow.Tensor_Scalar": power_of_number,
    "remainder.Scalar": partial(of_floats, floor_remainder),
    "remainder.Tensor": partial(of_floats, floor_remainder),
}
"""Those that leave to TVM's converter what it does right."""
