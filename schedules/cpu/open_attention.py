"""Attention whose lengths are only known at run time: a tile of queries meets all keys, scores stay in the cache.

The keys of a task are packed once, the positions side by side; a tile's scores are complete before its softmax is
taken. What is left of the queries beside whole tiles is a tile whose last rows are computed several times, or rows
alone where they are few.
"""

# mypy: ignore-errors
# (what the script builder gives has no types)
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from tvm_ext.relax_utils import FUNCTION_OPERATIONS
from tvm_ext.schedules.compute.attention import SCORES, Step
from tvm_ext.schedules.cpu.open_tiles import ZERO, digits, kept, product, registers, whole
from tvm_ext.schedules.cpu.tasks import WORK_ATTRIBUTE
from tvm_ext.schedules.rule import RULE_ATTRIBUTE
from tvm_ext.schedules.simd.loops import EXACT_ATTRIBUTE, SIMD_ATTRIBUTE
from tvm_ext.schedules.simd.tile_marks import TILE_ATTRIBUTE

RULE = "cpu.open_attention"
"""Stands as the schedule rule of these kernels: they are written as they should be."""

TASK_TILES = 16
"""Tiles of queries in a task, which packs its keys once."""

VECTORS = 2
"""Vectors of a register tile, of scores and of results."""

FEW_ROWS = 2
"""Rows beside whole tiles that are computed one by one."""

_DONE = {
    RULE_ATTRIBUTE: RULE,
    EXACT_ATTRIBUTE: True,
    "tirx.is_scheduled": True,
    "tirx.noalias": True,
    "op_pattern": 8,
}

ELEMENTS: dict[str, Callable[..., Any]] = {
    "relax.add": lambda a, b: a + b,
    "relax.subtract": lambda a, b: a - b,
    "relax.multiply": lambda a, b: a * b,
    "relax.divide": lambda a, b: a / b,
    "relax.maximum": tirx.max,
    "relax.minimum": tirx.min,
    "relax.where": tirx.Select,
}
"""What the steps between scores and softmax do to an element."""


@dataclass(frozen=True)
class OpenAttention:
    """What an attention computes; extents are numbers, or None where they are open.

    Attributes
    ----------
    batch : tuple of int or None
        Axes before the rows, the same of all operands.
    rows, positions : int or None
        Queries, and keys.
    size, columns : int
        Elements of a query, and of a value.
    axes : tuple of three tuples of int
        For each logical axis of query ``(..., rows, size)``, key ``(..., size, positions)`` and value ``(...,
        positions, columns)``, which axis it is in memory.
    out_axes : tuple of int
        For each axis of the result in memory, which logical axis it is; the last one is the last.
    steps : tuple of Step
        What is done to the scores.
    others : tuple of (tuple of bool, str)
        For each tensor that the steps take: for each of its axes, the last ones of the scores, whether it has the
        extent of that (or 1), and its type.
    dtype : str
    tile_rows, lanes : int
        Queries of a register tile, and elements of a vector.
    zeros : bool
        Whether the results are zero where the softmax is NaN.
    """

    batch: tuple[int | None, ...]
    rows: int | None
    positions: int | None
    size: int
    columns: int
    axes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    out_axes: tuple[int, ...]
    steps: tuple[Step, ...]
    others: tuple[tuple[tuple[bool, ...], str], ...]
    dtype: str
    tile_rows: int
    lanes: int
    zeros: bool = False

    def kernel(self) -> PrimFunc:
        """Write the kernel; its arguments are query, key, value, the others and the result."""
        with IRBuilder() as builder:
            with T.prim_func(is_private=True, s_tir=True):
                T.func_name("open_attention")
                _Kernel(self).write()
        return builder.get().with_attrs(_DONE)


class _Kernel:
    """Writes one kernel."""

    def __init__(self, spec: OpenAttention) -> None:
        self.spec, self.dtype, self.lanes = spec, spec.dtype, spec.lanes
        self.batch = [T.int64() if extent is None else whole(extent) for extent in spec.batch]
        self.rows, self.positions = (T.int64() if e is None else whole(e) for e in (spec.rows, spec.positions))
        query, key, value = spec.axes
        size, columns = whole(spec.size), whole(spec.columns)
        self.query = self._argument("query", _in_memory([*self.batch, self.rows, size], query))
        self.key = self._argument("key", _in_memory([*self.batch, size, self.positions], key))
        self.value = self._argument("value", _in_memory([*self.batch, self.positions, columns], value))
        scores = [*self.batch, self.rows, self.positions]
        self.others = [
            T.arg(
                f"other{number}",
                T.buffer(
                    [extent if full else 1 for extent, full in zip(scores[-len(axes) :], axes, strict=True)]
                    if axes
                    else [],
                    dtype,
                ),
            )
            for number, (axes, dtype) in enumerate(spec.others)
        ]
        logical = [*self.batch, self.rows, columns]
        self.out = self._argument("out", [logical[axis] for axis in spec.out_axes])
        self.value_vectors = -(-spec.columns // self.lanes)
        # Values are read as they lie where their vectors are whole.
        self.packs_values = value[-1] != len(value) - 1 or spec.columns % self.lanes != 0

    def _argument(self, name: str, shape: Sequence[Any]) -> Any:
        return T.arg(name, T.buffer(list(shape), self.dtype))

    def write(self) -> None:
        """Emit the kernel: a task is some rows of one matrix."""
        lanes, rows_of_task = self.lanes, self.spec.tile_rows * TASK_TILES
        outer = [product(self.batch), (self.rows + (rows_of_task - 1)) // rows_of_task]
        total = product(outer)
        groups = (self.positions + (VECTORS * lanes - 1)) // (VECTORS * lanes)
        products = 2 * (self.spec.size + self.spec.columns)
        work = product([*self.batch, self.rows, self.positions]) * (products + FUNCTION_OPERATIONS)
        with (
            T.attr(tirx.const(0, "int32"), WORK_ATTRIBUTE, work),
            T.parallel(ZERO, total) as task,
            T.sblock("attention"),
        ):
            number = T.axis.spatial(total, task)
            self.keys = T.sblock_alloc_buffer((groups * VECTORS, whole(self.spec.size), whole(lanes)), self.dtype)
            self.values = None
            if self.packs_values:
                shape = (self.positions, whole(self.value_vectors), whole(lanes))
                self.values = T.sblock_alloc_buffer(shape, self.dtype)
            rows = whole(self.spec.tile_rows)
            self.scores = T.sblock_alloc_buffer((rows, groups * VECTORS, whole(lanes)), self.dtype)
            self.sums = [registers(VECTORS, lanes, dtype=self.dtype) for _ in range(self.spec.tile_rows)]
            self.vector, self.total = registers(lanes, dtype=self.dtype), registers(lanes, dtype=self.dtype)
            self.totals = registers(self.spec.tile_rows, dtype=self.dtype)
            self.most = registers(1, dtype=self.dtype)
            b, part = digits(number, outer)
            first = part * rows_of_task
            *self.at, first, left = kept(
                [*digits(b, self.batch), first, tirx.min(self.rows - first, whole(rows_of_task))]
            )
            self._pack_keys()
            if self.values is not None:
                self._pack_values()
            height = self.spec.tile_rows
            rest = left % height
            alone = tirx.Select(rest > FEW_ROWS, ZERO, rest) if height > 1 else ZERO
            with T.serial(ZERO, (left - alone + (height - 1)) // height) as tile:
                self._tile(first + tile * height, height, groups)
            if height > 1:
                with T.serial(ZERO, alone) as row:
                    self._tile(first + left - alone + row, 1, groups)

    def _pack_keys(self) -> None:
        """Put the positions of keys side by side; what lies beyond the last one is never used."""
        lanes, size = self.lanes, self.spec.size

        def element(k: Any, position: Any) -> Any:
            return self.key[*_in_memory([*self.at, k, position], self.spec.axes[1])]

        with T.serial(ZERO, self.positions // lanes) as chunk:
            with T.serial(ZERO, whole(size), annotations={TILE_ATTRIBUTE: lanes}) as k:
                with T.serial(ZERO, whole(lanes), annotations={SIMD_ATTRIBUTE: lanes}) as x:
                    T.buffer_store(self.keys, element(k, chunk * lanes + x), [chunk, k, x])
        with T.serial(ZERO, self.positions % lanes) as x, T.serial(ZERO, whole(size)) as k:
            chunk = self.positions // lanes
            T.buffer_store(self.keys, element(k, chunk * lanes + x), [chunk, k, x])

    def _pack_values(self) -> None:
        """Fill vectors of values up with zeros."""
        columns, lanes = self.spec.columns, self.lanes
        with T.serial(ZERO, self.positions) as t:
            for c in range(self.value_vectors):
                count = min(lanes, columns - c * lanes)
                with T.serial(ZERO, whole(count), annotations={SIMD_ATTRIBUTE: lanes}) as x:
                    place = _in_memory([*self.at, t, c * lanes + x], self.spec.axes[2])
                    T.buffer_store(self.values, self.value[*place], [t, c, x])
                with T.serial(ZERO, whole(lanes - count)) as x:
                    T.buffer_store(self.values, tirx.const(0, self.dtype), [t, c, count + x])

    def _tile(self, first: Any, height: int, groups: Any) -> None:
        """Compute rows from one on; those beyond the last are the last one again."""
        rows = [first] if height == 1 else kept([tirx.min(first + i, self.rows - 1) for i in range(height)])
        self._scores(rows, groups)
        if self.others:
            self._steps(rows)
        with T.serial(ZERO, whole(height)) as i:
            self._softmax(i)
        for begin in range(0, self.value_vectors, VECTORS):
            self._results(rows, begin, min(VECTORS, self.value_vectors - begin))

    def _clear(self, height: int, vectors: int) -> None:
        for i in range(height):
            for c in range(vectors):
                with T.vectorized(ZERO, whole(self.lanes)) as x:
                    T.buffer_store(self.sums[i], tirx.const(0, self.dtype), [c, x])

    def _scores(self, rows: Sequence[Any], groups: Any) -> None:
        """Multiply queries by keys; scores beyond the last position are minus infinity."""
        lanes = self.lanes
        with T.serial(ZERO, groups) as group:
            self._clear(len(rows), VECTORS)
            with T.serial(ZERO, whole(self.spec.size)) as k:
                for i, row in enumerate(rows):
                    for c in range(VECTORS):
                        with T.vectorized(ZERO, whole(lanes)) as x:
                            query = self.query[*_in_memory([*self.at, row, k], self.spec.axes[0])]
                            term = query * self.keys[group * VECTORS + c, k, x]
                            T.buffer_store(self.sums[i], self.sums[i][c, x] + term, [c, x])
            for i in range(len(rows)):
                for c in range(VECTORS):
                    with T.vectorized(ZERO, whole(lanes)) as x:
                        chunk = group * VECTORS + c
                        score = self.sums[i][c, x]
                        if not self.others:
                            score = self._stepped(score, [])
                        inside = chunk * lanes + x < self.positions
                        value = tirx.Select(inside, score, -tirx.infinity(self.dtype))
                        T.buffer_store(self.scores, value, [i, chunk, x])

    def _stepped(self, score: Any, index: Sequence[Any]) -> Any:
        """Do to a score what is done between product and softmax."""

        def argument(given: Any) -> Any:
            if isinstance(given, float | tirx.FloatImm):
                return tirx.const(float(given), self.dtype)
            if int(given) == SCORES:
                return score
            axes = self.spec.others[int(given)][0]
            places = index[len(index) - len(axes) :]
            return self.others[int(given)][*(place if full else ZERO for place, full in zip(places, axes, strict=True))]

        for name, arguments in self.spec.steps:
            score = ELEMENTS[name](*map(argument, arguments))
        return score

    def _steps(self, rows: Sequence[Any]) -> None:
        lanes = self.lanes
        for i, row in enumerate(rows):
            with T.serial(ZERO, self.positions // lanes) as chunk, T.vectorized(ZERO, whole(lanes)) as x:
                value = self._stepped(self.scores[i, chunk, x], [*self.at, row, chunk * lanes + x])
                T.buffer_store(self.scores, value, [i, chunk, x])
            chunk = self.positions // lanes
            with T.serial(ZERO, self.positions % lanes) as x:
                value = self._stepped(self.scores[i, chunk, x], [*self.at, row, chunk * lanes + x])
                T.buffer_store(self.scores, value, [i, chunk, x])

    def _softmax(self, i: Any) -> None:
        """Put the exponentials in place of the scores of a row, and keep their sum."""
        lanes = self.lanes
        chunks = (self.positions + (lanes - 1)) // lanes
        vector, total = self.vector, self.total
        for sums, first in ((vector, -tirx.infinity(self.dtype)), (total, tirx.const(0, self.dtype))):
            with T.vectorized(ZERO, whole(lanes)) as x:
                T.buffer_store(sums, first, [x])
        T.buffer_store(self.most, -tirx.infinity(self.dtype), [0])
        T.buffer_store(self.totals, tirx.const(0, self.dtype), [i])
        with T.serial(ZERO, chunks) as chunk:
            with T.serial(ZERO, whole(lanes), annotations={SIMD_ATTRIBUTE: lanes}) as x:
                T.buffer_store(vector, tirx.max(vector[x], self.scores[i, chunk, x]), [x])
        with T.serial(ZERO, whole(lanes), annotations={SIMD_ATTRIBUTE: lanes}) as x:
            T.buffer_store(self.most, tirx.max(self.most[0], vector[x]), [0])
        with T.serial(ZERO, chunks) as chunk:
            with T.serial(ZERO, whole(lanes), annotations={SIMD_ATTRIBUTE: lanes}) as x:
                T.buffer_store(self.scores, T.exp(self.scores[i, chunk, x] - self.most[0]), [i, chunk, x])
            with T.serial(ZERO, whole(lanes), annotations={SIMD_ATTRIBUTE: lanes}) as x:
                T.buffer_store(total, total[x] + self.scores[i, chunk, x], [x])
        with T.serial(ZERO, whole(lanes), annotations={SIMD_ATTRIBUTE: lanes}) as x:
            T.buffer_store(self.totals, self.totals[i] + total[x], [i])

    def _results(self, rows: Sequence[Any], begin: int, vectors: int) -> None:
        """Sum up the values, each as often as its share, from one vector of columns on."""
        lanes, columns = self.lanes, self.spec.columns
        self._clear(len(rows), vectors)

        def value_of(t: Any, c: int, x: Any) -> Any:
            if self.values is not None:
                return self.values[t, begin + c, x]
            return self.value[*_in_memory([*self.at, t, (begin + c) * lanes + x], self.spec.axes[2])]

        with T.serial(ZERO, self.positions) as t:
            for i in range(len(rows)):
                for c in range(vectors):
                    with T.vectorized(ZERO, whole(lanes)) as x:
                        term = self.scores[i, t // lanes, t % lanes] * value_of(t, c, x)
                        T.buffer_store(self.sums[i], self.sums[i][c, x] + term, [c, x])
        for i, row in enumerate(rows):
            for c in range(vectors):
                with T.vectorized(ZERO, whole(lanes)) as x:
                    # The softmax over no positions leaves nothing to sum up.
                    share = tirx.Select(self.positions > 0, self.totals[i], tirx.const(1, self.dtype))
                    mean = self.sums[i][c, x] / share
                    if self.spec.zeros:
                        mean = tirx.Select(tirx.isnan(self.totals[i]), tirx.const(0, self.dtype), mean)
                    T.buffer_store(self.vector, mean, [x])
                count = min(lanes, columns - (begin + c) * lanes)
                with T.serial(ZERO, whole(count), annotations={SIMD_ATTRIBUTE: lanes}) as x:
                    logical = [*self.at, row, (begin + c) * lanes + x]
                    T.buffer_store(self.out, self.vector[x], [logical[axis] for axis in self.spec.out_axes])


def _in_memory(index: Sequence[Any], axes: Sequence[int]) -> list[Any]:
    """Order a logical index as the axes lie in memory."""
    found: list[Any] = [ZERO] * len(axes)
    for axis, entry in zip(axes, index, strict=True):
        found[axis] = entry
    return found
