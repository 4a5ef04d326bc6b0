"""Kernels that take one vector of bytes after another, whatever the layout: functions by look-up, weighted sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from tvm_ext.schedules.hexagon.code import VECTOR, WORDS, Code, intrinsic, octets, splat, words
from tvm_ext.schedules.hexagon.panels import Panels
from tvm_ext.schedules.hexagon.requantize import clipped, packed, requantized


def packed_table(table: np.ndarray) -> np.ndarray:
    """Order 256 bytes as vlut32 reads them: a vector for each half, 64 in its even bytes and 64 in the odd ones."""
    return np.ascontiguousarray(table.reshape(2, 2, 64).transpose(0, 2, 1)).reshape(-1)


def look_up(vectors: int, name: str = "look_up") -> tirx.PrimFunc:
    """Make the kernel of a function of bytes, of ``data``, ``table`` (:func:`packed_table`) and ``result``.

    A division by a number that is known becomes a look-up like any other function.
    """
    code = Code(data=(vectors * VECTOR, "uint8"), table=(2 * VECTOR, "uint8"), result=(vectors * VECTOR, "uint8"))
    halves = [code.let("entries", words(code.load(code["table"], i * VECTOR, VECTOR))) for i in range(2)]
    with code.loop("vector", vectors) as vector:
        data = code.let("bytes", words(code.load(code["data"], vector * VECTOR, VECTOR)))
        code.store(code["result"], vector * VECTOR, octets(looked_up(data, halves)), VECTOR)
    return code.function(name)


def looked_up(data: Any, halves: Sequence[Any]) -> Any:
    """Look up the bytes of a register in the two registers of a :func:`packed_table`."""
    found = intrinsic("vlutvvb", WORDS, data, halves[0], tirx.const(0, "int32"))
    for part in range(1, 8):
        found = intrinsic("vlutvvb.oracc", WORDS, found, data, halves[part // 4], tirx.const(part, "int32"))
    return found


@dataclass(frozen=True)
class WeightedSum:
    """``clip((a * first + b * second + addend) >> right, low, high)`` of bytes; the factors have 16 bits.

    Attributes
    ----------
    first, second : int
    addend, right : int
    low, high : int
    """

    first: int
    second: int
    addend: int
    right: int
    low: int = 0
    high: int = 255

    @classmethod
    def of(
        cls, factors: tuple[float, float], zero_points: tuple[int, int, int], low: int = 0, high: int = 255
    ) -> WeightedSum:
        """Approximate ``factors[0] * (a - zero_points[0]) + factors[1] * (b - zero_points[1]) + zero_points[2]``.

        Raises
        ------
        ValueError
            If a factor is not above 0, or is 2**15 or more.
        """
        if not all(0 < factor < 1 << 15 for factor in factors):
            raise ValueError(f"factors of a sum are above 0 and below {1 << 15}; found {factors[0]}, {factors[1]}")
        right = min(22, 15 - int(np.floor(np.log2(max(factors)))))
        if round(max(factors) * (1 << right)) >= 1 << 16:
            right -= 1
        first, second = (round(factor * (1 << right)) for factor in factors)
        half = (1 << right) >> 1
        addend = half + (zero_points[2] << right) - first * zero_points[0] - second * zero_points[1]
        return cls(first, second, addend, right, low, high)

    def apply(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Compute the sum of arrays of uint8."""
        total = first.astype(np.int64) * self.first + second.astype(np.int64) * self.second + self.addend
        return np.clip(total >> self.right, self.low, self.high).astype(np.uint8)


def weighted_sum(vectors: int, plan: WeightedSum, name: str = "add") -> tirx.PrimFunc:
    """Make the kernel of a weighted sum, of ``first``, ``second`` and ``result``."""
    size = (vectors * VECTOR, "uint8")
    code = Code(first=size, second=size, result=size)
    pair = 2 * WORDS
    with code.loop("vector", vectors) as vector:
        factors = {"first": plan.first, "second": plan.second}
        wide = {
            key: code.let("halfwords", intrinsic("vzb", pair, words(code.load(code[key], vector * VECTOR, VECTOR))))
            for key in factors
        }

        def total(half: str, wide: Any = wide, factors: Any = factors) -> Any:
            value = splat(tirx.const(plan.addend, "int32"), pair)
            for key, factor in factors.items():
                both = np.uint32(factor << 16 | factor).astype(np.int32)
                halfwords = intrinsic(half, WORDS, wide[key])
                value = intrinsic("vmpyuh.acc", pair, value, halfwords, tirx.const(int(both), "int32"))
            return code.let("sums", value)

        even, odd = total("lo"), total("hi")
        registers = [
            intrinsic("vasrw", WORDS, intrinsic(half, WORDS, value), tirx.const(plan.right, "int32"))
            for half in ("lo", "hi")
            for value in (even, odd)
        ]
        code.store(code["result"], vector * VECTOR, clipped(packed(registers), plan.low, plan.high), VECTOR)
    return code.function(name)


def multiply(
    layout: Panels,
    blocks: tuple[int, int],
    zero_points: tuple[int, int],
    rescale: tuple[int, int, int],
    by_channel: bool,
    name: str = "multiply",
) -> tirx.PrimFunc:
    """Make the kernel of ``(first - zero_points[0]) * (second - zero_points[1])``, rescaled.

    Parameters
    ----------
    layout : Panels
    blocks : (panels, vectors)
        Of the first operand.
    zero_points : (int, int)
    rescale : (left, low, high)
    by_channel : bool
        Whether the second operand has one row, which every row is multiplied with.

    Returns
    -------
    tirx.PrimFunc
        Of ``first``, ``second``, ``table`` (:meth:`~tvm_ext.schedules.hexagon.fixed_point.Rescaling.table` of one
        channel) and ``result``.
    """
    panels, vectors = blocks
    left, low, high = rescale
    size = panels * vectors * VECTOR
    code = Code(
        first=(size, "uint8"), second=(vectors * VECTOR if by_channel else size, "uint8"), table=(4, "int32"),
        result=(size, "uint8"),
    )  # fmt: skip
    element = {1: "uint8", 2: "int16", 4: "int32"}[layout.columns]
    row = code.wider("second", element) if by_channel and layout.columns > 1 else code["second"]
    factor = [code.let("factor", code.load(code["table"], word)) for word in (1, 2, 3)]

    def centred(value: Any, zero_point: int) -> Any:
        # Even bytes are the first register of halfwords, odd ones the second.
        point = octets_splat(zero_point)
        return code.let("centred", intrinsic("vsububh", 2 * WORDS, value, point))

    with code.loop("vector", vectors) as vector:
        if by_channel:
            repeated = splat(code.load(row, vector * layout.rows), layout.rows)
            gate = centred(repeated if layout.columns == 4 else words(repeated), zero_points[1])
        with code.loop("panel", panels) as panel:
            place = (panel * vectors + vector) * VECTOR
            first = centred(words(code.load(code["first"], place, VECTOR)), zero_points[0])
            second = gate if by_channel else centred(words(code.load(code["second"], place, VECTOR)), zero_points[1])
            even, odd = (
                code.let(
                    "products", intrinsic("vmpyhv", 2 * WORDS, *(intrinsic(half, WORDS, x) for x in (first, second)))
                )
                for half in ("lo", "hi")
            )
            registers = [intrinsic(half, WORDS, products) for half in ("lo", "hi") for products in (even, odd)]
            exceeds = 2 * 255 * 255 >= 1 << (31 - left)
            value = requantized(code, registers, [factor] * 4, left, (low, high), may_exceed=exceeds)
            code.store(code["result"], place, value, VECTOR)
    return code.function(name)


def octets_splat(value: int) -> Any:
    """Repeat a byte in a register."""
    return splat(tirx.const(int(np.array([value] * 4, np.uint8).view(np.int32)[0]), "int32"))
