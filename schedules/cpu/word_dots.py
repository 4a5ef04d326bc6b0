"""Products of one row with weights of 8 or 4 bits by instructions that multiply unsigned with signed bytes.

The data is rounded to integers of 16 bits, group by group of the reduction, the largest magnitude of a group becoming
:data:`LARGEST`: an error of 2**-16 of it at most, an eighth of what bfloat16 has near it. An integer is two signed
bytes, ``256 * high + low``; each meets the weights in a sum of its own, which int32 holds exactly, so that all rounding
is that of the data and of one float32 a group.

Eight weights of four bits are masked out of a word without shifts, ``word & 0x0F0F0F0F`` and ``word & 0xF0F0F0F0``:
sixteen times a weight is an unsigned byte too, and a sum of those is divided by sixteen once a group.
"""

# mypy: ignore-errors
# (what the script builder gives has no types)
from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_ext.schedules.compute.weight_words import TILE_VECTORS, WeightShape
from tvm_ext.schedules.cpu.intrinsics import VNNI
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.simd.loops import SIMD_ATTRIBUTE

LARGEST = 127 * 256 + 127
"""Largest integer of two signed bytes that stays one when its sign is turned."""

BYTES = 4
"""Products that the instruction adds up in a lane."""

UNROLLED = 4
"""Words of a column that are multiplied in one step of a loop."""


def has_dots(weights: WeightShape, machine: Machine) -> bool:
    """Whether weights are integers for which the machine has the instruction."""
    form = weights.format
    fits = form.is_integer and form.bits in (4, 8) and form.group % weights.lanes == 0
    # The largest sum of a group has to stay an int32.
    bounded = form.group * ((1 << form.bits) - 1) * LARGEST < 1 << 31
    return fits and bounded and machine.dot_product == "vnni" and VNNI.has(weights.lanes)


class WordDots:
    """Emits the statements of such a kernel.

    Parameters
    ----------
    weights : WeightShape
    data : buffer
        ``[rows, reduction]``, float32.
    stored : sequence of buffers
        Words, scales, and what zero points amount to, as :attr:`WeightShape.stored` lists them.
    row : int or expression
        Which row of the data is multiplied.
    """

    def __init__(self, weights: WeightShape, data: Any, words: Any, scales: Any, offsets: Any, row: Any = 0) -> None:
        self.weights, self.data, self.row = weights, data, row
        self.words, self.scales, self.offsets = words, scales, offsets
        self.lanes, self.group = weights.lanes, weights.format.group
        self.planes = weights.format.per_word // BYTES
        self.symmetric = offsets is None

    def prepare(self) -> None:
        """Round the data to integers; gives what :meth:`tile` reads."""
        groups, group = self.weights.groups, self.group
        self.low = T.sblock_alloc_buffer((groups * group,), "int8")
        self.high = T.sblock_alloc_buffer((groups * group,), "int8")
        self.totals = T.sblock_alloc_buffer((groups,), "int32")
        self.steps = T.sblock_alloc_buffer((groups,), "float32")
        whole, rest = divmod(self.weights.reduction, group)
        with T.serial(0, whole) as g:
            self._rounded(g, group)
        if rest:
            self._rounded(groups - 1, rest)

    def _simd(self, extent: int) -> Any:
        return T.serial(0, extent, annotations={SIMD_ATTRIBUTE: self.lanes})

    def _rounded(self, g: Any, count: int) -> None:
        """Round a group, of which there are ``count`` places; the others become zero."""
        largest, wrong, inverse = (T.sblock_alloc_buffer((1,), "float32", scope="local") for _ in range(3))
        total = T.sblock_alloc_buffer((1,), "int32", scope="local")
        first = g * self.group
        for buffer, value in ((largest, T.float32(0)), (wrong, T.float32(0)), (total, T.int32(0))):
            T.buffer_store(buffer, value, [0])
        with self._simd(count) as k:
            T.buffer_store(largest, tirx.max(largest[0], T.fabs(self.data[self.row, first + k])), [0])
        with self._simd(count) as k:  # NaN, where a number is NaN or infinite
            T.buffer_store(wrong, wrong[0] + self.data[self.row, first + k] * T.float32(0), [0])
        step = largest[0] * T.float32(1 / LARGEST)
        T.buffer_store(self.steps, step + wrong[0], [g])
        # The sum with zero is below no number, and NaN is above none: both leave an inverse of zero.
        usable = (step > T.float32(1e-36)) & (largest[0] < T.float32(3e38)) & (wrong[0] == T.float32(0))
        T.buffer_store(inverse, T.if_then_else(usable, T.float32(1) / step, T.float32(0)), [0])
        with self._simd(count) as k:
            scaled = T.if_then_else(
                inverse[0] > T.float32(0), self.data[self.row, first + k] * inverse[0], T.float32(0)
            )
            integer = T.Cast("int32", T.nearbyint(scaled))
            T.buffer_store(total, total[0] + integer, [0])
            T.buffer_store(self.low, T.Cast("int8", integer), [first + k])
            T.buffer_store(self.high, T.Cast("int8", (integer + 128) >> 8), [first + k])
        if count < self.group:
            with T.serial(0, self.group - count) as k:
                T.buffer_store(self.low, T.int8(0), [first + count + k])
                T.buffer_store(self.high, T.int8(0), [first + count + k])
        T.buffer_store(self.totals, total[0], [g])

    def tile(self, sums: Any, tile: Any, fetch: Any, fetch_scales: Any) -> None:
        """Add the products of a tile of columns to ``sums`` ``[TILE_VECTORS, lanes]``.

        ``fetch`` and ``fetch_scales`` are called with the tile and each word or group before it is used.
        """
        shape, per_word = self.weights, self.weights.format.per_word
        parts = T.sblock_alloc_buffer((2, self.planes, TILE_VECTORS, self.lanes), "int32", scope="local")
        whole, rest = divmod(shape.reduction, self.group)
        with T.serial(0, whole) as g:
            fetch_scales(tile, g)
            self._group(parts, tile, g, self.group // per_word, fetch)
            self._add(sums, parts, tile, g)
        if rest:
            self._group(parts, tile, shape.groups - 1, -(-rest // per_word), fetch)
            self._add(sums, parts, tile, shape.groups - 1)

    def _group(self, parts: Any, tile: Any, g: Any, words: int, fetch: Any) -> None:
        # Zero points that are the middle of the range are taken off the sum of the low bytes before it begins.
        first = T.int32(0) - self.totals[g] * T.int32(self.weights.format.middle) if self.symmetric else T.int32(0)
        for part in range(2):
            for plane in range(self.planes):
                value = first if part == plane == 0 else T.int32(0)
                for c in range(TILE_VECTORS):
                    self._store(parts, T.Broadcast(value, self.lanes), part, plane, c)
        begin = g * (self.group // self.weights.format.per_word)
        turns, left = divmod(words, UNROLLED)
        if turns:
            with T.serial(0, turns) as turn:
                for number in range(UNROLLED):
                    self._word(parts, tile, begin + turn * UNROLLED + number, fetch)
        for number in range(left):
            self._word(parts, tile, begin + turns * UNROLLED + number, fetch)

    def _word(self, parts: Any, tile: Any, word: Any, fetch: Any) -> None:
        """Add the products of one word of each column."""
        fetch(tile, word)
        lanes = self.lanes
        for plane in range(self.planes):
            place = word * self.weights.format.per_word + plane * BYTES
            together = [T.reinterpret("int32", row[T.Ramp(place, 1, BYTES)]) for row in (self.low, self.high)]
            given = [T.reinterpret(f"int8x{4 * lanes}", T.Broadcast(four, lanes)) for four in together]
            for c in range(TILE_VECTORS):
                weights = self.words[tile, word, T.Ramp(c * lanes, 1, lanes)]
                if self.planes > 1:
                    mask = 0xF0F0F0F0 if plane else 0x0F0F0F0F
                    weights = weights & T.Broadcast(T.uint32(mask), lanes)
                operand = T.reinterpret(f"int8x{4 * lanes}", weights)
                for part in range(2):
                    total = T.call_llvm_pure_intrin(
                        f"int32x{lanes}", dict(VNNI.names)[lanes], self._part(parts, part, plane, c), operand,
                        given[part],
                    )  # fmt: skip
                    self._store(parts, total, part, plane, c)

    def _add(self, sums: Any, parts: Any, tile: Any, g: Any) -> None:
        """Add the sum of a group to that of a column."""
        lanes = self.lanes
        for c in range(TILE_VECTORS):
            low, high = (self._of_planes(parts, part, c) for part in range(2))
            value = T.Cast(f"float32x{lanes}", low + (high << T.Broadcast(T.int32(8), lanes)))
            columns = T.Ramp(c * lanes, 1, lanes)
            value = value * (self.scales[tile, g, columns] * T.Broadcast(self.steps[g], lanes))
            if not self.symmetric:
                total = T.Cast("float32", self.totals[g]) * self.steps[g]
                value = value - T.Broadcast(total, lanes) * self.offsets[tile, g, columns]
            T.buffer_store(sums, sums[c, T.Ramp(0, 1, lanes)] + value, [c, T.Ramp(0, 1, lanes)])

    def _of_planes(self, parts: Any, part: int, c: int) -> Any:
        low = self._part(parts, part, 0, c)
        if self.planes == 1:
            return low
        return low + (self._part(parts, part, 1, c) >> T.Broadcast(T.int32(4), self.lanes))

    def _part(self, parts: Any, *place: int) -> Any:
        return parts[(*place, T.Ramp(0, 1, self.lanes))]

    def _store(self, parts: Any, value: Any, *place: int) -> None:
        T.buffer_store(parts, value, [*place, T.Ramp(0, 1, self.lanes)])
