"""Addresses of vector instructions: one ramp each, as TVM's loops over vectors have them.

before: ``sums[broadcast(8, 4) + ramp(0, 1, 4)]``
after:  ``sums[ramp(8, 1, 4)]``; ``sums[int64x4(ramp(i, 1, 4))]`` becomes ``sums[ramp(int64(i), 1, 4)]``

Lowering a tensor intrinsic adds the place of its tile to the ramp of its body. Where a buffer is one vector long, TVM
then stores it as one element of a vector type, and takes only those of its accesses along that are ramps.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx


def holds_ramps(func: tirx.PrimFunc) -> bool:
    """Whether a kernel has addresses of vectors already."""

    def interrupt(_ramp: Any) -> Any:
        return tvm_ffi.VisitInterrupt(True)

    return tvm_ffi.structural_walk(func.body, [(tirx.Ramp, interrupt)]) is not None


def with_plain_ramps(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give a kernel in which a sum of a ramp and a scalar, and a widened ramp, are ramps; the same where none is."""
    return tvm_ffi.structural_mutate(func, [(tirx.Add, _plain), (tirx.Cast, _widened)]) if holds_ramps(func) else func


def _widened(cast: Any, mutator: Any) -> Any:
    whole = mutator.default_mutate(cast)
    ramp, element = getattr(whole, "value", None), str(cast.ty.dtype).partition("x")[0]
    if not isinstance(whole, tirx.Cast) or not isinstance(ramp, tirx.Ramp) or element != "int64":
        return whole
    return tirx.Ramp(tirx.Cast(element, ramp.base), tirx.Cast(element, ramp.stride), ramp.lanes)


def _plain(sum_of_two: Any, mutator: Any) -> Any:
    both = mutator.default_mutate(sum_of_two)
    if not isinstance(both, tirx.Add):
        return both
    for ramp, other in ((both.a, both.b), (both.b, both.a)):
        if isinstance(ramp, tirx.Ramp) and isinstance(other, tirx.Broadcast):
            return tirx.Ramp(ramp.base + other.value, ramp.stride, ramp.lanes)
    return both


def with_plain_remainders(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give a kernel without remainders of vectors of integers that round towards zero.

    Of a falling ramp, ``truncmod((27, 26, ..., 20), 7)``, TVM makes the falling ramp ``(6, 5, ..., -1)``.
    """

    def plain(remainder: Any, mutator: Any) -> Any:
        whole = mutator.default_mutate(remainder)
        dtype = str(whole.ty.dtype)
        if not isinstance(whole, tirx.Mod) or "x" not in dtype or not dtype.startswith(("int", "uint")):
            return whole
        return whole.a - tirx.truncdiv(whole.a, whole.b) * whole.b

    return tvm_ffi.structural_mutate(func, [(tirx.Mod, plain)])
