"""Exponentials of whole vectors, and the hyperbolic tangent and logistic function, as arithmetic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.simd.polynomial import exp_growth, exp_remainder, exp_slope, horner
from tvm_ext.schedules.simd.vector import Bindings, constant_like, lanes_of, wide_type

LN2 = math.log(2)
LN2_HIGH = 355 / 512
"""The logarithm's first bits, so few that its product with an integer exponent is exact."""
LN2_LOW = LN2 - LN2_HIGH
MANTISSA_BITS = 23
_EXPONENT_BIAS = 127
_ROUNDER = 1.5 * 2**MANTISSA_BITS
AVX512_LANES, AVX2_LANES = 16, 8


def power_of_two(biased: Any) -> Any:
    """Compute ``2**(biased - 127)`` by making the number's bits; only the low nine bits of the int32 ``biased`` count.

    They must be in [1, 255]; 255 gives infinity.
    """
    shifted = biased << constant_like(MANTISSA_BITS, biased)
    return tirx.reinterpret(wide_type("float32", lanes_of(biased)), shifted)


def clamp(names: Bindings, value: Any, low: float, high: float) -> Any:
    """Limit a value; NaN passes through."""
    low_value, high_value = constant_like(low, value), constant_like(high, value)
    below = names.bind("below", prim.Select(value > high_value, high_value, value))
    return names.bind("clamped", prim.Select(below < low_value, low_value, below))


def _reduce(
    names: Bindings, value: Any, parts: int = 1, bias: int = 0, largest: float | None = None
) -> tuple[Any, Any, Any]:
    """Write ``value = exponent * ln(2) + remainder``; return ``exponent``, the integer, and ``remainder``.

    The exponent is a multiple of ``1 / parts``, ``largest`` at most, and the integer ``parts`` times the exponent, plus
    the bias. Adding a number whose last bit counts such parts rounds to a multiple and leaves the integer in the low
    bits of the sum; what stands above them is a multiple of ``2**22``.
    """
    rounder = constant_like(_ROUNDER / parts + bias, value)
    rounded = names.bind("rounded", value * constant_like(1 / LN2, value) + rounder)
    if largest is not None:
        limit = constant_like(_ROUNDER / parts + bias + largest, value)
        rounded = names.bind("limited", prim.Select(rounded > limit, limit, rounded))
    exponent = names.bind("exponent", rounded - rounder)
    integer = names.bind("integer", tirx.reinterpret(wide_type("int32", lanes_of(value)), rounded))
    high = value - exponent * constant_like(LN2_HIGH, value)
    return exponent, integer, names.bind("remainder", high - exponent * constant_like(LN2_LOW, value))


def exp_of_remainder(remainder: Any) -> Any:
    """Compute ``exp`` where ``|x| <= ln(2) / 2``."""
    one = constant_like(1.0, remainder)
    return (horner(exp_remainder(), remainder) * remainder + one) * remainder + one


def exp(value: Any, isa: str = "") -> Any:
    """Compute ``exp`` as ``exp(remainder) * 2**exponent``."""
    if isa == "avx512" and lanes_of(value) == AVX512_LANES:
        return _exp_by_table(value)
    if isa == "avx2" and lanes_of(value) == AVX2_LANES:
        return _exp_by_permutation(value)
    return _scaled_exp(value, 0)


def half_exp(value: Any) -> Any:
    """Compute ``exp(x) / 2``, which is infinite later than ``exp(x)`` is."""
    return _scaled_exp(value, -1)


def _scaled_exp(value: Any, power: int) -> Any:
    names = Bindings()
    clamped = clamp(names, names.bind("value", value), -104.0, 90.0)
    _, integer, remainder = _reduce(names, clamped, bias=2 * _EXPONENT_BIAS + power)
    # The exponent reaches -150 and 130, which takes two factors. Twice the bias makes biased numbers of both halves.
    half = names.bind("half", integer >> constant_like(1, integer))
    return names.around(exp_of_remainder(remainder) * power_of_two(half) * power_of_two(integer - half))


def _exp_by_table(value: Any) -> Any:
    """Compute ``exp`` as ``2**(k / 32) * exp(remainder)`` in vectors of AVX-512, 32 powers of two in two registers.

    The low bits of ``k`` choose the power (Tang, Table-driven implementation of the exponential function in IEEE
    floating-point arithmetic, ACM TOMS 1989), which leaves a remainder so small that a square will do. The rest of
    ``k`` is the exponent, which one instruction adds: subnormal results and infinities come out of it, so values need
    no clamping. Only the remainder does, as that of an infinite value is no number.
    """
    names = Bindings()
    value = names.bind("value", value)
    powers = 2 * AVX512_LANES
    exponent, integer, remainder = _reduce(names, value, powers)
    unmasked, current_rounding = tirx.const(-1, "int16"), tirx.const(4, "int32")
    wide, zero = wide_type("float32", AVX512_LANES), constant_like(0.0, value)

    def call(name: str, *arguments: Any) -> Any:
        return tirx.call_llvm_pure_intrin(wide, f"llvm.x86.avx512.{name}.ps.512", *arguments)

    smaller_of_sizes = tirx.const(2, "int32")
    limit = constant_like(1.0, value)
    limited = call("mask.range", remainder, limit, smaller_of_sizes, zero, unmasked, current_rounding)
    remainder = names.bind("limited", limited)
    low, high = (
        prim.Shuffle(
            [tirx.const(2.0 ** (number / powers), "float32") for number in numbers],
            [tirx.const(number, "int32") for number in range(AVX512_LANES)],
        )
        for numbers in (range(AVX512_LANES), range(AVX512_LANES, powers))
    )
    power = names.bind("power", call("vpermi2var", low, integer, high))
    growth = horner(exp_slope(LN2 / (2 * powers)), remainder)
    result = power * remainder * growth + power
    return names.around(call("mask.scalef", result, exponent, zero, unmasked, current_rounding))


def _exp_by_permutation(value: Any) -> Any:
    """Compute ``exp`` as ``2**(k / 8) * exp(remainder)`` in vectors of AVX2, eight powers of two in one register.

    The low three bits of ``k`` choose the power, and the rest is added to its exponent: the entries of the table lack
    the bits that ``k << 20`` adds to the mantissa. The exponent ends at 1023 eighths, as 128 would be infinity; the
    remainder then reaches an eighth of ``ln(2)``, twice as far as elsewhere, and beyond it the product overflows. Below
    ``2**-126`` the power is ``2**-126 * (2**(k % 8 / 8) - 1)``, which is zero at the end of the range.
    """
    names = Bindings()
    value = names.bind("value", value)
    least = constant_like(-_EXPONENT_BIAS * LN2, value)
    clamped = names.bind("clamped", prim.Select(value < least, least, value))
    part_bits = AVX2_LANES.bit_length() - 1
    largest = _EXPONENT_BIAS + 1 - 1 / AVX2_LANES
    _, integer, remainder = _reduce(names, clamped, AVX2_LANES, largest=largest)
    shift = MANTISSA_BITS - part_bits
    parts = np.arange(AVX2_LANES)
    bits = np.exp2(parts / AVX2_LANES).astype(np.float32).view(np.int32) - (parts << shift).astype(np.int32)
    table = prim.Shuffle(
        [tirx.const(float(entry), "float32") for entry in bits.view(np.float32)],
        [tirx.const(number, "int32") for number in range(AVX2_LANES)],
    )
    wide, wide_integer = (wide_type(element, AVX2_LANES) for element in ("float32", "int32"))
    chosen = tirx.call_llvm_pure_intrin(wide, "llvm.x86.avx2.permps", table, integer)
    scaled = tirx.reinterpret(wide_integer, chosen) + (integer << constant_like(shift, integer))
    power = names.bind("power", tirx.reinterpret(wide, scaled))
    growth = horner(exp_growth(-LN2 / 16, LN2 / 8, 3), remainder)
    return names.around(power * (remainder * growth) + power)


def exp_of_moderate(value: Any) -> Any:
    """Compute ``exp`` for a value known to be in [-87, 89]; above 88.4 the result is infinity."""
    names = Bindings()
    _, integer, remainder = _reduce(names, names.bind("value", value), bias=_EXPONENT_BIAS)
    return names.around(exp_of_remainder(remainder) * power_of_two(integer))


def tanh(value: Any) -> Any:
    """Compute ``tanh`` as ``e / (e + 2)`` with ``e = exp(2 |x|) - 1``, which is accurate near zero as well."""
    names = Bindings()
    value = names.bind("value", value)
    _, integer, remainder = _reduce(
        names, clamp(names, names.bind("doubled", value + value), -20.0, 20.0), bias=_EXPONENT_BIAS
    )
    power = names.bind("power", power_of_two(integer))
    less_one = horner(exp_remainder(), remainder) * remainder * remainder + remainder
    excess = names.bind("excess", power * less_one + (power - constant_like(1.0, value)))
    return names.around(excess / (excess + constant_like(2.0, value)))


def sigmoid(value: Any, isa: str = "") -> Any:
    """Compute ``1 / (1 + exp(-x))``."""
    if isa == "avx512" and lanes_of(value) == AVX512_LANES:
        return _sigmoid_by_table(value)
    names = Bindings()
    clamped = clamp(names, names.bind("value", value), -89.0, 87.0)
    one = constant_like(1.0, value)
    return names.around(one / (one + exp_of_moderate(constant_like(0.0, value) - clamped)))


def _sigmoid_by_table(value: Any) -> Any:
    """Compute ``1 / (1 + exp(-x))`` in vectors of AVX-512 without a division, which takes as long as ``exp``.

    The reciprocal is found to 14 bits by an instruction, and twice as many by one step of Newton's method. Of an
    infinite sum it is zero, which that step would multiply with infinity: the limit of its correction, which any number
    is above, takes the place of what is no number then.
    """
    names = Bindings()
    one = constant_like(1.0, value)
    total = names.bind("total", one + _exp_by_table(constant_like(0.0, value) - value))
    unmasked = tirx.const(-1, "int16")
    wide = wide_type("float32", AVX512_LANES)
    zero = constant_like(0.0, value)
    about = tirx.call_llvm_pure_intrin(wide, "llvm.x86.avx512.rcp14.ps.512", total, zero, unmasked)
    about = names.bind("about", about)
    least = constant_like(-0.5, value)
    correction = names.bind("correction", one - total * about)
    correction = prim.Select(correction > least, correction, least)
    return names.around(about * correction + about)
