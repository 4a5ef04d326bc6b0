"""Which types hold all values of another one, and all products of two."""

from __future__ import annotations

import re

_DIGITS = {"float16": (11, 5), "bfloat16": (8, 8), "float32": (24, 8), "float64": (53, 11)}
"""Binary digits of a floating-point type, the leading one included, and bits of its exponent."""


def holds(wide: str, narrow: str) -> bool:
    """Whether each value of one type is a value of another."""
    if wide == narrow:
        return True
    if narrow in _DIGITS:
        return wide in _DIGITS and all(have >= want for have, want in zip(_DIGITS[wide], _DIGITS[narrow], strict=True))
    low, high = _range(narrow)
    return low < high and _holds_range(wide, low, high)


def holds_product(wide: str, left: str, right: str) -> bool:
    """Whether each product of values of two types is a value of a third one, but for overflow of floats."""
    if left in _DIGITS or right in _DIGITS:
        digits = [_DIGITS.get(dtype, (64, 11)) for dtype in (left, right)]
        return wide in _DIGITS and _DIGITS[wide][0] >= sum(have for have, _ in digits) and all(
            _DIGITS[wide][1] >= exponent for _, exponent in digits
        )  # fmt: skip
    ends = [first * second for first in _range(left) for second in _range(right)]
    return min(ends) < max(ends) and _holds_range(wide, min(ends), max(ends))


def _holds_range(dtype: str, low: int, high: int) -> bool:
    if dtype in _DIGITS:
        return max(-low, high) <= 2 ** _DIGITS[dtype][0]
    first, last = _range(dtype)
    return first <= low and high <= last


def _range(dtype: str) -> tuple[int, int]:
    """Least and largest value of an integer type; (0, 0) for others."""
    found = re.fullmatch(r"(u?)int(\d+)", dtype)
    if found is None:
        return (0, 1) if dtype == "bool" else (0, 0)
    bits = int(found[2])
    return (0, 2**bits - 1) if found[1] else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
