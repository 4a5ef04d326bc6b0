"""Rescaling of integer sums without floats: what a multiplication with a factor and a rounding to bytes is here.

``clip(floor((s * 2**left * multiplier + 2**(31 + right)) / 2**(32 + right)) + zero_point, low, high)``, where ``s`` is
the sum, held to ``32 - left`` bits: the factor is ``multiplier * 2**(left - 32 - right)`` with 31 significant bits, and
halves are rounded up. The upper word of a product of two words is all that is needed of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

MOST_RIGHT = 20
"""The zero point, shifted as far, must fit beside the product; smaller factors lose bits."""


@dataclass(frozen=True)
class Rescaling:
    """Factors of the channels of a sum, and how the result is rounded.

    Attributes
    ----------
    multipliers, rights : tuple of int
        For each channel.
    left : int
    zero_point, low, high : int
        Of the result, 0 to 255.
    """

    multipliers: tuple[int, ...]
    rights: tuple[int, ...]
    left: int
    zero_point: int = 0
    low: int = 0
    high: int = 255

    @classmethod
    def of(cls, factors: np.ndarray, zero_point: int = 0, low: int = 0, high: int = 255) -> Rescaling:
        """Approximate factors, which are not negative.

        Raises
        ------
        ValueError
            If a factor is negative, not a number, or 2**20 or more.
        """
        values = [float(factor) for factor in factors]
        if not all(0 <= value < 1 << MOST_RIGHT for value in values):
            raise ValueError(
                f"factors of a rescaling are from 0 to {1 << MOST_RIGHT}; found {min(values)}, {max(values)}"
            )
        largest = max(values, default=0.0)
        # With it the largest factor is below a quarter, and its shift to the right at least 1.
        left = max(0, math.frexp(largest)[1] + 2) if largest else 0
        multipliers, rights = [], []
        for value in values:
            exponent = math.frexp(value)[1]
            right = min(left - 1 - exponent, MOST_RIGHT) if value else 1
            multiplier = round(math.ldexp(value, 32 + right - left))
            if multiplier == 1 << 31:  # the mantissa was rounded up to 1
                right, multiplier = (right - 1, 1 << 30) if right > 1 else (right, (1 << 31) - 1)
            multipliers.append(multiplier)
            rights.append(right)
        return cls(tuple(multipliers), tuple(rights), left, zero_point, low, high)

    @property
    def largest_sum(self) -> int:
        """Sums from here on are held back."""
        return 1 << (31 - self.left)

    def apply(self, sums: np.ndarray) -> np.ndarray:
        """Rescale sums of shape ``(..., channels)``; gives uint8."""
        limit = self.largest_sum
        held = np.clip(sums.astype(np.int64), -limit, limit - 1) << self.left
        right = np.array(self.rights, np.int64)
        upper = (held * np.array(self.multipliers, np.int64)) >> 32
        rounded = ((upper + (np.int64(1) << (right - 1))) >> right) + self.zero_point
        return np.clip(rounded, self.low, self.high).astype(np.uint8)

    def table(self, bias: np.ndarray, channels: int) -> np.ndarray:
        """Give the four words of each channel that kernels read: bias, multiplier, addend, shift.

        Parameters
        ----------
        bias : np.ndarray
            int32, what is added to each channel's sum.
        channels : int
            With padding.
        """
        rights = np.array(self.rights, np.int64)
        addends = (np.int64(1) << (rights - 1)) + (np.int64(self.zero_point) << rights)
        found = np.zeros((channels, 4), np.int32)
        found[:, 3] = 1
        found[: len(rights)] = np.stack([bias, self.multipliers, addends, rights], axis=1)
        return found.reshape(-1)
