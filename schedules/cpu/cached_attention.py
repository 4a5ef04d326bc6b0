"""Attention over a cache of keys and values: two kernels, one that writes new ones into it, one that reads it.

The cache of a layer is two tensors. Keys lie ``[kv_heads, blocks, head_size, lanes]``: ``lanes`` positions side by
side, so that scores of so many positions are a vector. Values lie ``[kv_heads, positions, value_size]``, where
``value_size`` is ``head_size`` in whole vectors. Nothing in it is moved or copied when a token comes.
"""

# mypy: ignore-errors
# (what the script builder gives has no types)
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_ext.schedules.cpu.decoder_kernels import argument, each_row, inside, local, shared, simd, written
from tvm_ext.schedules.cpu.machine import Machine

BLOCKS = 4
"""Blocks of positions whose scores are computed at once; caches hold a multiple of so many."""

TILE_ROWS, TILE_BLOCKS = 4, 2
"""Rows and blocks of a register tile where there are several rows."""

LONGEST_TILE = 8
"""Vectors of values of a register tile."""


@dataclass(frozen=True)
class HeadShape:
    """Extents of an attention.

    Attributes
    ----------
    heads, kv_heads : int
        Heads of queries, and of keys and values, each of which serves as many heads of queries.
    head_size : int
        Elements of a head.
    context : int
        Positions that the cache has room for.
    lanes : int
        Elements of a vector.
    """

    heads: int
    kv_heads: int
    head_size: int
    context: int
    lanes: int

    @property
    def blocks(self) -> int:
        """Blocks of ``lanes`` positions that the cache has."""
        return -(-self.context // (BLOCKS * self.lanes)) * BLOCKS

    @property
    def value_size(self) -> int:
        """Elements of a head's values, in whole vectors."""
        return -(-self.head_size // self.lanes) * self.lanes

    @property
    def keys(self) -> tuple[int, ...]:
        """Shape of the cache of keys."""
        return self.kv_heads, self.blocks, self.head_size, self.lanes

    @property
    def values(self) -> tuple[int, ...]:
        """Shape of the cache of values."""
        return self.kv_heads, self.blocks * self.lanes, self.value_size

    @property
    def projected(self) -> int:
        """Elements of queries, keys and values of a token."""
        return (self.heads + 2 * self.kv_heads) * self.head_size


def append(rows: int | None, shape: HeadShape, rotary: bool, biased: bool, machine: Machine) -> tirx.PrimFunc:
    """Make the kernel that writes keys and values into the cache, and gives the queries.

    Queries and keys are turned by the angles of their positions (Su et al., RoFormer, Eq. 34; the halves of a head make
    the pairs), queries divided by the square root of the size of a head.

    Arguments: projected ``[rows, (heads + 2 kv_heads) * head_size]``, its bias if there is one, position ``[1]``
    (int64), cosines and sines ``[context, head_size / 2]`` if there are angles, the two caches, the queries
    ``[rows, heads * head_size]``.
    """
    size, half, lanes = shape.head_size, shape.head_size // 2, shape.lanes
    scale = 1 / sqrt(size)

    def write(count: Any) -> None:
        data = argument("data", count, shape.projected)
        bias = argument("bias", shape.projected) if biased else None
        position = argument("position", 1, dtype="int64")
        angles = [argument(name, shape.context, half) for name in ("cosines", "sines")] if rotary else None
        keys, values = argument("keys", *shape.keys), argument("values", *shape.values)
        queries = argument("queries", count, shape.heads * size)

        def element(i: Any, x: Any) -> Any:
            return data[i, x] if bias is None else data[i, x] + bias[x]

        def place_of(i: Any) -> Any:
            return inside(position[0] + i, shape.context)

        def turned(i: Any, head: Any, x: Any) -> tuple[Any, Any]:
            first, second = element(i, head * size + x), element(i, head * size + half + x)
            cosine, sine = (angle[place_of(i), x] for angle in angles)
            return first * cosine - second * sine, second * cosine + first * sine

        with each_row(count, "append", shape.projected, machine) as i:
            place = place_of(i)
            with T.serial(0, shape.heads) as head:
                if rotary:
                    with simd(half, machine) as x:
                        T.buffer_store(queries, turned(i, head, x)[0] * T.float32(scale), [i, head * size + x])
                    with simd(half, machine) as x:
                        T.buffer_store(queries, turned(i, head, x)[1] * T.float32(scale), [i, head * size + half + x])
                else:
                    with simd(size, machine) as x:
                        T.buffer_store(queries, element(i, head * size + x) * T.float32(scale), [i, head * size + x])
            with T.serial(0, shape.kv_heads) as head:
                with T.serial(0, half if rotary else size) as x:
                    at = [head, place // lanes]
                    if rotary:
                        first, second = turned(i, shape.heads + head, x)
                        T.buffer_store(keys, first, [*at, x, place % lanes])
                        T.buffer_store(keys, second, [*at, half + x, place % lanes])
                    else:
                        T.buffer_store(keys, element(i, (shape.heads + head) * size + x), [*at, x, place % lanes])
                with simd(size, machine) as x:
                    value = element(i, (shape.heads + shape.kv_heads + head) * size + x)
                    T.buffer_store(values, value, [head, place, x])

    return written("append", rows, write)


def head_norms(
    rows: int | None, shape: HeadShape, epsilon: float, centred: bool, whole: bool, biased: bool, machine: Machine
) -> tirx.PrimFunc:
    """Make the kernel that norms queries and keys, head by head or the ``whole`` of them, and hands values on.

    Norms are by the root mean square, or by mean and variance if they are ``centred``.

    Arguments: projected ``[rows, (heads + 2 kv_heads) * head_size]``, its bias if there is one, gains of queries and
    keys ``[(heads + kv_heads) * head_size]``, their biases if norms are centred, the result, as projected.
    """
    size, heads = shape.head_size, shape.heads + shape.kv_heads

    def write(count: Any) -> None:
        data = argument("data", count, shape.projected)
        bias = argument("bias", shape.projected) if biased else None
        gain = argument("gain", heads * size)
        shift = argument("shift", heads * size) if centred else None
        out = argument("out", count, shape.projected)

        def element(i: Any, x: Any) -> Any:
            return data[i, x] if bias is None else data[i, x] + bias[x]

        with each_row(count, "head_norms", shape.projected, machine) as i:
            mean, square = local(1), local(1)
            for begin, end in ((0, shape.heads), (shape.heads, heads)):
                extent = (end - begin) * size if whole else size
                with T.serial(0, 1 if whole else end - begin) as number:
                    first = begin * size + number * extent
                    T.buffer_store(mean, T.float32(0), [0])
                    T.buffer_store(square, T.float32(0), [0])
                    if centred:
                        with simd(extent, machine) as x:
                            T.buffer_store(mean, mean[0] + element(i, first + x), [0])
                        T.buffer_store(mean, mean[0] * T.float32(1 / extent), [0])
                    with simd(extent, machine) as x:
                        distance = element(i, first + x) - mean[0]
                        T.buffer_store(square, square[0] + distance * distance, [0])
                    scale = T.float32(1) / T.sqrt(square[0] * T.float32(1 / extent) + T.float32(epsilon))
                    T.buffer_store(square, scale, [0])
                    with simd(extent, machine) as x:
                        value = (element(i, first + x) - mean[0]) * square[0] * gain[first + x]
                        T.buffer_store(out, value if shift is None else value + shift[first + x], [i, first + x])
            with simd(shape.kv_heads * size, machine) as x:
                T.buffer_store(out, element(i, heads * size + x), [i, heads * size + x])

    return written("head_norms", rows, write)


@dataclass(frozen=True)
class Scores:
    """What is made of scores before their softmax.

    Attributes
    ----------
    window : int
        Tokens that one attends to, itself included; 0 for all.
    cap : float, optional
        Scores are ``cap * tanh(score / cap)``.
    biased : bool
        Something is added that depends on the head and the position of the key (ALiBi).
    """

    window: int = 0
    cap: float | None = None
    biased: bool = False


def attend(rows: int | None, shape: HeadShape, machine: Machine, kind: Scores = Scores()) -> tirx.PrimFunc:
    """Make the kernel ``out = softmax(queries . keys) . values``, each token over itself and those before it.

    Arguments: queries ``[rows, heads * head_size]``, position ``[1]`` of the first of them (int64), the two caches,
    what is added to scores if there is such ``[heads, blocks * lanes]``, result ``[rows, heads * head_size]``.
    """
    tile_rows, tile_blocks = (1, BLOCKS) if rows == 1 else (TILE_ROWS, TILE_BLOCKS)
    size, lanes = shape.head_size, shape.lanes
    vectors = shape.value_size // lanes
    side = max(1, min(LONGEST_TILE // tile_rows, vectors))

    def write(count: Any) -> None:
        queries, position = argument("queries", count, shape.heads * size), argument("position", 1, dtype="int64")
        keys, values = argument("keys", *shape.keys), argument("values", *shape.values)
        added = argument("added", shape.heads, shape.blocks * lanes) if kind.biased else None
        out = argument("out", count, shape.heads * size)
        tiles = (count + (tile_rows - 1)) // tile_rows
        reach = inside(position[0] + (count - 1), shape.context) + 1
        operations = reach * count * (4 * shape.heads * size)
        with shared(tiles * shape.heads, operations, machine) as task, T.sblock("attend"):
            number = T.axis.spatial(tiles * shape.heads, task)
            scores = T.sblock_alloc_buffer((tile_rows, shape.blocks * lanes), "float32")
            result = T.sblock_alloc_buffer((tile_rows, shape.value_size), "float32")
            sums = local(tile_rows, max(tile_blocks, side), lanes)
            most, total = local(lanes + 1), local(lanes + 1)  # by lanes, and of all
            head, first = number % shape.heads, number // shape.heads * tile_rows
            kv_head = head // (shape.heads // shape.kv_heads)
            rows_of = [first] if tile_rows == 1 else [tirx.min(first + i, count - 1) for i in range(tile_rows)]
            longest = inside(position[0] + rows_of[-1], shape.context) + 1

            def earliest(row: Any) -> Any:
                return tirx.max(inside(position[0] + row, shape.context) - (kind.window - 1), T.int64(0))

            # Nothing before the window of the first row is read; scores lie from the first block that is on.
            step = tile_blocks * lanes
            begin = earliest(rows_of[0]) if kind.window else T.int64(0)
            skipped = begin // step if kind.window else T.int64(0)
            before = skipped * step

            def vectors_of(groups: Any) -> Iterator[tuple[Any, Any]]:
                with T.serial(0, groups) as group:
                    for c in range(tile_blocks):
                        with simd(lanes, machine) as x:
                            yield x, (group * tile_blocks + c) * lanes + x

            def softmax(i: int, groups: Any, scores: Any, most: Any, total: Any) -> None:
                for sums_by_lanes, value in ((most, T.min_value("float32")), (total, T.float32(0))):
                    with T.vectorized(0, lanes) as x:
                        T.buffer_store(sums_by_lanes, value, [x])
                    T.buffer_store(sums_by_lanes, value, [lanes])
                for x, t in vectors_of(groups):
                    T.buffer_store(most, tirx.max(most[x], scores[i, t]), [x])
                with simd(lanes, machine) as x:
                    T.buffer_store(most, tirx.max(most[lanes], most[x]), [lanes])
                for _, t in vectors_of(groups):
                    T.buffer_store(scores, T.exp(scores[i, t] - most[lanes]), [i, t])
                for x, t in vectors_of(groups):
                    T.buffer_store(total, total[x] + scores[i, t], [x])
                with simd(lanes, machine) as x:
                    T.buffer_store(total, total[lanes] + total[x], [lanes])
                T.buffer_store(total, T.float32(1) / total[lanes], [lanes])
                for _, t in vectors_of(groups):
                    T.buffer_store(scores, scores[i, t] * total[lanes], [i, t])

            def clear(columns: int) -> None:
                for i in range(tile_rows):
                    for c in range(columns):
                        with T.vectorized(0, lanes) as x:
                            T.buffer_store(sums, T.float32(0), [i, c, x])

            groups = (longest + (step - 1)) // step - skipped
            with T.serial(0, groups) as group:
                clear(tile_blocks)
                with T.serial(0, size) as d:
                    for i, row in enumerate(rows_of):
                        for c in range(tile_blocks):
                            with T.vectorized(0, lanes) as x:
                                key = keys[kv_head, (skipped + group) * tile_blocks + c, d, x]
                                T.buffer_store(sums, sums[i, c, x] + queries[row, head * size + d] * key, [i, c, x])
                for i in range(tile_rows):
                    for c in range(tile_blocks):
                        with T.vectorized(0, lanes) as x:
                            T.buffer_store(scores, sums[i, c, x], [i, (group * tile_blocks + c) * lanes + x])
            for i, row in enumerate(rows_of):
                length = inside(position[0] + row, shape.context) + 1
                if kind.cap is not None:
                    for _, t in vectors_of(groups):
                        capped = T.tanh(scores[i, t] * T.float32(1 / kind.cap)) * T.float32(kind.cap)
                        T.buffer_store(scores, capped, [i, t])
                if added is not None:
                    for _, t in vectors_of(groups):
                        T.buffer_store(scores, scores[i, t] + added[head, before + t], [i, t])
                if kind.window:
                    with T.serial(0, earliest(row) - before) as t:
                        T.buffer_store(scores, T.min_value("float32"), [i, t])
                with T.serial(0, groups * step + before - length) as t:
                    T.buffer_store(scores, T.min_value("float32"), [i, length - before + t])
                softmax(i, groups, scores, most, total)
            for column in range(0, vectors, side):
                columns = min(side, vectors - column)
                clear(columns)
                with T.serial(0, longest - begin) as t:
                    for i in range(tile_rows):
                        for c in range(columns):
                            with T.vectorized(0, lanes) as x:
                                value = (
                                    scores[i, begin - before + t] * values[kv_head, begin + t, (column + c) * lanes + x]
                                )
                                T.buffer_store(sums, sums[i, c, x] + value, [i, c, x])
                for i in range(tile_rows):
                    for c in range(columns):
                        with T.vectorized(0, lanes) as x:
                            T.buffer_store(result, sums[i, c, x], [i, (column + c) * lanes + x])
            for i, row in enumerate(rows_of):
                with simd(size, machine) as x:
                    T.buffer_store(out, result[i, x], [row, head * size + x])

    return written("attend", rows, write)
