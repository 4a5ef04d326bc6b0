"""Attention on ordinary arithmetic: 16 threads share 4 rows of a tile of scores, sums of the values stay with them."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx import PrimFunc

from tvm_ext.schedules.cuda.attention_parts import AttentionParts, guarded, within
from tvm_ext.schedules.cuda.attention_softmax import LOWEST, across, safe_base
from tvm_ext.schedules.cuda.attention_tile import SIDE, AttentionTile
from tvm_ext.schedules.cuda.machine import WARP
from tvm_ext.schedules.cuda.open_extents import up
from tvm_ext.schedules.cuda.statements import (
    kernel,
    load,
    loop,
    number,
    sequence,
    single,
    store,
    unrolled,
    vectorized,
)

ROWS = 4
"""Rows of a thread."""

BLOCK = 8
"""Neighbours in memory that make a sector of 32 bytes."""


def plain_kernel(func: PrimFunc, parts: AttentionParts, tile: AttentionTile) -> PrimFunc:
    """Write the kernel.

    Queries and keys lie in shared memory depth by depth, so that a thread loads its rows and columns at once; values
    row by row. Weights go through shared memory from the threads that have them to those that multiply with them.
    """
    return _Plain(func, parts, tile).function()


class _Plain:
    def __init__(self, func: PrimFunc, parts: AttentionParts, tile: AttentionTile) -> None:
        self.func, self.parts, self.tile = func, parts, tile
        shape = parts.shape
        self.wide = tile.keys // SIDE
        self.chunks = -(-shape.columns // SIDE)
        # Four elements more keep vectors aligned, and most of what is stored side by side in different banks.
        shared = {
            "queries": (shape.depth, tile.rows + 4),
            "keys": (shape.depth, tile.keys + 4),
            "values": (tile.keys, self.chunks * SIDE),
            "weights": (tile.rows, tile.keys + 4),
        }
        own = {
            "score": (ROWS, self.wide), "row": (ROWS,), "column": (self.wide,), "largest": (ROWS,), "before": (ROWS,),
            "total": (ROWS,), "sums": (ROWS, self.chunks), "factor": (self.chunks,),
        }  # fmt: skip
        self.buffers = {
            name: tirx.decl_buffer([number(size) for size in sizes], "float32", name, scope=scope)
            for scope, group in (("shared", shared), ("local", own))
            for name, sizes in group.items()
        }

    def function(self) -> PrimFunc:
        tile = self.tile
        self.tiles = up(self.parts.rows, tile.rows)
        return kernel(
            self.func, "attention", self.parts.heads * self.tiles, tile.threads, list(self.buffers.values()), self._body
        )

    def _body(self, grid: Any, thread: Any) -> list[Any]:
        tile, of = self.tile, self.buffers
        batch = self.parts.batch_index(grid // self.tiles)
        first = grid % self.tiles * tile.rows
        group, lane = thread // SIDE * ROWS, thread % SIDE

        def step(turn: Any) -> list[Any]:
            key = turn * tile.keys
            return [
                self._fill("keys", self.parts.key, batch, key, self.parts.length, thread),
                self._fill("values", self.parts.value, batch, key, self.parts.length, thread),
                self._scores(group, lane),
                self._softmax(batch, first + group, key + lane * self.wide),
                unrolled(ROWS, lambda r: vectorized(
                    self.wide, lambda c: store(of["weights"], load(of["score"], r, c), group + r, lane * self.wide + c)
                )),
                self._add(group, lane),
            ]  # fmt: skip

        return [
            # The length of a row is what is used of it: without this, TVM would take the extra elements away.
            [
                store(of[name], single(0), 0, int(of[name].shape[1]) - 1) for name in ("queries", "keys", "weights")
            ],
            self._fill("queries", self.parts.query, batch, first, self.parts.rows, thread),
            unrolled(ROWS, lambda r: [
                store(of["largest"], single(LOWEST), r),
                store(of["total"], single(0), r),
                unrolled(self.chunks, lambda c: store(of["sums"], single(0), r, c)),
            ]),
            loop(up(self.parts.length, tile.keys), step),
            unrolled(ROWS, lambda r: across("add", of["total"], r, SIDE)),
            unrolled(ROWS, lambda r: unrolled(self.chunks, lambda c: self._result(
                batch, first + group + r, lane, r, c
            ))),
        ]  # fmt: skip

    def _fill(self, name: str, operand: Any, batch: list[Any], first: Any, extent: Any, thread: Any) -> Any:
        """Fill a tile; what is beyond the tensor becomes zero."""
        shape, tile = self.parts.shape, self.tile
        outer = tile.rows if name == "queries" else tile.keys
        inner = self.chunks * SIDE if name == "values" else shape.depth
        known = shape.columns if name == "values" else shape.depth
        # The key is written with its depth first.
        deep = (self.parts.side_by_side(operand)[0] == 1) != (name == "keys")
        total, threads = outer * inner, tile.threads

        def element(turn: Any) -> Any:
            flat = turn * threads + thread
            if deep and name != "values" and inner % BLOCK == 0:
                # A warp takes 4 rows of 8 elements: whole sectors of memory, and each its own bank.
                part, place = flat // WARP, flat % WARP
                at = part // (inner // BLOCK) * (WARP // BLOCK) + place // BLOCK
                depth = part % (inner // BLOCK) * BLOCK + place % BLOCK
            else:
                at, depth = (flat // inner, flat % inner) if deep else (flat % outer, flat // outer)
            index = (depth, first + at) if name == "keys" else (first + at, depth)
            value = self.parts.element(operand, batch, *index)
            inside = within([(first + at, extent, outer), (depth, known, inner)])
            place = (at, depth) if name == "values" else (depth, at)
            statement = store(self.buffers[name], guarded(inside, value, single(0)), *place)
            return statement if total % threads == 0 else tirx.IfThenElse(flat < number(total), statement, None)

        return loop(-(-total // threads), element)

    def _scores(self, group: Any, lane: Any) -> list[Any]:
        of, wide = self.buffers, self.wide

        def depth(k: Any) -> list[Any]:
            return [
                vectorized(ROWS, lambda r: store(of["row"], load(of["queries"], k, group + r), r)),
                vectorized(wide, lambda c: store(of["column"], load(of["keys"], k, lane * wide + c), c)),
                unrolled(ROWS, lambda r: unrolled(wide, lambda c: store(
                    of["score"], load(of["score"], r, c) + load(of["row"], r) * load(of["column"], c), r, c
                ))),
            ]  # fmt: skip

        clear = unrolled(ROWS, lambda r: unrolled(wide, lambda c: store(of["score"], single(0), r, c)))
        return [clear, loop(self.parts.shape.depth, depth)]

    def _softmax(self, batch: list[Any], row: Any, key: Any) -> list[Any]:
        """Turn scores into weights, and scale what was summed up before."""
        of, parts, tile, wide = self.buffers, self.parts, self.tile, self.wide

        def logit(r: Any, c: Any) -> Any:
            # Masks have no place for rows beyond the last.
            last = tirx.min(row + r, number(parts.rows - 1)) if parts.rows_left(tile.rows) else row + r
            value = parts.logit_of(load(of["score"], r, c), batch, last, key + c)
            inside = within([(key + c, parts.length, tile.keys)])
            return store(of["score"], guarded(inside, value, single(LOWEST)), r, c)

        def largest(r: Any) -> list[Any]:
            def more(c: Any) -> Any:
                return store(of["largest"], tirx.max(load(of["largest"], r), load(of["score"], r, c)), r)

            return [
                store(of["before"], load(of["largest"], r), r),
                unrolled(wide, more),
                *across("max", of["largest"], r, SIDE),
            ]

        def weights(r: Any) -> list[Any]:
            base = safe_base(load(of["largest"], r))
            scale = load(of["before"], r)
            return [
                store(of["before"], tirx.exp(load(of["before"], r) - base), r),
                store(of["total"], load(of["total"], r) * scale, r),
                unrolled(wide, lambda c: [
                    store(of["score"], tirx.exp(load(of["score"], r, c) - base), r, c),
                    store(of["total"], load(of["total"], r) + load(of["score"], r, c), r),
                ]),
                unrolled(self.chunks, lambda c: store(of["sums"], load(of["sums"], r, c) * scale, r, c)),
            ]  # fmt: skip

        return [
            unrolled(ROWS, lambda r: unrolled(wide, lambda c: logit(r, c))),
            unrolled(ROWS, largest),
            unrolled(ROWS, weights),
        ]

    def _add(self, group: Any, lane: Any) -> Any:
        of = self.buffers

        def key(t: Any) -> list[Any]:
            return [
                unrolled(ROWS, lambda r: store(of["row"], load(of["weights"], group + r, t), r)),
                unrolled(self.chunks, lambda c: store(of["factor"], load(of["values"], t, c * SIDE + lane), c)),
                unrolled(ROWS, lambda r: unrolled(self.chunks, lambda c: store(
                    of["sums"], load(of["sums"], r, c) + load(of["row"], r) * load(of["factor"], c), r, c
                ))),
            ]  # fmt: skip

        return loop(self.tile.keys, key)

    def _result(self, batch: list[Any], row: Any, lane: Any, r: Any, c: Any) -> Any:
        of, shape = self.buffers, self.parts.shape
        column = c * SIDE + lane
        buffer = self.parts.result[0]
        value = load(of["sums"], r, c) / load(of["total"], r)
        value = value if str(buffer.dtype) == "float32" else tirx.Cast(str(buffer.dtype), value)
        statement = store(buffer, value, *self.parts.place(batch, row, column))
        inside = within([
            (row, self.parts.rows, self.tile.rows), (column, shape.columns, self.chunks * SIDE)
        ])  # fmt: skip
        return statement if inside is None else sequence(tirx.IfThenElse(inside, statement, None))
