"""Remainders of vectors of floats."""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.simd.vector import Bindings, constant_like, every_lane, lanes_of, wide_type, with_sign

MOST_QUOTIENT = 2.0**28
"""Quotients up to which a product with a float32 is exact in double precision, and a rounded one on its own side of
every integer."""


def remainder(dividend: Any, divisor: Any) -> Any:
    """Compute ``fmod`` of float32, exactly, as ``x - trunc(x / y) * y`` in double precision.

    A quotient of two such numbers that is no integer is at least ``2**-24`` away from the next one. Where the quotient
    of a lane is above :data:`MOST_QUOTIENT` or none at all, the library computes the vector.
    """
    names = Bindings()
    dividend, divisor = names.bind("dividend", dividend), names.bind("divisor", divisor)
    lanes = lanes_of(dividend)
    wide = wide_type("float64", lanes)
    x, y = names.bind("x", prim.Cast(wide, dividend)), names.bind("y", prim.Cast(wide, divisor))
    quotient = names.bind("quotient", tirx.trunc(x / y))
    rest = prim.Cast(wide_type("float32", lanes), tirx.abs(x - quotient * y))
    ordinary = prim.And(
        tirx.abs(quotient) <= constant_like(MOST_QUOTIENT, quotient), tirx.abs(y) < constant_like(math.inf, y)
    )
    result = names.bind("rest", with_sign(rest, dividend))
    return names.around(tirx.if_then_else(every_lane(ordinary), result, prim.Mod(dividend, divisor)))
