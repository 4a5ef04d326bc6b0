"""Products of bfloat16 that add up in float32: operands as the bits of their halves, in pairs along the reduction.

A number is kept as ``uint16``. The tensors of pairs end with an axis of two: the elements of an even place of the
reduction and of the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.ir import Expr

from tvm_ext.schedules.compute.weight_words import rounded_to_bfloat16
from tvm_ext.schedules.simd.imported import BFLOAT16

BITS = "uint16"
"""Type that the bits are kept in."""

WORDS = "uint32"
"""Type of a pair of an operand that a kernel computes: of 32 bits, as a lane of float32 is."""

PAIR = 2
"""Products that one instruction adds to a sum."""


def rounded(value: Expr) -> Expr:
    """Round a float32 expression to the nearest bfloat16 (ties to even), and give its bits; NaN stays NaN."""
    return tirx.call_pure_extern(BITS, BFLOAT16, value)


def widened(bits: Expr) -> Expr:
    """Give the float32 number of the bits of a bfloat16."""
    return tirx.reinterpret("float32", tirx.shift_left(tirx.Cast("uint32", bits), tirx.const(16, "uint32")))


def word(low: Expr, high: Expr) -> Expr:
    """Give two float32 numbers, rounded as :func:`rounded` does, as the halves of a word of 32 bits."""
    first, second = (tirx.Cast(WORDS, rounded(value)) for value in (low, high))
    return tirx.bitwise_or(first, tirx.shift_left(second, tirx.const(16, WORDS)))


def half(pair: Expr, place: Expr) -> Expr:
    """Give the bits of the first (``place`` 0) or second half of a word."""
    return tirx.Cast(BITS, tirx.shift_right(pair, tirx.Cast(WORDS, place * 16)))


def rounded_tensor(data: te.Tensor) -> te.Tensor:
    """Round a float32 tensor of any shape to the bits of bfloat16."""
    return te.compute(data.shape, lambda *index: rounded(data(*index)), name="round")


def rounded_array(values: np.ndarray) -> np.ndarray:
    """Round float32 numbers of any shape as :func:`rounded` does; gives the bits."""
    bits = rounded_to_bfloat16(np.ascontiguousarray(values, "float32").view("uint32"))
    return (bits >> np.uint32(16)).astype(BITS)


def pairs(values: np.ndarray, axis: int) -> np.ndarray:
    """Round, and bring neighbours along an axis together: ``(..., K, ...)`` becomes ``(..., ceil(K / 2), ..., 2)``.

    A last place without a neighbour gets zero.
    """
    axis %= values.ndim
    padding = [(0, values.shape[at] % PAIR if at == axis else 0) for at in range(values.ndim)]
    bits = np.pad(rounded_array(values), padding)
    split = bits.reshape(*bits.shape[:axis], -1, PAIR, *bits.shape[axis + 1 :])
    return np.ascontiguousarray(np.moveaxis(split, axis + 1, -1))


def unpaired_shape(weight: te.Tensor) -> list[int]:
    """Give the shape of blocked weights, ``(..., vi, vo)``, whether they are kept in pairs or not."""
    shape = [int(extent) for extent in weight.shape]
    if str(weight.dtype) != BITS:
        return shape
    *outer, pair_count, block_out, _ = shape
    return [*outer, pair_count * PAIR, block_out]


@dataclass(frozen=True)
class InnerSum:
    """The sum over the input channels of a block, of floats or of pairs of bfloat16.

    Attributes
    ----------
    axes : tuple of reduction axes
        The channel; or the pair, and the place in it.
    """

    axes: tuple[Any, ...]

    @staticmethod
    def of(weight: te.Tensor) -> InnerSum:
        """Make the axes for weights ``(..., vi, vo)`` or, in pairs, ``(..., vi / 2, vo, 2)``."""
        if str(weight.dtype) != BITS:
            return InnerSum((te.reduce_axis((0, int(weight.shape[-2])), "ii"),))
        return InnerSum((te.reduce_axis((0, int(weight.shape[-3])), "ii"), te.reduce_axis((0, PAIR), "place")))

    def product(self, source: Callable[[Expr], Expr], weight: te.Tensor, outer: Sequence[Any], out_lane: Expr) -> Expr:
        """Multiply ``source(channel)`` with the weight of that channel."""
        channel, *place = self.axes
        factor = weight(*outer, channel, out_lane, *place)
        if not place:
            return source(channel) * factor
        return widened(source(channel * PAIR + place[0])) * widened(factor)
