"""Two loops that transpose become square tiles: rows loaded as vectors, transposed in registers, stored as vectors.

before: ``for x in range(64):  # tile 16     for y in range(48):  # simd 16     out[x*48 + y] = f(a[y*64 + x])``
after:  for every tile of 16 x 16: 16 vectors of ``a`` along ``x``, four rounds of shuffles that swap ``x`` and ``y``,
        ``f`` and 16 stores along ``y``; what is left at the edges is done in masked tiles

Where results go past the caches, the tiles of a block are stored to a buffer that stays in the L2 cache, and its rows
from there to memory: whatever is read and written of a row of memory lies together, and lines are written whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.relax_utils import substitute
from tvm_ext.schedules.simd.imported import PREFETCH, PREFETCH_ONCE
from tvm_ext.schedules.simd.lanes import holds_load
from tvm_ext.schedules.simd.prefetch import fetch
from tvm_ext.schedules.simd.stream import SMALLEST_STREAM, is_marked
from tvm_ext.schedules.simd.tile_marks import ONCE_ATTRIBUTE, STRIP_ATTRIBUTE
from tvm_ext.schedules.simd.tile_shapes import LINE, block_sides, strip_length
from tvm_ext.schedules.simd.vector import broadcast, element_type, operation, wide_type
from tvm_ext.schedules.simd.widen import NotVectorizable, Widener, uses

AHEAD = 2
"""Tiles below the one that is stored past the caches which are fetched. Measured on Zen 5: with one or four, transposes
take 1.02 to 1.05 times as long, without any 1.2 times.
"""


@dataclass(frozen=True)
class _Transposed:
    """A load that is contiguous along the outer loop: what stands for it, and the condition it is made under.

    ``load`` may be a choice between that and something that is not loaded, by where along the outer loop it is.

    ``stride`` is the distance in bytes between the vectors loaded for a tile.
    """

    placeholder: Any
    load: Any
    condition: Any
    stride: int


def tile_loops(outer: Any, side: int, analyzer: Any, staging: int = 0) -> Any:
    """Rewrite two nested loops as tiles of ``side`` by ``side``, through a buffer of ``staging`` bytes if not 0.

    Raises
    ------
    NotVectorizable
        If nothing is transposed, if a tile would have to be loaded lane by lane, or if a condition has to be met that
        is not the end of the outer loop.
    """
    inner = outer.body
    if isinstance(inner, tirx.For) and isinstance(inner.body, tirx.IfThenElse):
        return _tile_uneven_piece(outer, side, analyzer, staging)
    if not isinstance(inner, tirx.For) or not isinstance(inner.body, tirx.BufferStore):
        raise NotVectorizable("not two loops around one store")
    for loop in (outer, inner):
        if not (isinstance(loop.extent, prim.IntImm) and isinstance(loop.min, prim.IntImm) and int(loop.min) == 0):
            raise NotVectorizable("a loop of unknown length")
    return _Tiler(outer, inner, side, analyzer, staging).rewrite()


def _tile_uneven_piece(outer: Any, side: int, analyzer: Any, staging: int) -> Any:
    """Tile the piece of a loop, either of the two, that was cut into pieces of which the last one is shorter.

    before: ``for x in range(10):      for y ...:      if piece*10 + x < 37: store``
    after:  ``if piece*10 + 10 <= 37:  tiles of range(10)      else:  tiles of range(7)``
    """
    inner, guard = outer.body, outer.body.body
    condition = guard.condition
    if isinstance(condition, tvm.ir.Call) and operation(condition) == "likely":
        condition = condition.args[0]
    if guard.else_case is not None or not isinstance(condition, prim.LT):
        raise NotVectorizable("a condition that is no limit of a loop")
    cut = inner if uses(condition.a, inner.loop_var) else outer
    limit = analyzer.simplify(condition.b)
    found = tvm.sym.detect_linear_equation(analyzer.simplify(condition.a), [cut.loop_var])
    if (
        len(found) != 2
        or not all(isinstance(number, prim.IntImm) for number in (limit, found[0], cut.extent))
        or int(found[0]) != 1
    ):
        raise NotVectorizable("a condition that is no limit of a loop")
    first, extent = found[1], int(cut.extent)
    rest = int(limit) % extent
    if not (analyzer.can_prove(first < limit) and analyzer.can_prove_equal(tirx.floormod(first, extent), 0)):
        raise NotVectorizable("pieces of several lengths")

    def tiles(count: int) -> Any:
        x = tvm.ir.Var(cut.loop_var.name, cut.loop_var.ty)  # of another range than the loop it comes from
        store = substitute(guard.then_case, {cut.loop_var: x})
        number = tirx.const(count, element_type(cut.loop_var))
        rows, columns = ((x, number) if loop is cut else (loop.loop_var, loop.extent) for loop in (outer, inner))
        loop = tirx.For(columns[0], inner.min, columns[1], inner.kind, store, annotations=inner.annotations)
        whole = tirx.For(rows[0], outer.min, rows[1], outer.kind, loop, annotations=outer.annotations)
        return tile_loops(whole, side, analyzer, staging)

    return tirx.IfThenElse(first + extent <= limit, tiles(extent), tiles(rest) if rest else tirx.Evaluate(0))


class _Tiler:
    def __init__(self, outer: Any, inner: Any, side: int, analyzer: Any, staging: int) -> None:
        self._outer, self._inner, self._side, self._analyzer = outer, inner, side, analyzer
        self._staging = staging
        self._fetch = PREFETCH_ONCE if int((outer.annotations or {}).get(ONCE_ATTRIBUTE, 0)) else PREFETCH
        self._integer = element_type(outer.loop_var)
        for loop in (outer, inner):
            analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent))
        self._transposed: list[_Transposed] = []
        self._body = self._replace_loads(inner.body)
        if not self._transposed:
            raise NotVectorizable("nothing is transposed")

    def rewrite(self) -> Any:
        rows, columns = int(self._outer.extent), int(self._inner.extent)
        bits = tvm.DataType(element_type(self._inner.body.value)).bits
        if self._staging:
            return self._blocks(rows, columns, max(1, bits // 8))
        tiles = LINE * 8 // (self._side * bits) if is_marked(self._inner) else 1
        length = min(strip_length(found.stride, self._side, tiles) for found in self._transposed)
        length = min(length, int((self._outer.annotations or {}).get(STRIP_ATTRIBUTE, length)))
        zero = self._constant(0)
        together = self._interleaved(columns)
        if together and rows >= together:
            done = rows // together * together
            parts = self._pieces(lambda x, count: [self._interleave(x, count, columns)], together, zero, done)
            return _sequence([*parts, *(self._strip(rows - done, zero, columns, done) if rows > done else [])])
        return _sequence(self._pieces(lambda y, count: self._strip(rows, y, count), length, zero, columns))

    def _interleaved(self, columns: int) -> int:
        """Rows that go together where all ``columns`` are written one behind the other as they are read: half a line.

        0 where they are not, or where more is done with them than a change of their type.
        """
        store = self._inner.body
        value = self._body.value.value if isinstance(self._body.value, prim.Cast) else self._body.value
        if columns not in (2, 3, 4) or len(store.indices) != 1 or not value.same_as(self._transposed[0].placeholder):
            return 0
        variables = [self._outer.loop_var, self._inner.loop_var]
        found = tvm.sym.detect_linear_equation(self._analyzer.simplify(store.indices[0]), variables)
        if len(found) != 3 or [int(step) if isinstance(step, prim.IntImm) else 0 for step in found[:2]] != [columns, 1]:
            return 0
        return LINE * 8 // (tvm.DataType(element_type(store.value)).bits * 2)

    def _interleave(self, x: Any, rows: int, columns: int) -> Any:
        """Load ``columns`` vectors of ``rows`` lanes, and store them lane by lane in turn."""
        statements: list[Any] = []
        zero = self._constant(0)
        vectors = self._load(self._transposed[0], x, (rows, rows), zero, columns, statements)
        value = _shuffle(vectors, [column * rows + row for row in range(rows) for column in range(columns)])
        store = self._inner.body
        if isinstance(self._body.value, prim.Cast):
            value = prim.Cast(wide_type(element_type(store.value), rows * columns), value)
        place = substitute(store.indices[0], {self._outer.loop_var: x, self._inner.loop_var: zero})
        index = prim.Ramp(self._analyzer.simplify(place), self._constant(1), rows * columns)
        statements.append(tirx.BufferStore(store.buffer, value, [index]))
        return tirx.SeqStmt(statements)

    def _blocks(self, rows: int, columns: int, size: int) -> Any:
        """Emit blocks of the result, of elements of ``size`` bytes, each by way of a buffer."""
        block_rows, block_columns = block_sides(rows, columns, self._side, size, self._staging)
        # Rows a power of two apart would meet in the same sets of the cache.
        pitch = -(-min(block_columns, columns) // self._side) * self._side + LINE // size
        shape = (min(block_rows, rows) * pitch,)
        staging = tirx.decl_buffer(shape, element_type(self._inner.body.value), "staging")
        zero = self._constant(0)

        def along_x(y: Any, height: int) -> list[Any]:
            def block(x: Any, width: int) -> list[Any]:
                index = (self._outer.loop_var - x) * pitch + (self._inner.loop_var - y)
                return [
                    *self._fill(staging, index, x, width, y, height),
                    self._drain(staging, index, x, width, y, height),
                ]

            return self._pieces(block, block_rows, zero, rows)

        return tirx.SeqStmt([tirx.AllocBuffer(staging), *self._pieces(along_x, block_columns, zero, columns)])

    def _fill(self, staging: Any, index: Any, x: Any, rows: int, y: Any, columns: int) -> list[Any]:
        """Emit the tiles of a block, from ``x`` and ``y`` on, stored to the buffer."""
        body = tirx.BufferStore(staging, self._body.value, [index])

        def along_x(first: Any, count: int) -> list[Any]:
            return self._pieces(
                lambda x, rows: [self._tile(x, rows, first, count, body, streams=False)], self._side, x, rows
            )

        return self._pieces(along_x, self._side, y, columns)

    def _drain(self, staging: Any, index: Any, x: Any, rows: int, y: Any, columns: int) -> Any:
        """Emit the rows of a block, from the buffer to where they belong."""
        store = self._inner.body
        lanes = self._aligned_lanes(store)
        store = tirx.BufferStore(store.buffer, tirx.BufferLoad(staging, [index]), store.indices)
        row = tvm.ir.Var("row", self._outer.loop_var.ty)
        zero, count = self._constant(0), self._constant(rows)
        self._analyzer.bind(row, tvm.ir.Range(zero, count))
        store = substitute(store, {self._outer.loop_var: x + row})

        def vector(first: Any, active: int) -> list[Any]:
            widener = Widener(self._inner.loop_var, first, lanes, active, self._analyzer, streams=True)
            return [widener.statement(store)]

        body = _sequence(self._pieces(vector, lanes, y, columns))
        return tirx.For(row, zero, count, tirx.ForKind.SERIAL, body)

    def _aligned_lanes(self, store: Any) -> int:
        """Give the elements of the longest vectors aligned in all rows, those of a tile where none can go past.

        Parts of a line that are stored past the caches one after the other leave together, but not beside one that is
        stored through them.
        """
        found = tvm.sym.detect_linear_equation(self._analyzer.simplify(store.indices[0]), [self._outer.loop_var])
        stride = int(found[0]) if len(found) == 2 and isinstance(found[0], prim.IntImm) else 0
        lanes = gcd(stride, self._side)
        return lanes if lanes * tvm.DataType(element_type(store.value)).bits // 8 >= SMALLEST_STREAM else self._side

    def _strip(self, rows: int, y: Any, columns: int, start: int = 0) -> list[Any]:
        """Emit the tiles of ``rows`` rows from ``start``, and of some columns from ``y`` on, row by row."""
        streams = is_marked(self._inner)

        def along_y(x: Any, rows: int) -> list[Any]:
            def tile(first: Any, count: int) -> list[Any]:
                fetches = self._fetch_below(x, first, count) if streams else []
                return [*fetches, self._tile(x, rows, first, count, self._body, streams)]

            return self._pieces(tile, self._side, y, columns)

        return self._pieces(along_y, self._side, self._constant(start), rows)

    def _fetch_below(self, x: Any, y: Any, columns: int) -> list[Any]:
        """Fetch what the tile some rows of tiles below that at ``x`` and ``y`` will load, of memory or not."""
        below = x + self._side * AHEAD
        places = [
            (found.load.source, {self._outer.loop_var: below, self._inner.loop_var: y + column}, found.load.indices[0])
            for found in self._transposed
            for column in range(columns)
        ]
        return [
            fetch(buffer, self._analyzer.simplify(substitute(index, at)), self._fetch) for buffer, at, index in places
        ]

    def _pieces(self, emit: Callable[[Any, int], list[Any]], size: int, start: Any, extent: int) -> list[Any]:
        """Emit a loop over whole pieces of one axis, and what is left; ``emit`` gets the first index and the count."""
        whole, rest = divmod(extent, size)
        parts: list[Any] = []
        if whole:
            number = tvm.ir.Var("piece", self._outer.loop_var.ty)
            zero, count = self._constant(0), self._constant(whole)
            self._analyzer.bind(number, tvm.ir.Range(zero, count))
            parts.append(
                tirx.For(number, zero, count, tirx.ForKind.SERIAL, _sequence(emit(start + number * size, size)))
            )
        if rest:
            parts += emit(start + whole * size, rest)
        return parts

    def _tile(self, x: Any, rows: int, y: Any, columns: int, body: Any, streams: bool) -> Any:
        statements: list[Any] = []
        vectors = [self._load_transposed(found, x, rows, y, columns, statements) for found in self._transposed]
        for row in range(rows):
            widener = Widener(self._inner.loop_var, y, self._side, columns, self._analyzer, streams=streams)
            for found, along_y in zip(self._transposed, vectors, strict=True):
                widener.define(found.placeholder, along_y[row])
            position = self._analyzer.simplify(x + row)
            statements.append(widener.statement(substitute(body, {self._outer.loop_var: position})))
        return tirx.SeqStmt(statements)

    def _load_transposed(
        self, found: _Transposed, x: Any, rows: int, y: Any, columns: int, statements: list[Any]
    ) -> list[Any]:
        """Load ``columns`` vectors along x, and return the vectors along y."""
        zero = broadcast(tirx.const(0, element_type(found.load)), self._side)
        vectors = self._load(found, x, (self._side, rows), y, columns, statements)
        return self._transpose(vectors + [zero] * (self._side - columns), statements)

    def _load(
        self, found: _Transposed, x: Any, lanes: tuple[int, int], y: Any, columns: int, statements: list[Any]
    ) -> list[Any]:
        """Load ``columns`` vectors along x, of so many lanes, of which so many are used."""
        zero = broadcast(tirx.const(0, element_type(found.load)), lanes[0])
        vectors: list[Any] = []
        for column in range(columns):
            position = self._analyzer.simplify(y + column)
            load = substitute(found.load, {self._inner.loop_var: position})
            vector = broadcast(Widener(self._outer.loop_var, x, *lanes, self._analyzer).value(load), lanes[0])
            if found.condition is not None:
                condition = substitute(found.condition, {self._inner.loop_var: position})
                condition = self._analyzer.simplify(condition)
                vector = tirx.if_then_else(condition, vector, zero)
            vectors.append(self._bind(vector, statements))
        return vectors

    def _transpose(self, vectors: list[Any], statements: list[Any]) -> list[Any]:
        """Transpose a square by swapping the off-diagonal blocks of ever smaller squares."""
        distance = self._side // 2
        while distance:
            low = [lane if not lane & distance else self._side + lane - distance for lane in range(self._side)]
            high = [lane + distance if not lane & distance else self._side + lane for lane in range(self._side)]
            for row in range(self._side):
                if not row & distance:
                    pair = [vectors[row], vectors[row + distance]]
                    vectors[row] = self._bind(_shuffle(pair, low), statements)
                    vectors[row + distance] = self._bind(_shuffle(pair, high), statements)
            distance //= 2
        return vectors

    def _bind(self, value: Any, statements: list[Any]) -> Any:
        variable = tvm.ir.Var("row", value.ty)
        statements.append(tirx.Bind(variable, value))
        return variable

    def _replace_loads(self, store: Any) -> Any:
        """Put a variable in the place of every load that is to be transposed."""
        conditions: list[Any] = []

        def call(node: Any, mutator: Any) -> Any:
            if operation(node) != "if_then_else":
                return mutator.default_mutate(node)
            condition, then, otherwise = node.args
            stride = self._transposed_stride(then) if isinstance(then, tvm.ir.TensorLoad) else 0
            if stride and uses(condition, self._outer.loop_var) and not holds_load(otherwise):
                return transposed(node, stride)  # some of the loaded lanes only: the choice is made as they are loaded
            conditions.append(condition)
            then = mutator.mutate(then)
            conditions[-1] = prim.Not(condition)
            otherwise = mutator.mutate(otherwise)
            conditions.pop()
            return tirx.if_then_else(condition, then, otherwise)

        def load(node: Any, _mutator: Any) -> Any:
            stride = self._transposed_stride(node)
            if not stride:
                return node
            return transposed(node, stride)

        def transposed(value: Any, stride: int) -> Any:
            condition = None
            for part in conditions:
                condition = part if condition is None else prim.And(condition, part)
            if condition is not None and uses(condition, self._outer.loop_var):
                refused.append("a condition along the loaded vectors")
                return value
            placeholder = tvm.ir.Var("transposed", value.ty)
            self._transposed.append(_Transposed(placeholder, value, condition, stride))
            return placeholder

        # An exception raised inside a callback comes out of C++ as another class, so refusals are collected.
        refused: list[str] = []
        value = tvm_ffi.structural_mutate(store.value, [(tvm.ir.Call, call), (tvm.ir.TensorLoad, load)])
        if refused:
            raise NotVectorizable(refused[0])
        return tirx.BufferStore(store.buffer, value, store.indices)

    def _transposed_stride(self, load: Any) -> int:
        """Give the distance in bytes of the vectors of a load that is transposed; 0 for other loads."""
        if len(load.indices) != 1:
            return 0
        variables = [self._outer.loop_var, self._inner.loop_var]
        found = tvm.sym.detect_linear_equation(self._analyzer.simplify(load.indices[0]), variables)
        if len(found) != 3 or not all(isinstance(stride, prim.IntImm) for stride in found[:2]):
            return 0
        along, across = int(found[0]), int(found[1])
        return across * tvm.DataType(element_type(load)).bits // 8 if along == 1 and across not in (0, 1) else 0

    def _constant(self, number: int) -> Any:
        return tirx.const(number, self._integer)


def _sequence(parts: Sequence[Any]) -> Any:
    return parts[0] if len(parts) == 1 else tirx.SeqStmt(list(parts))


def _shuffle(vectors: Sequence[Any], lanes: Sequence[int]) -> Any:
    return prim.Shuffle(list(vectors), [tirx.const(lane, "int32") for lane in lanes])
