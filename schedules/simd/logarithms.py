"""Logarithms of whole vectors, as arithmetic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.simd.exponentials import LN2_HIGH, LN2_LOW, MANTISSA_BITS
from tvm_ext.schedules.simd.polynomial import horner, log_remainder
from tvm_ext.schedules.simd.vector import Bindings, constant_like, lanes_of, wide_type

SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)
_BITS_OF_SQRT_HALF = int(np.float32(math.sqrt(0.5)).view(np.int32))


def log_parts(names: Bindings, value: Any) -> tuple[Any, Any]:
    """Write a positive ``value`` as ``2**exponent * (1 + t)`` with ``1 + t`` near 1; return ``exponent`` and ``t``."""
    tiny = value < constant_like(SMALLEST_NORMAL, value)
    normal = prim.Select(tiny, value * constant_like(2.0**MANTISSA_BITS, value), value)
    bits = names.bind("bits", tirx.reinterpret(wide_type("int32", lanes_of(value)), normal))
    shift = constant_like(MANTISSA_BITS, bits)
    exponent = names.bind("exponent", (bits - constant_like(_BITS_OF_SQRT_HALF, bits)) >> shift)
    mantissa = tirx.reinterpret(wide_type("float32", lanes_of(value)), bits - (exponent << shift))
    t = names.bind("t", mantissa - constant_like(1.0, value))
    offset = prim.Select(tiny, constant_like(-float(MANTISSA_BITS), value), constant_like(0.0, value))
    return names.bind("scale", prim.Cast(wide_type("float32", lanes_of(value)), exponent) + offset), t


def _log_one_plus(t: Any) -> Any:
    """Compute ``log(1 + t) - t`` near zero."""
    return (horner(log_remainder(), t) * t - constant_like(0.5, t)) * t * t


def _special_logs(value: Any, result: Any) -> Any:
    """Put in the logarithms of zero, infinity, negative numbers and NaN."""
    infinity = constant_like(math.inf, value)
    zero = constant_like(0.0, value)
    result = prim.Select(value < infinity, result, value)
    result = prim.Select(tirx.EQ(value, zero), zero - infinity, result)
    return prim.Select(value < zero, constant_like(math.nan, value), result)


def log(value: Any) -> Any:
    """Compute the natural logarithm."""
    names = Bindings()
    value = names.bind("value", value)
    exponent, t = log_parts(names, value)
    low = exponent * constant_like(LN2_LOW, value) + _log_one_plus(t)
    result = names.bind("result", exponent * constant_like(LN2_HIGH, value) + (t + low))
    return names.around(_special_logs(value, result))


def log1p(value: Any) -> Any:
    """Compute ``log(1 + x)``: what is lost when ``1 + x`` is rounded is added back, divided by ``1 + x``."""
    names = Bindings()
    value = names.bind("value", value)
    one = constant_like(1.0, value)
    total = names.bind("total", one + value)
    lost = names.bind("lost", value - (total - one))
    corrected = names.bind("corrected", log(total)) + lost / total
    ordinary = prim.And(value > constant_like(-1.0, value), value < constant_like(math.inf, value))
    return names.around(prim.Select(ordinary, corrected, names.bind("plain", log(total))))
