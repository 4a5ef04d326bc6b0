"""Attention on tensor cores: a warp has 16 or 32 queries in registers, ``ldmatrix`` brings keys and values.

The result of ``mma.sync`` lies in a lane just as the next one wants its left factor, so that weights never leave the
registers (Dao, 2023, section 3.3). While a tile of keys and values is computed with, the next one is on its way to the
other of two stages. Exponentials are powers of two, the scale of the scores among their exponents; what was summed up
is scaled anew only when a score comes that is much larger than those before, so that few steps do.
"""

from __future__ import annotations

from math import e, log2
from typing import Any

from tvm import tirx
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from tvm_ext.schedules.cuda.attention_fill import TileFill, commit, wait_for_all
from tvm_ext.schedules.cuda.attention_parts import AttentionParts, cast, guarded, within
from tvm_ext.schedules.cuda.attention_softmax import LOWEST, across, safe_base
from tvm_ext.schedules.cuda.attention_tile import LONGER, SIDE, AttentionTile
from tvm_ext.schedules.cuda.exponential import fast_exp2
from tvm_ext.schedules.cuda.machine import WARP
from tvm_ext.schedules.cuda.open_extents import is_open, up
from tvm_ext.schedules.cuda.statements import kernel, load, loop, number, single, store, unrolled, vectorized

PLACES = 8
"""Elements of a fragment of 16 x 16 that a lane has."""

SLACK = 8.0
"""Powers of two by which a score may exceed what exponents are taken from: weights stay below 256, their sums are
float32."""


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
        self.bands = tile.warp_rows // SIDE
        self.tiles = up(parts.rows, tile.rows)
        self.steps = up(parts.length, tile.keys)
        self.stages = 2 if is_open(self.steps) else min(2, self.steps)
        scale = parts.scale()
        self.linear, self.power = scale is not None, (scale or 1.0) * log2(e)
        self.keys = self._buffer("keys", self.kind, "shared", self.stages, tile.keys, self.deep * SIDE + LONGER)
        self.values = self._buffer("values", self.kind, "shared", self.stages, tile.keys, self.chunks * SIDE + LONGER)
        self.query = self._buffer("query", self.kind, "local", self.bands * self.deep * PLACES)
        self.factor = self._buffer("factor", self.kind, "local", PLACES)
        self.weight = self._buffer("weight", self.kind, "local", self.bands * self.wide * PLACES)
        self.score = self._buffer("score", "float32", "local", self.bands * self.wide * PLACES)
        self.sums = self._buffer("sums", "float32", "local", self.bands * self.chunks * PLACES)
        self.largest, self.base, self.shift, self.change, self.total = (
            self._buffer(name, "float32", "local", 2 * self.bands)
            for name in ("largest", "base", "shift", "change", "total")
        )
        self.fill_keys, self.fill_values = (
            TileFill(parts, operand, turned, known, inner * SIDE, tile.keys, tile.threads, self.kind)
            for operand, turned, known, inner in (
                (parts.key, True, shape.depth, self.deep), (parts.value, False, shape.columns, self.chunks)
            )
        )  # fmt: skip

    def _buffer(self, name: str, dtype: str, scope: str, *sizes: int) -> Any:
        return tirx.decl_buffer([number(size) for size in sizes], dtype, name, scope=scope)

    def function(self) -> PrimFunc:
        buffers = [
            self.keys, self.values, self.query, self.factor, self.weight, self.score, self.sums, self.largest,
            self.base, self.shift, self.change, self.total,
        ]  # fmt: skip
        return kernel(self.func, "attention", self.parts.heads * self.tiles, self.tile.threads, buffers, self._body)

    def _body(self, grid: Any, thread: Any) -> list[Any]:
        tile = self.tile
        batch = self.parts.batch_index(grid // self.tiles)
        lane = thread % WARP
        # Rows and columns of the places of a lane: see :func:`tvm_ext.schedules.cuda.fragments.result_fragment`.
        row = grid % self.tiles * tile.rows + thread // WARP * tile.warp_rows + lane // 4
        column = lane % 4 * 2

        def fill(turn: Any) -> list[Any]:
            stage = turn % self.stages
            return [
                self.fill_keys.fill(self.keys, stage, batch, turn * tile.keys, thread),
                self.fill_values.fill(self.values, stage, batch, turn * tile.keys, thread),
                commit(),
            ]

        def step(turn: Any) -> list[Any]:
            # All threads are done with the other stage when they meet here.
            following = tirx.SeqStmt(_flat(fill(turn + 1)))
            return [
                *wait_for_all(),
                *([tirx.IfThenElse(turn < number(self.steps - 1), following, None)] if self.stages > 1 else []),
                self._scores(turn % self.stages, lane),
                self._softmax(batch, row, turn, column),
                self._add(turn % self.stages, lane),
            ]

        return [
            *fill(number(0)),
            unrolled(self.bands, lambda band: unrolled(self.deep, lambda k: self._query(
                batch, row + band * SIDE, k * SIDE + column, band * self.deep + k
            ))),
            unrolled(2 * self.bands, lambda r: [store(self.base, single(LOWEST), r), store(self.total, single(0), r)]),
            unrolled(self.bands * self.chunks * PLACES, lambda place: store(self.sums, single(0), place)),
            loop(self.steps, step),
            unrolled(2 * self.bands, lambda r: [
                *across("add", self.total, r, 4), store(self.total, single(1) / load(self.total, r), r)
            ]),
            unrolled(self.bands, lambda band: unrolled(self.chunks, lambda c: self._halves(lambda upper, right:
                self._result(
                    batch, row + band * SIDE + upper * 8, c * SIDE + right * 8 + column, band * 2 + upper,
                    self._place(band * self.chunks + c, upper, right, 0),
                )
            ))),
        ]  # fmt: skip

    @staticmethod
    def _halves(body: Any) -> Any:
        """Go through the pairs of a lane: the left and the right half, the upper and the lower one."""
        return unrolled(2, lambda right: unrolled(2, lambda upper: body(upper, right)))

    @staticmethod
    def _place(fragment: Any, upper: Any, right: Any, pair: Any) -> Any:
        return fragment * PLACES + right * 4 + upper * 2 + pair

    def _query(self, batch: list[Any], row: Any, depth: Any, fragment: Any) -> Any:
        """Load a fragment of queries; rows beyond the last are that one again, as they are not stored."""
        shape = self.parts.shape
        axis, together = self.parts.side_by_side(self.parts.query)
        neighbours = axis == 1 and together > 1 and shape.depth == self.deep * SIDE

        def pair_of(upper: Any, right: Any) -> Any:
            own = row + upper * 8
            own = tirx.min(own, number(self.parts.rows - 1)) if self.parts.rows_left(self.tile.rows) else own

            def one(pair: Any) -> Any:
                at = depth + right * 8 + pair
                value = cast(self.parts.element(self.parts.query, batch, own, at), self.kind)
                inside = within([(at, shape.depth, self.deep * SIDE)])
                value = guarded(inside, value, tirx.const(0, self.kind))
                return store(self.query, value, self._place(fragment, upper, right, pair))

            return vectorized(2, one) if neighbours else unrolled(2, one)

        return self._halves(pair_of)

    def _load(self, buffer: Any, stage: Any, first_key: Any, first: Any, lane: Any, turned: bool) -> Any:
        """Load a right factor of 16 x 16; ``turned`` if its depth is the key, along which no row lies."""
        stride = int(buffer.shape[2])
        # See :func:`tvm_ext.schedules.cuda.fragments.load_fragment`.
        inner, depth, side = lane % 8, lane % 16 // 8, lane // 16
        if turned:
            key, other = inner + 8 * depth, 8 * side
        else:
            key, other = inner + 8 * side, 8 * depth
        # What differs between the fragments of a step is a number, which the instruction adds.
        own = key * stride + other + stage * (self.tile.keys * stride)
        return tirx.Evaluate(
            T.ptx_legacy.ldmatrix(
                turned, 4, ".b16", self.factor.data, number(0), buffer.access_ptr("r"),
                own + (first_key * stride + first), dtype=self.kind,
            )
        )  # fmt: skip

    def _multiply(self, left: Any, left_fragment: Any, result: Any, result_fragment: Any) -> Any:
        """Multiply with the factor that was loaded, whose 16 columns take two instructions."""
        short = {"float16": "fp16", "bfloat16": "bf16"}[self.kind]
        # By its data alone TVM would not see this use of the left factor, and make pairs the elements of its buffer.
        return unrolled(2, lambda half: tirx.Evaluate(
            T.ptx_legacy.mma(
                "m16n8k16", "row", "col", short, short, "fp32", left.access_ptr("r"), left_fragment * PLACES,
                self.factor.data, half * 4, result.data, result_fragment * PLACES + half * 4, False,
                dtype="float32",
            )
        ))  # fmt: skip

    def _scores(self, stage: Any, lane: Any) -> list[Any]:
        return [
            unrolled(self.bands * self.wide * PLACES, lambda place: store(self.score, single(0), place)),
            unrolled(self.deep, lambda k: unrolled(self.wide, lambda n: [
                self._load(self.keys, stage, n * SIDE, k * SIDE, lane, turned=False),
                unrolled(self.bands, lambda band: self._multiply(
                    self.query, band * self.deep + k, self.score, band * self.wide + n
                )),
            ])),
        ]  # fmt: skip

    def _softmax(self, batch: list[Any], row: Any, turn: Any, column: Any) -> list[Any]:
        """Turn scores into weights, and scale what was summed up before where they grew."""
        rows = 2 * self.bands
        grows: Any = None
        for r in range(rows):
            test = load(self.largest, r) > load(self.base, r) + single(SLACK / self.power)
            grows = test if grows is None else tirx.Or(grows, test)

        def scale(r: Any) -> list[Any]:
            new = tirx.max(load(self.base, r), load(self.largest, r))
            change = fast_exp2((load(self.base, r) - safe_base(load(self.largest, r))) * single(self.power))
            return [
                store(self.largest, new, r),
                store(self.change, change, r),
                store(self.base, load(self.largest, r), r),
                store(self.total, load(self.total, r) * load(self.change, r), r),
            ]

        def scaled(band: Any, c: Any, upper: Any, right: Any, pair: Any) -> Any:
            place = self._place(band * self.chunks + c, upper, right, pair)
            return store(self.sums, load(self.sums, place) * load(self.change, band * 2 + upper), place)

        anew = [
            unrolled(rows, scale),
            unrolled(self.bands, lambda band: unrolled(self.chunks, lambda c: self._halves(
                lambda upper, right: unrolled(2, lambda pair: scaled(band, c, upper, right, pair))
            ))),
        ]  # fmt: skip
        return [
            *self._logits(batch, row, turn * self.tile.keys + column, turn),
            unrolled(rows, lambda r: store(self.largest, single(LOWEST), r)),
            self._each_score(lambda band, n, upper, right, pair: store(
                self.largest,
                tirx.max(
                    load(self.largest, band * 2 + upper),
                    load(self.score, self._place(band * self.wide + n, upper, right, pair)),
                ),
                band * 2 + upper,
            )),
            unrolled(rows, lambda r: across("max", self.largest, r, 4)),
            tirx.IfThenElse(grows, tirx.SeqStmt(_flat(anew)), None),
            unrolled(rows, lambda r: store(self.shift, safe_base(load(self.base, r)) * single(self.power), r)),
            self._each_score(self._weight),
            unrolled(self.bands * self.wide, lambda fragment: self._halves(lambda upper, right: self._rounded(
                self._place(fragment, upper, right, 0)
            ))),
        ]  # fmt: skip

    def _each_score(self, body: Any) -> Any:
        return unrolled(self.bands, lambda band: unrolled(self.wide, lambda n: self._halves(
            lambda upper, right: unrolled(2, lambda pair: body(band, n, upper, right, pair))
        )))  # fmt: skip

    def _weight(self, band: Any, n: Any, upper: Any, right: Any, pair: Any) -> list[Any]:
        place, r = self._place(band * self.wide + n, upper, right, pair), band * 2 + upper
        exponent = load(self.score, place) * single(self.power) - load(self.shift, r)
        return [
            store(self.score, fast_exp2(exponent), place),
            store(self.total, load(self.total, r) + load(self.score, place), r),
        ]

    def _rounded(self, place: Any) -> Any:
        """Make two weights the operands of the next product."""
        return vectorized(2, lambda pair: store(self.weight, cast(load(self.score, place + pair), self.kind),
                                                place + pair))  # fmt: skip

    def _logits(self, batch: list[Any], row: Any, key: Any, turn: Any) -> list[Any]:
        """Do to scores what is done before the softmax; those of keys beyond the last become minus infinity.

        A scale alone is left to the exponents.
        """
        parts, keys = self.parts, self.tile.keys

        def logit(band: Any, n: Any, upper: Any, right: Any, pair: Any) -> Any:
            at, own = key + n * SIDE + right * 8 + pair, row + band * SIDE + upper * 8
            # Masks have no place for rows beyond the last.
            own = tirx.min(own, number(parts.rows - 1)) if parts.rows_left(self.tile.rows) else own
            place = self._place(band * self.wide + n, upper, right, pair)
            value = load(self.score, place)
            value = value if self.linear else parts.logit_of(value, batch, own, at)
            return store(self.score, guarded(within([(at, parts.length, keys)]), value, single(LOWEST)), place)

        if not self.linear:
            return [self._each_score(logit)]
        if not parts.keys_left(keys):
            return []
        return [tirx.IfThenElse(turn >= number(self.steps - 1), self._each_score(logit), None)]

    def _add(self, stage: Any, lane: Any) -> Any:
        return unrolled(self.wide, lambda t: unrolled(self.chunks, lambda c: [
            self._load(self.values, stage, t * SIDE, c * SIDE, lane, turned=True),
            unrolled(self.bands, lambda band: self._multiply(
                self.weight, band * self.wide + t, self.sums, band * self.chunks + c
            )),
        ]))  # fmt: skip

    def _result(self, batch: list[Any], row: Any, column: Any, r: Any, place: Any) -> Any:
        """Store two neighbours of a row; ``total`` has the inverse of the sum of weights by now."""
        shape, (buffer, axes) = self.parts.shape, self.parts.result

        def one(pair: Any) -> Any:
            value = cast(load(self.sums, place + pair) * load(self.total, r), str(buffer.dtype))
            return store(buffer, value, *self.parts.place(batch, row, column + pair))

        inside = within([(row, self.parts.rows, self.tile.rows)])
        # An even number of columns ends with a pair.
        if axes[-1] == len(axes) - 1 and shape.columns % 2 == 0:
            statement, beyond = vectorized(2, one), within([(column, shape.columns, self.chunks * SIDE)])
            return _under(inside, _under(beyond, statement))
        return unrolled(2, lambda pair: _under(inside, _under(
            within([(column + pair, shape.columns, self.chunks * SIDE)]), one(pair)
        )))  # fmt: skip


def _under(condition: Any, statement: Any) -> Any:
    return statement if condition is None else tirx.IfThenElse(condition, statement, None)


def _flat(statements: Any) -> list[Any]:
    found: list[Any] = []
    for statement in statements:
        found += list(statement.seq) if isinstance(statement, tirx.SeqStmt) else [statement]
    return found
