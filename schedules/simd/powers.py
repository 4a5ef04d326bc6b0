"""Powers of whole vectors, as arithmetic."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.simd.exponentials import exp_of_remainder, power_of_two
from tvm_ext.schedules.simd.logarithms import SMALLEST_NORMAL, log_parts
from tvm_ext.schedules.simd.polynomial import horner, interpolate_odd
from tvm_ext.schedules.simd.vector import Bindings, constant_like, every_lane, lanes_of, wide_type, with_sign

EXPONENTS_OF_ROOTS = frozenset(sign * quarters / 4 for quarters in (1, 2, 3, 4, 6, 8, 12, 16) for sign in (1, -1))
"""Exponents that :func:`power_by_roots` knows."""

_LEAST, _MOST = -104.0, 90.0  # logarithms of what is rounded to zero and to infinity
_TWICE_BIAS = 2 * 127


def power_by_roots(base: Any, exponent: float) -> Any:
    """Compute a power with a constant exponent from a product, roots and a quotient.

    The exponent is a whole number up to 4 and quarters; powers of numbers below zero with quarters are not numbers.
    """
    names = Bindings()
    base = names.bind("base", base)
    whole, quarters = divmod(round(4 * abs(exponent)), 4)
    factors = []
    if whole == 4:
        square = names.bind("square", base * base)
        factors.append(square * square)
    elif whole:
        factors.append({1: base, 2: base * base, 3: base * base * base}[whole])
    if quarters:
        zero = constant_like(0.0, base)  # powers of minus zero are those of zero
        root = names.bind("root", tirx.sqrt(prim.Select(tirx.EQ(base, zero), zero, base)))
        factors += [root] if quarters & 2 else []
        factors += [tirx.sqrt(root)] if quarters & 1 else []
    product = factors[0]
    for factor in factors[1:]:
        product = product * factor
    if exponent < 0:
        product = constant_like(1.0, base) / product
    if quarters:  # a root of minus infinity is no number, but its powers are those of infinity
        limit = constant_like(math.inf if exponent > 0 else 0.0, base)
        product = prim.Select(tirx.EQ(base, constant_like(-math.inf, base)), limit, product)
    return names.around(product)


def power_of_constant(base: Any, exponent: float) -> Any:
    """Compute the power of a vector with one finite exponent other than zero."""
    names = Bindings()
    base = names.bind("base", base)
    size = names.bind("size", tirx.abs(base))
    zero, infinity = constant_like(0.0, base), constant_like(math.inf, base)
    logarithm = _logarithm(names, size)
    result = _exponential(names, logarithm * constant_like(exponent, logarithm))
    at_zero, at_infinity = (zero, infinity) if exponent > 0 else (infinity, zero)
    result = prim.Select(tirx.EQ(size, zero), at_zero, result)
    result = names.bind("limited", prim.Select(tirx.EQ(size, infinity), at_infinity, result))
    if exponent != round(exponent):
        below = prim.And(base < zero, base > zero - infinity)
        result = prim.Select(below, constant_like(math.nan, base), result)
    elif exponent % 2:
        result = with_sign(result, base)
    return names.around(prim.Select(size <= infinity, result, base))


def power(base: Any, exponent: Any) -> Any:
    """Compute the power of a vector with as many exponents.

    Where the base of a lane is neither a normal positive number nor zero with a positive exponent, or where its
    exponent is not finite, the library computes the vector.
    """
    names = Bindings()
    base, exponent = names.bind("base", base), names.bind("exponent", exponent)
    zero, infinity = constant_like(0.0, base), constant_like(math.inf, base)
    logarithm = _logarithm(names, base)
    wide = prim.Cast(wide_type("float64", lanes_of(base)), exponent)
    result = _exponential(names, logarithm * wide)
    bits = names.bind("bits", tirx.reinterpret(wide_type("int32", lanes_of(base)), base))
    is_zero = prim.And(tirx.EQ(bits, constant_like(0, bits)), exponent > zero)
    result = names.bind("result", prim.Select(is_zero, zero, result))
    is_normal = prim.And(base >= constant_like(SMALLEST_NORMAL, base), base < infinity)
    ordinary = prim.And(prim.Or(is_normal, is_zero), tirx.abs(exponent) < infinity)
    call = tvm.ir.Call(tvm.ir.Op.get("tirx.pow"), [base, exponent], ret_ty=base.ty)
    return names.around(tirx.if_then_else(every_lane(ordinary), result, call))


@lru_cache(maxsize=1)
def _arc_of_hyperbolic_tangent() -> tuple[float, ...]:
    """``(atanh(s) / s - 1) / s**2`` for ``s = t / (2 + t)``, ``sqrt(1/2) <= 1 + t <= sqrt(2)``, to 2e-11."""
    series = tuple(1 / odd for odd in range(3, 13, 2))
    return interpolate_odd(math.atanh, series, 3 - 2 * math.sqrt(2), 3, np.float64)


def _logarithm(names: Bindings, size: Any) -> Any:
    """Compute the logarithm of a positive number in double precision, as one of a quotient: to some 1e-11."""
    exponent, t = log_parts(names, size)
    wide = wide_type("float64", lanes_of(size))
    t = names.bind("wide", prim.Cast(wide, t))
    s = names.bind("s", t / (constant_like(2.0, t) + t))
    square = names.bind("square", s * s)
    half = s * (square * horner(_arc_of_hyperbolic_tangent(), square) + constant_like(1.0, s))
    whole = prim.Cast(wide, exponent) * constant_like(math.log(2), s)
    return names.bind("logarithm", half * constant_like(2.0, s) + whole)


def _exponential(names: Bindings, value: Any) -> Any:
    """Compute ``exp`` of a number in double precision to single precision; of NaN it is anything."""
    least, most = constant_like(_LEAST, value), constant_like(_MOST, value)
    value = names.bind("product", value)
    value = names.bind("below", prim.Select(value < most, value, most))
    value = names.bind("clamped", prim.Select(value > least, value, least))
    lanes = lanes_of(value)
    rounder = constant_like(1.5 * 2**52, value)
    rounded = names.bind("rounded", value * constant_like(1 / math.log(2), value) + rounder)
    count = names.bind("count", rounded - rounder)
    remainder = prim.Cast(wide_type("float32", lanes), value - count * constant_like(math.log(2), value))
    remainder = names.bind("remainder", remainder)
    integer = names.bind("integer", prim.Cast(wide_type("int32", lanes), count))
    integer = names.bind("biased", integer + constant_like(_TWICE_BIAS, integer))
    half = names.bind("half", integer >> constant_like(1, integer))
    return exp_of_remainder(remainder) * power_of_two(half) * power_of_two(integer - half)
