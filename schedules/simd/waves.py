"""Sines and cosines of whole vectors, as arithmetic."""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.simd.polynomial import cosine, horner, sine
from tvm_ext.schedules.simd.vector import Bindings, constant_like, every_lane, lanes_of, wide_type

MOST_QUARTERS = 2**27
"""Quarters of a circle in an argument up to which their number times a part of ``pi / 2`` is exact."""


def _parts_of_quarter() -> tuple[float, ...]:
    """Divide ``pi / 2`` into two numbers of 25 bits and one of as many as a double has."""
    quarter = int("C90FDAA22168C234C4C6628B80DC1CD129024E", 16)  # pi in 152 bits, of which two stand before the point
    high = quarter >> 127 << 127
    middle = (quarter - high) >> 102 << 102
    return tuple(math.ldexp(float(part), -151) for part in (high, middle, quarter - high - middle))


_QUARTER_PARTS = _parts_of_quarter()


def wave(name: str, value: Any) -> Any:
    """Compute ``sin`` or ``cos`` as one of both, or its negative, of what is left of quarters of a circle.

    That is found in double precision, in which products of a number of quarters with a third of the bits of ``pi / 2``
    are exact. Where a lane needs more quarters than :data:`MOST_QUARTERS`, the library computes the vector.
    """
    names = Bindings()
    value = names.bind("value", value)
    lanes = lanes_of(value)
    wide = names.bind("wide", prim.Cast(wide_type("float64", lanes), value))
    rounder = constant_like(1.5 * 2**52, wide)
    rounded = names.bind("rounded", wide * constant_like(2 / math.pi, wide) + rounder)
    count = names.bind("count", rounded - rounder)
    left = wide
    for part in _QUARTER_PARTS:
        left = names.bind("left", left - count * constant_like(part, wide))
    left = names.bind("remainder", prim.Cast(wide_type("float32", lanes), left))
    bits = tirx.reinterpret(wide_type("int64", lanes), rounded)
    quarter = names.bind("quarter", prim.Cast(wide_type("int32", lanes), bits))
    if name == "cos":
        quarter = names.bind("next", quarter + constant_like(1, quarter))
    one, square = constant_like(1.0, value), names.bind("square", left * left)
    odd = left * (square * horner(sine(), square) + one)
    even = square * (square * horner(cosine(), square) - constant_like(0.5, value)) + one
    is_sine = tirx.EQ(quarter & constant_like(1, quarter), constant_like(0, quarter))
    chosen = names.bind("chosen", prim.Select(is_sine, odd, even))
    sign = (quarter & constant_like(2, quarter)) << constant_like(30, quarter)
    turned = tirx.reinterpret(wide_type("int32", lanes), chosen) ^ sign
    result = names.bind("result", tirx.reinterpret(wide_type("float32", lanes), turned))
    size = names.bind("size", tirx.abs(value))
    ordinary = every_lane(size <= constant_like(MOST_QUARTERS * math.pi / 2, value))
    return names.around(tirx.if_then_else(ordinary, result, getattr(tirx, name)(value)))
