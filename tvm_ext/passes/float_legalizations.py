"""Operators on floats as kernels that give what NumPy and PyTorch give, where TVM's own lose NaN, signs or digits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx, topi
from tvm.ir.prim import expr as prim

from tvm_ext.passes.float_arithmetic import is_float
from tvm_ext.relax_utils import constant
from tvm_ext.schedules.simd.vector import element_type


def legalize_sign(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Make a kernel of ``relax.sign`` that gives NaN for NaN, where TVM's gives 0, and 0 for -0.

    Parameters
    ----------
    builder : relax.BlockBuilder
    call : relax.Call
        Of ``relax.sign``.
    """

    def sign(x: te.Tensor) -> te.Tensor:
        one, zero = tirx.const(1, x.dtype), tirx.const(0, x.dtype)

        def element(*indices: Any) -> Any:
            value = x(*indices)
            # NaN, or the zero that has no sign; by comparing, as arithmetic would flush denormals to that zero.
            rest = prim.Select(value == zero, zero, value) if is_float(value) else zero
            if not element_type(value).startswith(("uint", "bool")):
                rest = prim.Select(value < zero, tirx.const(-1, x.dtype), rest)
            return prim.Select(value > zero, one, rest)

        return te.compute(x.shape, element, name="sign")

    return builder.call_te(sign, call.args[0], primfunc_name_hint="sign")


def legalize_leaky_relu(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Make a kernel of ``relax.nn.leakyrelu``; TVM's takes ``x * 0`` for 0, also where x is NaN.

    Parameters
    ----------
    builder : relax.BlockBuilder
    call : relax.Call
        Of ``relax.nn.leakyrelu``.
    """
    slope = float(call.attrs.alpha)
    if slope == 0:
        return builder.call_te(topi.nn.relu, call.args[0], primfunc_name_hint="leaky_relu")
    return builder.call_te(topi.nn.leaky_relu, call.args[0], slope, primfunc_name_hint="leaky_relu")


def legalize_divide(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Make a kernel of ``relax.divide``; TVM refuses a constant zero as divisor, also of floats.

    The quotient is what the product with infinity is: infinity of the sign of both, or NaN of zero and NaN.

    Parameters
    ----------
    builder : relax.BlockBuilder
    call : relax.Call
        Of ``relax.divide``.
    """
    dividend, divisor = call.args[0], constant(call.args[1])
    if divisor is None or divisor.ndim or divisor != 0 or not str(dividend.ty.dtype).startswith(("float", "bfloat")):
        return call.op.get_attr("FLegalize")(builder, call)
    infinity = relax.const(math.copysign(math.inf, float(divisor)), str(dividend.ty.dtype))
    return builder.call_te(topi.multiply, dividend, infinity, primfunc_name_hint="divide")


def legalize_power(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Make a kernel of ``relax.power``; of constant exponents of 3 or more without TVM's own power.

    TVM writes a line to stderr whenever something makes or simplifies one of those. Small powers are products, as
    the vector code of smaller exponents is; others are the C library's.

    Parameters
    ----------
    builder : relax.BlockBuilder
    call : relax.Call
        Of ``relax.power``.
    """
    base, exponent = call.args[0], constant(call.args[1])
    if exponent is None or exponent.ndim or not str(base.ty.dtype).startswith("float") or not exponent >= _WARNED_FROM:
        return call.op.get_attr("FLegalize")(builder, call)
    number = float(exponent)

    def power(value: Any) -> Any:
        if number not in _PRODUCTS:
            return _c_function("pow", value, tirx.const(number, element_type(value)))
        square = value * value
        return square * value if number == 3 else square * square

    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *indices: _in_single(power, x(*indices)), name="power")

    return builder.call_te(compute, base, primfunc_name_hint="power")


def legalize_mean(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Make a kernel of a mean or a variance; of 16-bit floats in single precision, and rounded once.

    Their sums, and the number of their elements, go beyond the largest float16 (65504) where a mean does not.

    Parameters
    ----------
    builder : relax.BlockBuilder
    call : relax.Call
        Of ``relax.mean``, ``relax.variance`` or ``relax.std``.
    """
    (operand,), name = call.args, call.op.name.removeprefix("relax.")
    dtype = str(operand.ty.dtype)
    if dtype not in ("float16", "bfloat16"):
        return call.op.get_attr("FLegalize")(builder, call)
    rank = len(operand.ty.shape)
    axes = list(range(rank)) if call.attrs.axis is None else [int(axis) % rank for axis in call.attrs.axis]
    keepdims = bool(call.attrs.keepdims)

    def compute(x: te.Tensor) -> te.Tensor:
        single = topi.cast(x, "float32")
        count = tirx.Cast("float32", math.prod((x.shape[axis] for axis in axes), start=tirx.const(1, "int64")))

        def mean(value: te.Tensor, keep: bool) -> te.Tensor:
            return topi.divide(topi.sum(value, axes, keep), count)

        if name == "mean":
            return topi.cast(mean(single, keepdims), dtype)
        centred = topi.subtract(single, mean(single, True))
        variance = mean(topi.multiply(centred, centred), keepdims)
        return topi.cast(topi.sqrt(variance) if name == "std" else variance, dtype)

    return builder.call_te(compute, operand, primfunc_name_hint=name)


_WARNED_FROM, _PRODUCTS = 3, (3, 4)


def _in_single(function: Callable[[Any], Any], value: Any) -> Any:
    """Compute with single precision where the value has half of it."""
    if element_type(value) not in ("float16", "bfloat16"):
        return function(value)
    return function(value.astype("float32")).astype(element_type(value))


def _c_function(name: str, *values: Any) -> Any:
    """Call a function by its name in C: TVM widens calls of its own functions where it cannot compile the wide ones."""
    dtype = element_type(values[0])
    return tirx.call_pure_extern(dtype, f"{name}f" if dtype == "float32" else name, *values)


def _in_c_library(name: str) -> Any:
    """Make the legalisation of a function that LLVM lacks and the C library has for single and double precision.

    TVM's own inverse hyperbolic tangent is half the logarithm of a quotient, which has no digits left next to zero.
    """

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        def compute(x: te.Tensor) -> te.Tensor:
            return te.compute(
                x.shape, lambda *indices: _in_single(lambda value: _c_function(name, value), x(*indices)), name=name
            )

        return builder.call_te(compute, call.args[0], primfunc_name_hint=name)

    return legalize


_IN_C_LIBRARY = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh")

FLOAT_LEGALIZATIONS = {
    "relax.divide": legalize_divide,
    "relax.mean": legalize_mean,
    "relax.nn.leakyrelu": legalize_leaky_relu,
    "relax.power": legalize_power,
    "relax.sign": legalize_sign,
    "relax.std": legalize_mean,
    "relax.variance": legalize_mean,
    **{f"relax.{name}": _in_c_library(name) for name in _IN_C_LIBRARY},
}
"""For ``relax.transform.LegalizeOps``."""
