"""From sums in registers to a vector of bytes.

Four registers of words hold the sums of the bytes of a vector: register t those of bytes t, t + 4, t + 8, ... That is
how the multiplications of all three layouts leave them, and how the saturating packs take them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from tvm_ext.schedules.hexagon.code import VECTOR, WORDS, Code, intrinsic, octets, splat


def packed(words: Sequence[Any]) -> Any:
    """Saturate the four registers to unsigned bytes; three instructions."""
    first, second, third, fourth = words
    even = intrinsic("vsatwh", WORDS, third, first)
    odd = intrinsic("vsatwh", WORDS, fourth, second)
    return octets(intrinsic("vsathub", WORDS, odd, even))


def clipped(vector: Any, low: int, high: int) -> Any:
    """Hold bytes between bounds, where they are not those of the type."""
    if low > 0:
        vector = tirx.max(vector, splat(tirx.const(low, "uint8"), VECTOR))
    if high < 255:
        vector = tirx.min(vector, splat(tirx.const(high, "uint8"), VECTOR))
    return vector


def rescaled(code: Code, sums: Any, factor: Any, left: int, may_exceed: bool) -> Any:
    """Multiply a register of sums with a factor and round: :class:`~tvm_ext.schedules.hexagon.fixed_point.Rescaling`.

    Parameters
    ----------
    sums : PrimExpr
        int32x32.
    factor : sequence of PrimExpr
        Multiplier, addend, and shift of the channel, int32.
    left : int
    may_exceed : bool
        Whether a sum can be so large that it must be held back before it is shifted.
    """
    multiplier, addend, right = factor
    if left:
        if may_exceed:
            limit = 1 << (31 - left)
            sums = tirx.max(tirx.min(sums, splat(tirx.const(limit - 1, "int32"))), splat(tirx.const(-limit, "int32")))
        sums = intrinsic("vaslw", WORDS, sums, tirx.const(left, "int32"))
    sums = code.let("sums", sums)
    scale = code.let("scale", splat(multiplier))
    product = intrinsic("vmpyowh.64.acc", 2 * WORDS, intrinsic("vmpyewuh.64", 2 * WORDS, sums, scale), sums, scale)
    upper = intrinsic("hi", WORDS, product)
    return code.let("rounded", intrinsic("vasrw", WORDS, upper + splat(addend), right))


def requantized(
    code: Code,
    words: Sequence[Any],
    factors: Sequence[Sequence[Any]],
    left: int,
    bounds: tuple[int, int] = (0, 255),
    may_exceed: bool = False,
) -> Any:
    """Rescale four registers of sums, each with the factor of its channel, to a vector of bytes."""
    rounded = [rescaled(code, sums, factor, left, may_exceed) for sums, factor in zip(words, factors, strict=True)]
    return clipped(packed(rounded), *bounds)
