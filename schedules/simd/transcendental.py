"""Transcendental functions as arithmetic on whole vectors.

LLVM has no vector form of ``expf`` and its kin on a CPU without a vector math library: it calls the scalar function for
every lane. Here each becomes a range reduction and a polynomial (Muller, Elementary Functions, chapters 4 and 11), the
same code for a scalar and for a vector. Every result is within 2e-7 of the exact value, relatively (the tests measure
it), except where it is subnormal (then within 7e-39, and maybe zero); infinities and NaN come out as from the C
library.

Only float32 is rewritten (float16 and bfloat16 go through it); other types keep the library's functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.simd.piecewise import erf_by_pieces
from tvm_ext.schedules.simd.polynomial import (
    erf_far,
    erf_near,
    exp_growth,
    exp_remainder,
    exp_slope,
    horner,
    log_remainder,
)
from tvm_ext.schedules.simd.vector import Bindings, constant_like, element_type, lanes_of, wide_type
from tvm_ext.schedules.simd.waves import wave

_LN2 = math.log(2)
_LN2_HIGH = 355 / 512  # few bits: its product with an integer exponent is exact
_LN2_LOW = _LN2 - _LN2_HIGH
_MANTISSA_BITS, _EXPONENT_BIAS = 23, 127
_ROUNDER = 1.5 * 2**_MANTISSA_BITS
AVX512_LANES, AVX2_LANES = 16, 8
_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)
_BITS_OF_SQRT_HALF = int(np.float32(math.sqrt(0.5)).view(np.int32))


def expands(call: Any) -> bool:
    """Whether :func:`expand` rewrites a call."""
    name = getattr(call.op, "name", "").removeprefix("tirx.")
    if name == "pow":
        return _constant_exponent(call) in _EXPONENTS
    return name in _FUNCTIONS and element_type(call) in ("float32", "float16", "bfloat16")


def needs_vectors(call: Any) -> bool:
    """Whether what a call is rewritten as looks at all lanes at once, which no single lane of a loop can."""
    return getattr(call.op, "name", "").removeprefix("tirx.") in ("sin", "cos")


def expand(call: Any, isa: str = "") -> Any:
    """Rewrite the call of a transcendental function as arithmetic; any other call is returned as it is.

    Parameters
    ----------
    call : tvm.ir.Call
    isa : str
        The instruction set's row (:attr:`tvm_ext.schedules.cpu.machine.Machine.isa`) whose instructions may be used.
    """
    if not expands(call):
        return call
    name = call.op.name.removeprefix("tirx.")
    if name == "pow":
        return _power(call.args[0], float(_constant_exponent(call) or 0.0))
    function = partial(_FUNCTIONS[name], isa=isa) if name in ("exp", "erf", "sigmoid") else _FUNCTIONS[name]
    if element_type(call) == "float32":
        return function(call.args[0])
    lanes = lanes_of(call)
    single = function(prim.Cast(wide_type("float32", lanes), call.args[0]))
    return prim.Cast(wide_type(element_type(call), lanes), single)


def _power_of_two(biased: Any) -> Any:
    """Compute ``2**(biased - 127)`` by making the number's bits; only the low nine bits of the int32 ``biased`` count.

    They must be in [1, 255]; 255 gives infinity.
    """
    shifted = biased << constant_like(_MANTISSA_BITS, biased)
    return tirx.reinterpret(wide_type("float32", lanes_of(biased)), shifted)


def _clamp(names: Bindings, value: Any, low: float, high: float) -> Any:
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
    rounded = names.bind("rounded", value * constant_like(1 / _LN2, value) + rounder)
    if largest is not None:
        limit = constant_like(_ROUNDER / parts + bias + largest, value)
        rounded = names.bind("limited", prim.Select(rounded > limit, limit, rounded))
    exponent = names.bind("exponent", rounded - rounder)
    integer = names.bind("integer", tirx.reinterpret(wide_type("int32", lanes_of(value)), rounded))
    high = value - exponent * constant_like(_LN2_HIGH, value)
    return exponent, integer, names.bind("remainder", high - exponent * constant_like(_LN2_LOW, value))


def _exp_of_remainder(remainder: Any) -> Any:
    one = constant_like(1.0, remainder)
    return (horner(exp_remainder(), remainder) * remainder + one) * remainder + one


def _exp(value: Any, isa: str = "") -> Any:
    """Compute ``exp`` as ``exp(remainder) * 2**exponent``."""
    if isa == "avx512" and lanes_of(value) == AVX512_LANES:
        return _exp_by_table(value)
    if isa == "avx2" and lanes_of(value) == AVX2_LANES:
        return _exp_by_permutation(value)
    names = Bindings()
    clamped = _clamp(names, names.bind("value", value), -104.0, 89.0)
    _, integer, remainder = _reduce(names, clamped, bias=2 * _EXPONENT_BIAS)
    # The exponent reaches -150 and 128, which takes two factors. Twice the bias makes biased numbers of both halves.
    half = names.bind("half", integer >> constant_like(1, integer))
    return names.around(_exp_of_remainder(remainder) * _power_of_two(half) * _power_of_two(integer - half))


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
    growth = horner(exp_slope(_LN2 / (2 * powers)), remainder)
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
    least = constant_like(-_EXPONENT_BIAS * _LN2, value)
    clamped = names.bind("clamped", prim.Select(value < least, least, value))
    part_bits = AVX2_LANES.bit_length() - 1
    largest = _EXPONENT_BIAS + 1 - 1 / AVX2_LANES
    _, integer, remainder = _reduce(names, clamped, AVX2_LANES, largest=largest)
    shift = _MANTISSA_BITS - part_bits
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
    growth = horner(exp_growth(-_LN2 / 16, _LN2 / 8, 3), remainder)
    return names.around(power * (remainder * growth) + power)


def _exp_of_moderate(value: Any) -> Any:
    """Compute ``exp`` for a value known to be in [-87, 89]; above 88.4 the result is infinity."""
    names = Bindings()
    _, integer, remainder = _reduce(names, names.bind("value", value), bias=_EXPONENT_BIAS)
    return names.around(_exp_of_remainder(remainder) * _power_of_two(integer))


def _tanh(value: Any) -> Any:
    """Compute ``tanh`` as ``e / (e + 2)`` with ``e = exp(2 |x|) - 1``, which is accurate near zero as well."""
    names = Bindings()
    value = names.bind("value", value)
    _, integer, remainder = _reduce(
        names, _clamp(names, names.bind("doubled", value + value), -20.0, 20.0), bias=_EXPONENT_BIAS
    )
    power = names.bind("power", _power_of_two(integer))
    less_one = horner(exp_remainder(), remainder) * remainder * remainder + remainder
    excess = names.bind("excess", power * less_one + (power - constant_like(1.0, value)))
    return names.around(excess / (excess + constant_like(2.0, value)))


def _sigmoid(value: Any, isa: str = "") -> Any:
    if isa == "avx512" and lanes_of(value) == AVX512_LANES:
        return _sigmoid_by_table(value)
    names = Bindings()
    clamped = _clamp(names, names.bind("value", value), -89.0, 87.0)
    one = constant_like(1.0, value)
    return names.around(one / (one + _exp_of_moderate(constant_like(0.0, value) - clamped)))


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


def _log_parts(names: Bindings, value: Any) -> tuple[Any, Any]:
    """Write a positive ``value`` as ``2**exponent * (1 + t)`` with ``1 + t`` near 1; return ``exponent`` and ``t``."""
    tiny = value < constant_like(_SMALLEST_NORMAL, value)
    normal = prim.Select(tiny, value * constant_like(2.0**_MANTISSA_BITS, value), value)
    bits = names.bind("bits", tirx.reinterpret(wide_type("int32", lanes_of(value)), normal))
    shift = constant_like(_MANTISSA_BITS, bits)
    exponent = names.bind("exponent", (bits - constant_like(_BITS_OF_SQRT_HALF, bits)) >> shift)
    mantissa = tirx.reinterpret(wide_type("float32", lanes_of(value)), bits - (exponent << shift))
    t = names.bind("t", mantissa - constant_like(1.0, value))
    offset = prim.Select(tiny, constant_like(-float(_MANTISSA_BITS), value), constant_like(0.0, value))
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


def _log(value: Any) -> Any:
    names = Bindings()
    value = names.bind("value", value)
    exponent, t = _log_parts(names, value)
    low = exponent * constant_like(_LN2_LOW, value) + _log_one_plus(t)
    result = names.bind("result", exponent * constant_like(_LN2_HIGH, value) + (t + low))
    return names.around(_special_logs(value, result))


def _log1p(value: Any) -> Any:
    """Compute ``log(1 + x)``: what is lost when ``1 + x`` is rounded is added back, divided by ``1 + x``."""
    names = Bindings()
    value = names.bind("value", value)
    one = constant_like(1.0, value)
    total = names.bind("total", one + value)
    lost = names.bind("lost", value - (total - one))
    corrected = names.bind("corrected", _log(total)) + lost / total
    ordinary = prim.And(value > constant_like(-1.0, value), value < constant_like(math.inf, value))
    return names.around(prim.Select(ordinary, corrected, names.bind("plain", _log(total))))


def _erf(value: Any, isa: str = "") -> Any:
    """Compute ``erf``: a polynomial for ``|x| < 1``; beyond, ``1 - exp(-p)`` where ``p`` fits ``-log(1 - erf(x))``."""
    if (isa, lanes_of(value)) in (("avx512", AVX512_LANES), ("avx2", AVX2_LANES)):
        return erf_by_pieces(value)
    names = Bindings()
    value = names.bind("value", value)
    size = names.bind("size", tirx.abs(value))
    near = names.bind("near", value * horner(erf_near(), names.bind("square", value * value)) + value)
    limited = _clamp(names, size, 1.0, 4.0)
    zero, one = constant_like(0.0, value), constant_like(1.0, value)
    far = names.bind("far", one - _exp_of_moderate(zero - horner(erf_far(), limited)))
    signed = prim.Select(value < zero, zero - far, far)
    return names.around(prim.Select(size < one, near, signed))


def _constant_exponent(call: Any) -> float | None:
    exponent = call.args[1]
    constant = exponent.value if isinstance(exponent, prim.Broadcast) else exponent
    return float(constant.value) if isinstance(constant, prim.FloatImm) else None


def _power(base: Any, exponent: float) -> Any:
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


_EXPONENTS = frozenset(sign * quarters / 4 for quarters in (1, 2, 3, 4, 6, 8, 12, 16) for sign in (1, -1))
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": _exp,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "log": _log,
    "log1p": _log1p,
    "erf": _erf,
    "sin": partial(wave, "sin"),
    "cos": partial(wave, "cos"),
}
