"""Products with weights that are kept in few bits: words of 32 bits per lane, which are unpacked in registers.

One row is multiplied while the weights pass by, once, as fast as memory gives them; of more rows, weights are unpacked
into a panel that stays in the L2 cache, over which register tiles go.
"""

# mypy: ignore-errors
# (what the script builder gives has no types)
from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_ext.schedules.compute.weight_words import TILE_VECTORS, WORD_BITS, WeightShape
from tvm_ext.schedules.cpu.decoder_kernels import shared
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.word_dots import WordDots, has_dots
from tvm_ext.schedules.rule import RULE_ATTRIBUTE
from tvm_ext.schedules.simd.imported import PREFETCH, import_definitions
from tvm_ext.schedules.simd.prefetch import LINE

RULE = "cpu.word_product"
"""Stands as the schedule rule of these kernels: they are written as they should be."""

AHEAD = 4096
"""Bytes that weights are fetched ahead of their use."""

AHEAD_SCALES = 2048
"""Bytes that scales are fetched ahead of their use."""

UNROLLED = 16
"""Weights of a column that are multiplied in one step of a loop, at least."""

SUMS = 2
"""Sums of a vector that are added to in turns, so that none has to wait for the one before."""

PANEL_PART = 4
"""The panel takes one part in so many of the L2 cache."""

ROWS, SMALL_ROWS = 6, 2
"""Rows of a register tile, and of the tiles for what is left over."""

PANEL_VECTORS = (2, 4)
"""Vectors of a register tile over the panel, with 16 and with 32 registers. Rows cost a load each as vectors do, but
come from further away, so that with many registers tiles grow by vectors."""

_DONE = {RULE_ATTRIBUTE: RULE, "tirx.is_scheduled": True, "tirx.noalias": True, "op_pattern": 8}


def word_product(weights: WeightShape, rows: int | None, machine: Machine, exact: bool = False) -> tirx.PrimFunc:
    """Make the kernel ``out[m, n] = sum(data[m, k] * weight[k, n])``.

    Parameters
    ----------
    weights : WeightShape
        How the weights are stored.
    rows : int or None
        None: any number of them.
    machine : Machine
    exact : bool
        Do not round the data of one row to 16 bits.

    Returns
    -------
    tvm.tirx.PrimFunc
        Arguments: data ``[m, k]``, what :attr:`WeightShape.stored` lists, result ``[m, n]``.
    """
    with IRBuilder() as builder:
        with T.prim_func(is_private=True, s_tir=True):
            T.func_name("word_product")
            count = T.int64() if rows is None else rows
            data = T.arg("data", T.buffer((count, weights.reduction), "float32"))
            stored = [
                T.arg(name, T.buffer(shape, dtype))
                for name, (shape, dtype) in zip(("words", "scales", "offsets"), weights.stored, strict=False)
            ]
            out = T.arg("out", T.buffer((count, weights.columns), "float32"))
            with T.sblock("root"):
                kernel = WordProduct(weights, machine, data, stored, out, exact)
                if rows == 1:
                    kernel.one_row()
                elif rows is not None:
                    kernel.many_rows()
                else:
                    with T.If(count == 1):
                        with T.Then():
                            kernel.one_row()
                        with T.Else():
                            kernel.many_rows()
    return import_definitions(builder.get().with_attrs(_DONE))


class WordProduct:
    """Emits the statements of one kernel.

    Attributes
    ----------
    given, result : int or expression
        Row of the data, and of the result, where there is one.
    """

    given: Any = 0
    result: Any = 0

    def __init__(
        self, weights: WeightShape, machine: Machine, data: Any, stored: list[Any], out: Any, exact: bool = False
    ) -> None:
        self.exact = exact
        self.weights, self.machine, self.data, self.out = weights, machine, data, out
        self.words, self.scales, self.offsets = (*stored, None, None)[:3]
        self.lanes = weights.lanes

    def row_of_data(self, row: Any) -> Any:
        """Say which row of the data a row of the result is computed of."""
        return row

    def column_of(self, tile: Any) -> Any:
        """Give the first column of a tile."""
        return tile * self.weights.tile_columns

    def operations(self, rows: Any) -> Any:
        """Estimate the operations of vectors of a product; reading weights counts as those of the time it takes."""
        shape, machine = self.weights, self.machine
        nbytes = sum(4 * prod(extents) for extents, _ in shape.stored)
        return rows * (2 * shape.reduction * shape.columns) + round(nbytes / machine.read_bandwidth * machine.flops)

    def vectors(self):
        """Loop over the vectors of a tile; gives pairs of the vector and its first column."""
        return [(c, c * self.lanes) for c in range(TILE_VECTORS)]

    def unpacked(self, word: Any, place: int) -> Any:
        """Take a weight out of a word, as a float32; an integer is multiplied by :meth:`magnified`."""
        bits = self.weights.format.bits
        if bits == WORD_BITS:
            return T.reinterpret("float32", word)
        if bits == 16:
            return T.reinterpret("float32", word & T.uint32(0xFFFF0000) if place else word << T.uint32(16))
        shift = self.weights.format.shift(place)
        if shift == WORD_BITS - bits:
            integer = word >> T.uint32(shift)
        else:
            integer = word & T.uint32(((1 << bits) - 1) << shift)
        return T.Cast("float32", T.reinterpret("int32", integer))

    def magnified(self, place: int) -> float:
        """Say what :meth:`unpacked` multiplies an integer by: its bits are left where they are in the word."""
        weights = self.weights.format
        shift = weights.shift(place)
        return 1.0 if not weights.is_integer or shift == WORD_BITS - weights.bits else 2.0**shift

    # One row

    def one_row(self) -> None:
        """Multiply one row."""
        add_tile = self.prepared()
        tiles = shared(self.weights.tiles, self.operations(1), self.machine)
        with tiles as task, T.sblock("stream"):
            self.one_tile(add_tile, T.axis.spatial(self.weights.tiles, task))

    def prepared(self) -> Callable[[Any, Any], None]:
        """Bring the row into the form that products want; gives what adds those of a tile to sums."""
        shape = self.weights
        if not self.exact and has_dots(shape, self.machine):
            dots = WordDots(shape, self.data, self.words, self.scales, self.offsets, self.given)
            dots.prepare()
            return lambda sums, tile: dots.tile(sums, tile, self._fetch, self._fetch_scales)
        if not shape.format.is_integer:
            return lambda sums, tile: self._add_floats(sums, tile)
        row = T.sblock_alloc_buffer((1, shape.words * shape.format.per_word), "float32")
        totals = T.sblock_alloc_buffer((shape.groups,), "float32")
        self._prepare(row, totals)
        return lambda sums, tile: self._add_integers(sums, tile, row, totals)

    def one_tile(self, add_tile: Callable[[Any, Any], None], tile: Any) -> None:
        """Compute a tile of columns, and store it."""
        sums = T.sblock_alloc_buffer((TILE_VECTORS, self.lanes), "float32", scope="local")
        self._clear(sums, None)
        add_tile(sums, tile)
        self._store(tile, self.result, 0, [_element(sums, c) for c, _ in self.vectors()])

    def _add_floats(self, sums: Any, tile: Any) -> None:
        parts = T.sblock_alloc_buffer((SUMS, TILE_VECTORS, self.lanes), "float32", scope="local")
        self._group((self.data, self.given), parts, tile, 0, self.weights.reduction)
        self._add(sums, parts, None, None, None)

    def _add_integers(self, sums: Any, tile: Any, row: Any, totals: Any) -> None:
        shape, group = self.weights, self.weights.format.group
        parts = T.sblock_alloc_buffer((SUMS, TILE_VECTORS, self.lanes), "float32", scope="local")
        with T.serial(0, shape.reduction // group) as g:
            self._group((row, 0), parts, tile, g * (group // shape.format.per_word), group)
            self._add(sums, parts, totals, tile, g)
        rest = shape.reduction % group
        if rest:
            g = shape.groups - 1
            self._group((row, 0), parts, tile, g * (group // shape.format.per_word), rest)
            self._add(sums, parts, totals, tile, g)

    def _prepare(self, row: Any, totals: Any) -> None:
        """Divide the data by what integers are multiplied by, and sum them up group by group."""
        shape, per_word = self.weights, self.weights.format.per_word
        last = shape.reduction - 1
        with T.serial(0, shape.groups) as g:
            T.buffer_store(totals, T.float32(0), [g])
            with T.serial(0, shape.format.group) as k:
                index = g * shape.format.group + k
                with T.If(index <= last), T.Then():
                    T.buffer_store(totals, totals[g] + self.data[self.given, index], [g])
        with T.serial(0, shape.words) as word:
            for place in range(per_word):
                index = word * per_word + place
                value = self.data[self.given, index if shape.reduction % per_word == 0 else tirx.min(index, last)]
                T.buffer_store(row, value * T.float32(1 / self.magnified(place)), [0, index])

    def _clear(self, sums: Any, part: int | None) -> None:
        for c, _ in self.vectors():
            with T.vectorized(0, self.lanes) as x:
                T.buffer_store(sums, T.float32(0), [c, x] if part is None else [part, c, x])

    def _group(self, row: tuple[Any, Any], parts: Any, tile: Any, first: Any, count: int) -> None:
        """Sum up products of ``count`` places of the reduction, from the word ``first`` on."""
        per_word = self.weights.format.per_word
        for part in range(SUMS):
            self._clear(parts, part)
        step = min(max(1, UNROLLED // per_word), count // per_word)
        turns = count // (step * per_word) if step else 0
        if turns:
            with T.serial(0, turns) as turn:
                for number in range(step):
                    self._word(row, parts, tile, first + turn * step + number, per_word, number)
        done = turns * step
        for number in range(done, -(-count // per_word)):
            self._word(row, parts, tile, first + number, min(per_word, count - number * per_word), number)

    def _word(self, row: tuple[Any, Any], parts: Any, tile: Any, word: Any, places: int, number: int) -> None:
        """Add the products of one word of each column."""
        per_word, (buffer, number_of_row) = self.weights.format.per_word, row
        self._fetch(tile, word)
        for place in range(places):
            part = (number * per_word + place) % SUMS
            for c, column in self.vectors():
                with T.vectorized(0, self.lanes) as x:
                    weight = self.unpacked(self.words[tile, word, column + x], place)
                    value = parts[part, c, x] + buffer[number_of_row, word * per_word + place] * weight
                    T.buffer_store(parts, value, [part, c, x])

    def _fetch(self, tile: Any, word: Any) -> None:
        """Fetch what lies behind a word of each column."""
        bytes_of_word = 4 * TILE_VECTORS * self.lanes
        for line in range(0, bytes_of_word, LINE):
            address = T.address_of(self.words[tile, word + AHEAD // bytes_of_word, line // 4])
            T.evaluate(T.call_extern("void", PREFETCH, address))

    def _fetch_scales(self, tile: Any, g: Any) -> None:
        """Fetch what lies behind the scales of a group."""
        bytes_of_group = 4 * TILE_VECTORS * self.lanes
        for stored in (self.scales, self.offsets):
            for line in range(0, bytes_of_group if stored is not None else 0, LINE):
                address = T.address_of(stored[tile, g + AHEAD_SCALES // bytes_of_group, line // 4])
                T.evaluate(T.call_extern("void", PREFETCH, address))

    def _add(self, sums: Any, parts: Any, totals: Any, tile: Any, g: Any) -> None:
        """Add the sum of a group to that of a column."""
        for c, column in self.vectors():
            with T.vectorized(0, self.lanes) as x:
                value = parts[0, c, x]
                for part in range(1, SUMS):
                    value = value + parts[part, c, x]
                if totals is not None:
                    scale = self.scales[tile, g, column + x]
                    if self.offsets is None:
                        value = scale * (value - totals[g] * T.float32(self.weights.format.middle))
                    else:
                        value = scale * value - totals[g] * self.offsets[tile, g, column + x]
                T.buffer_store(sums, sums[c, x] + value, [c, x])

    def _store(self, tile: Any, row: Any, first: int, sums: list[Any]) -> None:
        """Store vectors of a row, from column ``first`` of a tile on, but for columns that only fill up the last tile.

        ``sums`` are functions from the lane to the value.
        """
        shape = self.weights
        whole = shape.columns % shape.tile_columns == 0
        for number, value in enumerate(sums):
            column = self.column_of(tile) + first + number * self.lanes
            if whole:
                self._vector(row, column, value)
                continue
            with T.If(column + self.lanes <= shape.columns):
                with T.Then():
                    self._vector(row, column, value)
                with T.Else(), T.serial(0, self.lanes) as x, T.If(column + x < shape.columns), T.Then():
                    T.buffer_store(self.out, value(x), [row, column + x])

    def _vector(self, row: Any, column: Any, value: Any) -> None:
        with T.vectorized(0, self.lanes) as x:
            T.buffer_store(self.out, value(x), [row, column + x])

    # Several rows

    def many_rows(self) -> None:
        """Multiply all rows, tile by tile of the columns."""
        tiles = shared(self.weights.tiles, self.operations(self.data.shape[0]), self.machine, self.operations(2))
        with tiles as task, T.sblock("panel"):
            self.rows_of_tile(T.axis.spatial(self.weights.tiles, task), 0, self.data.shape[0])

    def rows_of_tile(self, tile: Any, first: Any, end: Any) -> None:
        """Unpack a tile of weights into a panel, block by block of the reduction, and multiply rows by it."""
        shape, block = self.weights, self._block()
        blocks = -(-shape.reduction // block)
        vectors = PANEL_VECTORS[self.machine.vector_registers >= 32]
        panel = None  # words of float32 are what a panel would hold
        if shape.format.bits < WORD_BITS:
            panel = T.sblock_alloc_buffer((block, shape.tile_columns), "float32")
        sums = T.sblock_alloc_buffer((ROWS, vectors, self.lanes), "float32", scope="local")
        with T.serial(0, blocks) as b:
            if panel is not None:
                self._unpack(panel, tile, b, block)
            with T.serial(0, TILE_VECTORS // vectors) as part:
                place = (tile, part * (vectors * self.lanes), b, block)
                begin: Any = first
                for count in (ROWS, SMALL_ROWS, 1):
                    left = end - begin
                    with T.serial(0, left // count) as turn:
                        self._register_tile(panel, sums, place, begin + turn * count, count)
                    begin = begin + left // count * count

    def _block(self) -> int:
        """Choose how many places of the reduction are unpacked at once: whole words and groups."""
        shape = self.weights
        unit = max(shape.format.per_word, shape.format.group)
        most = self.machine.l2 // PANEL_PART // (4 * shape.tile_columns)
        return max(1, min(most, shape.reduction + unit - 1) // unit) * unit

    def _unpack(self, panel: Any, tile: Any, b: Any, block: int) -> None:
        """Fill the panel with weights of a block."""
        shape, per_word = self.weights, self.weights.format.per_word
        first = b * (block // per_word)
        with T.serial(0, tirx.min(block // per_word, shape.words - first)) as word:
            for place in range(per_word):
                for _, column in self.vectors():
                    with T.vectorized(0, self.lanes) as x:
                        weight = self.unpacked(self.words[tile, first + word, column + x], place)
                        if shape.format.is_integer:
                            weight = self._scaled(weight, place, tile, first + word, column + x)
                        T.buffer_store(panel, weight, [word * per_word + place, column + x])

    def _scaled(self, weight: Any, place: int, tile: Any, word: Any, column: Any) -> Any:
        """Give the weight that an integer stands for."""
        weights = self.weights.format
        g = word // (weights.group // weights.per_word)
        integer = weight * T.float32(1 / self.magnified(place))
        scale = self.scales[tile, g, column]
        if self.offsets is None:
            return scale * (integer - T.float32(weights.middle))
        return scale * integer - self.offsets[tile, g, column]

    def _register_tile(self, panel: Any, sums: Any, place: tuple[Any, Any, Any, int], first: Any, count: int) -> None:
        """Multiply ``count`` rows by vectors of the panel, and add them to what earlier blocks gave."""
        tile, column, b, block = place
        shape, lanes = self.weights, self.lanes
        pairs = [(i, c) for i in range(count) for c in range(int(sums.shape[1]))]
        with T.If(b == 0):
            with T.Then():
                for i, c in pairs:
                    with T.vectorized(0, lanes) as x:
                        T.buffer_store(sums, T.float32(0), [i, c, x])
            with T.Else():
                for i, c in pairs:
                    self._earlier(sums, i, c, first + i, self.column_of(tile) + column + c * lanes)
        with T.serial(0, tirx.min(block, shape.reduction - b * block)) as k:
            for i, c in pairs:
                with T.vectorized(0, lanes) as x:
                    at = column + c * lanes + x
                    if panel is None:
                        weight = T.reinterpret("float32", self.words[tile, b * block + k, at])
                    else:
                        weight = panel[k, at]
                    value = self.data[self.row_of_data(first + i), b * block + k] * weight
                    T.buffer_store(sums, sums[i, c, x] + value, [i, c, x])
        for i in range(count):
            self._store(tile, first + i, column, [_element(sums, i, c) for c in range(int(sums.shape[1]))])

    def _earlier(self, sums: Any, i: int, c: int, row: Any, begin: Any) -> None:
        """Read what earlier blocks gave of a vector, which columns that only fill up the last tile have no place in."""
        shape = self.weights
        if shape.columns % shape.tile_columns == 0:
            with T.vectorized(0, self.lanes) as x:
                T.buffer_store(sums, self.out[row, begin + x], [i, c, x])
        else:
            with T.serial(0, self.lanes) as x:
                T.buffer_store(sums, self.out[row, tirx.min(begin + x, shape.columns - 1)], [i, c, x])


def _element(sums: Any, *place: int) -> Any:
    return lambda x: sums[(*place, x)]
