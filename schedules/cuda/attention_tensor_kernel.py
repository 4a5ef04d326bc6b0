"""Attention on tensor cores: a warp has 16 queries in registers, ``ldmatrix`` brings keys and values.

The result of ``mma.sync`` lies in a lane just as the next one wants its left factor, so that weights never leave the
registers (Dao, 2023, section 3.3).
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from tvm_ext.schedules.cuda.attention_parts import AttentionParts, cast, guarded, within
from tvm_ext.schedules.cuda.attention_softmax import LOWEST, across, safe_base
from tvm_ext.schedules.cuda.attention_tile import SIDE, AttentionTile
from tvm_ext.schedules.cuda.machine import WARP
from tvm_ext.schedules.cuda.statements import kernel, load, loop, number, single, store, unrolled, vectorized

PLACES = 8
"""Elements of a fragment of 16 x 16 that a lane has."""

LONGER = 8
"""Elements that a row in shared memory is longer than it need be: ``ldmatrix`` meets no bank twice."""


def tensor_kernel(func: PrimFunc, parts: AttentionParts, tile: AttentionTile) -> PrimFunc:
    """Write the kernel."""
    return _Tensor(func, parts, tile).function()


class _Tensor:
    def __init__(self, func: PrimFunc, parts: AttentionParts, tile: AttentionTile) -> None:
        self.func, self.parts, self.tile = func, parts, tile
        shape = parts.shape
        self.kind = shape.operand
        self.deep, self.chunks, self.wide = (
            -(-extent // SIDE) for extent in (shape.depth, shape.columns, tile.keys)
        )  # fmt: skip
        self.tiles = -(-shape.rows // tile.rows)
        self.steps = -(-shape.length // tile.keys)
        self.keys = self._buffer("keys", self.kind, "shared", tile.keys, self.deep * SIDE + LONGER)
        self.values = self._buffer("values", self.kind, "shared", tile.keys, self.chunks * SIDE + LONGER)
        self.query = self._buffer("query", self.kind, "local", self.deep * PLACES)
        self.factor = self._buffer("factor", self.kind, "local", PLACES)
        self.weight = self._buffer("weight", self.kind, "local", self.wide * PLACES)
        self.score = self._buffer("score", "float32", "local", self.wide * PLACES)
        self.sums = self._buffer("sums", "float32", "local", self.chunks * PLACES)
        self.largest, self.before, self.total = (
            self._buffer(name, "float32", "local", 2) for name in ("largest", "before", "total")
        )

    def _buffer(self, name: str, dtype: str, scope: str, *sizes: int) -> Any:
        return tirx.decl_buffer([number(size) for size in sizes], dtype, name, scope=scope)

    def function(self) -> PrimFunc:
        buffers = [
            self.keys, self.values, self.query, self.factor, self.weight, self.score, self.sums, self.largest,
            self.before, self.total,
        ]  # fmt: skip
        return kernel(
            self.func, "attention", self.parts.shape.batch * self.tiles, self.tile.threads, buffers, self._body
        )

    def _body(self, grid: Any, thread: Any) -> list[Any]:
        parts, shape, tile = self.parts, self.parts.shape, self.tile
        batch = parts.batch_index(grid // self.tiles)
        lane = thread % WARP
        # Rows and columns of the places of a lane: see :func:`tvm_ext.schedules.cuda.fragments.result_fragment`.
        row = grid % self.tiles * tile.rows + thread // WARP * SIDE + lane // 4
        column = lane % 4 * 2

        def step(turn: Any) -> list[Any]:
            key = turn * tile.keys
            return [
                self._fill(self.keys, parts.key, batch, key, self.deep * SIDE, shape.depth, thread, turned=True),
                self._fill(self.values, parts.value, batch, key, self.chunks * SIDE, shape.columns, thread),
                self._scores(lane),
                self._softmax(batch, row, key + column),
                self._add(lane),
            ]

        return [
            unrolled(self.deep, lambda k: self._places(lambda upper, right, pair: self._query(
                batch, row + upper * 8, k * SIDE + right * 8 + column + pair, k, upper, right, pair
            ))),
            unrolled(2, lambda upper: [
                store(self.largest, single(LOWEST), upper), store(self.total, single(0), upper)
            ]),
            unrolled(self.chunks * PLACES, lambda place: store(self.sums, single(0), place)),
            loop(self.steps, step),
            unrolled(2, lambda upper: across("add", self.total, upper, 4)),
            unrolled(self.chunks, lambda c: self._places(lambda upper, right, pair: self._result(
                batch, row + upper * 8, c * SIDE + right * 8 + column + pair, c, upper, right, pair
            ))),
        ]  # fmt: skip

    @staticmethod
    def _places(body: Any) -> Any:
        """Go through the places of a lane: the upper and the lower half, the left and the right one, and pairs."""
        return unrolled(2, lambda right: unrolled(2, lambda upper: unrolled(2, lambda pair: body(upper, right, pair))))

    @staticmethod
    def _place(fragment: Any, upper: Any, right: Any, pair: Any) -> Any:
        return fragment * PLACES + right * 4 + upper * 2 + pair

    def _query(self, batch: list[Any], row: Any, depth: Any, k: Any, upper: Any, right: Any, pair: Any) -> Any:
        shape = self.parts.shape
        value = cast(self.parts.element(self.parts.query, batch, row, depth), self.kind)
        inside = within([(row, shape.rows, self.tiles * self.tile.rows), (depth, shape.depth, self.deep * SIDE)])
        value = guarded(inside, value, tirx.const(0, self.kind))
        return store(self.query, value, self._place(k, upper, right, pair))

    def _fill(
        self, buffer: Any, operand: Any, batch: list[Any], first: Any, inner: int, known: int, thread: Any,
        turned: bool = False,
    ) -> Any:  # fmt: skip
        """Fill a tile, a key a row; what is beyond the tensor becomes zero."""
        shape, tile = self.parts.shape, self.tile
        axis, together = self.parts.side_by_side(operand)
        deep = (axis == 1) != turned
        inside_always = shape.length % tile.keys == 0 and inner == known
        # A vector under a condition would be taken apart.
        wide = together if deep and inside_always else 1
        while tile.keys * inner % (tile.threads * wide):
            wide //= 2

        def element(turn: Any) -> Any:
            flat = (turn * tile.threads + thread) * wide
            at, depth = (flat // inner, flat % inner) if deep else (flat % tile.keys, flat // tile.keys)

            def one(place: Any) -> Any:
                index = (depth + place, first + at) if turned else (first + at, depth + place)
                value = cast(self.parts.element(operand, batch, *index), self.kind)
                inside = within([(first + at, shape.length, self.steps * tile.keys), (depth + place, known, inner)])
                return store(buffer, guarded(inside, value, tirx.const(0, self.kind)), at, depth + place)

            return vectorized(wide, one)

        return unrolled(tile.keys * inner // tile.threads // wide, element)

    def _load(self, buffer: Any, first_key: Any, first: Any, lane: Any, turned: bool) -> Any:
        """Load a right factor of 16 x 16; ``turned`` if its depth is the key, along which no row lies."""
        stride = int(buffer.shape[1])
        # See :func:`tvm_ext.schedules.cuda.fragments.load_fragment`.
        inner, depth, side = lane % 8, lane % 16 // 8, lane // 16
        if turned:
            key, other = first_key + inner + 8 * depth, first + 8 * side
        else:
            key, other = first_key + inner + 8 * side, first + 8 * depth
        return tirx.Evaluate(
            T.ptx_legacy.ldmatrix(
                turned, 4, ".b16", self.factor.data, number(0), buffer.access_ptr("r"), key * stride + other,
                dtype=self.kind,
            )
        )  # fmt: skip

    def _multiply(self, left: Any, left_fragment: Any, result: Any, result_fragment: Any) -> list[Any]:
        """Multiply with the factor that was loaded, whose 16 columns take two instructions."""
        short = {"float16": "fp16", "bfloat16": "bf16"}[self.kind]
        return [
            tirx.Evaluate(
                T.ptx_legacy.mma(
                    "m16n8k16", "row", "col", short, short, "fp32", left.data, left_fragment * PLACES,
                    self.factor.data, number(4 * half), result.data, result_fragment * PLACES + 4 * half, False,
                    dtype="float32",
                )
            )
            for half in (0, 1)
        ]  # fmt: skip

    def _scores(self, lane: Any) -> list[Any]:
        return [
            unrolled(self.wide * PLACES, lambda place: store(self.score, single(0), place)),
            unrolled(self.deep, lambda k: unrolled(self.wide, lambda n: [
                self._load(self.keys, n * SIDE, k * SIDE, lane, turned=False),
                *self._multiply(self.query, k, self.score, n),
            ])),
        ]  # fmt: skip

    def _softmax(self, batch: list[Any], row: Any, key: Any) -> list[Any]:
        """Turn scores into weights, and scale what was summed up before."""
        shape = self.parts.shape

        def logit(n: Any, upper: Any, right: Any, pair: Any) -> Any:
            at, own = key + n * SIDE + right * 8 + pair, row + upper * 8
            # Masks have no place for rows beyond the last.
            own = tirx.min(own, number(shape.rows - 1)) if self.tiles * self.tile.rows > shape.rows else own
            place = self._place(n, upper, right, pair)
            value = self.parts.logit_of(load(self.score, place), batch, own, at)
            inside = within([(at, shape.length, self.steps * self.tile.keys)])
            return [
                store(self.score, guarded(inside, value, single(LOWEST)), place),
                store(self.largest, tirx.max(load(self.largest, upper), load(self.score, place)), upper),
            ]

        def weight(n: Any, upper: Any, right: Any, pair: Any) -> Any:
            place = self._place(n, upper, right, pair)
            value = tirx.exp(load(self.score, place) - safe_base(load(self.largest, upper)))
            return [
                store(self.score, value, place),
                store(self.total, load(self.total, upper) + load(self.score, place), upper),
                store(self.weight, cast(load(self.score, place), self.kind), place),
            ]

        def scale(upper: Any) -> list[Any]:
            base = safe_base(load(self.largest, upper))
            return [
                store(self.before, tirx.exp(load(self.before, upper) - base), upper),
                store(self.total, load(self.total, upper) * load(self.before, upper), upper),
            ]

        def scaled(c: Any, upper: Any, right: Any, pair: Any) -> Any:
            place = self._place(c, upper, right, pair)
            return store(self.sums, load(self.sums, place) * load(self.before, upper), place)

        return [
            unrolled(2, lambda upper: store(self.before, load(self.largest, upper), upper)),
            unrolled(self.wide, lambda n: self._places(lambda *place: logit(n, *place))),
            unrolled(2, lambda upper: [*across("max", self.largest, upper, 4), *scale(upper)]),
            unrolled(self.wide, lambda n: self._places(lambda *place: weight(n, *place))),
            unrolled(self.chunks, lambda c: self._places(lambda *place: scaled(c, *place))),
        ]

    def _add(self, lane: Any) -> Any:
        return unrolled(self.wide, lambda t: unrolled(self.chunks, lambda c: [
            self._load(self.values, t * SIDE, c * SIDE, lane, turned=True),
            *self._multiply(self.weight, t, self.sums, c),
        ]))  # fmt: skip

    def _result(self, batch: list[Any], row: Any, column: Any, c: Any, upper: Any, right: Any, pair: Any) -> Any:
        shape, buffer = self.parts.shape, self.parts.result[0]
        value = load(self.sums, self._place(c, upper, right, pair)) / load(self.total, upper)
        statement = store(buffer, cast(value, str(buffer.dtype)), *self.parts.place(batch, row, column))
        inside = within([
            (row, shape.rows, self.tiles * self.tile.rows), (column, shape.columns, self.chunks * SIDE)
        ])  # fmt: skip
        return statement if inside is None else tirx.IfThenElse(inside, statement, None)
