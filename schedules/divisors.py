"""Divisors of extents: the sizes of tiles that leave no rest."""

from __future__ import annotations

import math


def divisors(number: int) -> list[int]:
    """List the divisors of a number that is not negative in ascending order; none of 0.

    It takes as many steps as the number's square root, so that an axis of 2,000,000,000 elements costs nothing.
    """
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return small + [number // divisor for divisor in reversed(small) if divisor * divisor != number]
