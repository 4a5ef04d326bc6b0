"""Functions by a polynomial for each of some pieces, whose coefficients one instruction picks out of a register.

A register of AVX-512 or AVX2 holds as many coefficients of one power as it has lanes, one for each piece; the number of
a lane's piece picks its coefficient. As pieces are short, polynomials of low degree will do, and nothing is computed
twice to choose between.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.simd.polynomial import interpolate
from tvm_ext.schedules.simd.vector import Bindings, constant_like, lanes_of, wide_type

_ROUNDER = 1.5 * 2**23
_SIGN = -(2**31)

ERF_DEGREES = {16: 5, 8: 7}
"""Degree of the polynomials of ``erf`` for so many pieces: its relative error is below 2e-8 before rounding."""

ERF_ENDS = 3.92
"""From here on ``erf`` rounds to 1."""

ERF_WIDTHS = {16: 1036 / 4096, 8: 2187 / 4096}
"""Width of a piece for so many of them: of few bits, so that its product with the number of a piece is exact, and such
that coefficients rounded to float32 give exactly 1 at the end."""

_PICK = {16: "llvm.x86.avx512.permvar.sf.512", 8: "llvm.x86.avx2.permps"}
"""Instructions that pick entries of a register, by its lanes."""


def erf_by_pieces(value: Any) -> Any:
    """Compute ``erf`` of a vector of 16 or 8 lanes, by as many pieces of ``|x| < ERF_ENDS``.

    Piece ``k`` is around ``k * width``: the first one around zero, where its polynomial is odd, so that the result is
    relatively exact there. The sign is put in at the end. Infinities end in the last piece, NaN passes through.
    """
    pieces = lanes_of(value)
    names = Bindings()
    value = names.bind("value", value)
    width = ERF_WIDTHS[pieces]
    end = constant_like(ERF_ENDS, value)
    size = names.bind("size", tirx.abs(value))
    limited = names.bind("limited", prim.Select(size > end, end, size))
    rounder = constant_like(_ROUNDER, value)
    rounded = names.bind("rounded", limited * constant_like(1 / width, value) + rounder)
    piece = names.bind("piece", tirx.reinterpret(wide_type("int32", pieces), rounded))
    place = names.bind("place", limited - (rounded - rounder) * constant_like(width, value))
    powers = [_picked(row, piece) for row in erf_pieces(pieces)]
    result = powers[-1]
    for power in powers[-2::-1]:
        result = result * place + power
    integers = wide_type("int32", pieces)
    sign = tirx.reinterpret(integers, value) & constant_like(_SIGN, piece)
    return names.around(tirx.reinterpret(wide_type("float32", pieces), tirx.reinterpret(integers, result) | sign))


@lru_cache(maxsize=2)
def erf_pieces(pieces: int) -> np.ndarray:
    """Fit ``erf(k * width + r)`` by powers of ``r``, ``|r| <= width / 2``; of shape ``(degree + 1, pieces)``."""
    width, degree = ERF_WIDTHS[pieces], ERF_DEGREES[pieces]
    first = [0.0] * (degree + 1)
    odd = interpolate(_erf_over_root, 0.0, (width / 2) ** 2, degree // 2)
    first[1::2] = odd
    others = [interpolate(_around(piece * width), -width / 2, width / 2, degree) for piece in range(1, pieces)]
    return np.array([first, *others], "float32").T


def _around(center: float) -> Callable[[float], float]:
    return lambda place: math.erf(center + place)


def _erf_over_root(square: float) -> float:
    root = math.sqrt(square)
    return math.erf(root) / root if root > 1e-4 else 2 / math.sqrt(math.pi) * (1 - square / 3)


def _picked(row: np.ndarray, piece: Any) -> Any:
    lanes = len(row)
    entries, numbers = [tirx.const(float(entry), "float32") for entry in row], range(lanes)
    table = prim.Shuffle(entries, [tirx.const(number, "int32") for number in numbers])
    return tirx.call_llvm_pure_intrin(wide_type("float32", lanes), _PICK[lanes], table, piece)
