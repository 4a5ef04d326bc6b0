"""Attention as one kernel: a tile of queries meets all keys, and its scores stay in the cache until they are used up.

As in FlashAttention (Dao et al., NeurIPS 2022) the matrix of scores is never in memory; other than there a row of it is
complete before its softmax is taken, as the rows of a tile fit the cache of a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import tvm
from tvm import s_tir
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE, TILE_ATTRIBUTE
from tvm_ext.schedules.compute.bfloat16 import PAIR
from tvm_ext.schedules.compute.matmul import MatmulShape
from tvm_ext.schedules.cpu.intrinsics import bfloat16_intrinsic
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.matmul import DIRECT_ROWS, MOST_VECTORS, accumulate_in_registers, copy_at, tile_cost
from tvm_ext.schedules.cpu.product import order_axes
from tvm_ext.schedules.cpu.row_reduction import vectorize_along
from tvm_ext.schedules.divisors import divisors
from tvm_ext.schedules.kernel.blocks import annotated_block, is_spatial, loop_extents, top_blocks
from tvm_ext.schedules.rule import is_prepared, new_schedule, prepared_for, prepared_schedule
from tvm_ext.schedules.simd.functions import mark_function
from tvm_ext.schedules.simd.loops import mark_simd

LONGEST_TILE = 12
"""Rows of a tile at most: more would leave registers for one vector only."""


@dataclass(frozen=True)
class AttentionTile:
    """Register tiles of the two products.

    Attributes
    ----------
    rows : int
        Rows of both.
    score_vectors, value_vectors : int
        Vectors side by side in the first and in the second.
    """

    rows: int
    score_vectors: int
    value_vectors: int


def attention_tile(
    scores: MatmulShape, values: MatmulShape, lanes: int, machine: Machine, rounds: bool = False
) -> AttentionTile | None:
    """Choose the tiles of both products together; None where one kernel is no good.

    That is for so few rows that packing keys and values would not pay, and for rows of scores that outgrow the cache.
    With ``rounds`` the products are of bfloat16, in pairs.
    """
    steps = PAIR if rounds else 1
    best, best_cost = None, float("inf")
    score_chunks, value_chunks = -(-scores.columns // lanes), -(-values.columns // lanes)
    for rows in range(1, min(LONGEST_TILE, scores.rows) + 1):
        if 2 * rows * scores.columns * machine.vector_bits // 8 // lanes > machine.l2 // 2:
            break
        first, second = (
            min(
                (tile_cost(shape.rows, chunks, -(-shape.reduction // steps), (rows, vectors), machine), vectors)
                for vectors in range(1, min(chunks, MOST_VECTORS) + 1)
            )
            for shape, chunks in ((scores, score_chunks), (values, value_chunks))
        )
        cost = first[0] * scores.reduction + second[0] * values.reduction
        if cost < best_cost:
            best, best_cost = AttentionTile(rows, first[1], second[1]), cost
    return best if scores.rows > DIRECT_ROWS else None


class Attention:
    """Schedule the kernel of :func:`tvm_ext.schedules.compute.attention.attention`."""

    name = "cpu.attention"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it is an attention."""
        schedule = prepared_schedule(self, func, target, tunable)
        if schedule is not None:
            _schedule(schedule, machine_of(target))
        return schedule

    def prepare(self, func: PrimFunc, _target: tvm.target.Target) -> PrimFunc | None:
        """Inline what is done to the scores, and let the block that stores walk over batch, rows and columns."""
        if is_prepared(func, self.name):
            return func
        schedule = new_schedule(func)
        product = annotated_block(schedule, "attention")
        if product is None:
            return None
        try:
            for block in top_blocks(schedule):
                body = schedule.get(block)
                is_plain = is_spatial(schedule, block) and KERNEL_ATTRIBUTE not in body.annotations
                if is_plain and body.name_hint not in ("weights", "store"):
                    schedule.compute_inline(block)
            store = schedule.get_sblock("store")
            order_axes(schedule, product, store, loop_extents(schedule, store))
        except ScheduleError:
            return None
        return prepared_for(s_tir.transform.StmtSimplify()(schedule.mod)["main"], self.name)


def _schedule(schedule: Schedule, machine: Machine) -> None:
    scores, product = (annotated_block(schedule, name) for name in ("scores", "attention"))
    logits, largest, weights, total, store = (
        schedule.get_sblock(name) for name in ("logits", "largest", "weights", "total", "store")
    )
    tile_rows, score_vectors, value_vectors = (int(item) for item in schedule.get(product).annotations[TILE_ATTRIBUTE])
    batch_extent, rows, _, lanes, *reduction = loop_extents(schedule, scores)
    depth = prod(reduction)
    columns = loop_extents(schedule, weights)[-1]
    flops = 4 * batch_extent * rows * columns * max(depth, loop_extents(schedule, store)[-1])
    is_parallel = machine.divides(flops)
    copies = [block for block in top_blocks(schedule) if _copies(schedule, block)]

    batch, row, column = schedule.get_loops(store)
    whole_vectors = int(schedule.get(column).extent) % lanes == 0
    parts = _row_parts(batch_extent, rows // tile_rows, machine.cores) if is_parallel else 1
    row_part, row_tile, row = schedule.split(row, [parts, None, tile_rows])
    chunk, lane = schedule.split(column, [None, lanes])
    column_tile, vector = schedule.split(chunk, [None, value_vectors])
    schedule.reorder(batch, row_part, row_tile, column_tile, row, vector, lane)
    part = schedule.fuse(batch, row_part)
    if is_parallel and batch_extent * parts > 1:
        schedule.parallel(part)
    _vectors(schedule, lane, lanes, whole_vectors)
    for loop in (row, vector):
        schedule.unroll(loop)
    dotted = [accumulate_in_registers(schedule, product, column_tile, keeps_apart=machine.pairs_loads)]
    paired = annotated_block(schedule, "pair_weights")
    if paired is not None:
        copy_at(schedule, paired, row_tile, lanes)
    for block in (total, weights, largest, logits):
        schedule.compute_at(block, row_tile, preserve_unit_loops=True)
    for block in (total, weights, largest):
        vectorize_along(schedule, block, len(schedule.get_loops(block)) - 1, machine)
    mark_function(schedule, schedule.get_loops(weights)[-2], "weights")
    *_, row, column = schedule.get_loops(logits)
    chunk, lane = schedule.split(column, [None, lanes])
    score_tile, vector = schedule.split(chunk, [None, score_vectors])
    schedule.reorder(score_tile, row, vector, lane)
    _vectors(schedule, lane, lanes, columns % lanes == 0)
    for loop in (row, vector):
        schedule.unroll(loop)
    dotted.append(accumulate_in_registers(schedule, scores, score_tile, keeps_apart=machine.pairs_loads))
    for copy in reversed(copies):  # what reads a copy is placed before it
        is_rows = schedule.get(copy).annotations[KERNEL_ATTRIBUTE] == "pack_rows"
        copy_at(schedule, copy, row_tile if is_rows else part, lanes)
    for loop in filter(None, dotted):  # last: what becomes opaque by it must still be seen before
        schedule.tensorize(loop, bfloat16_intrinsic(lanes, words=True))


def _copies(schedule: Schedule, block: SBlockRV) -> bool:
    return schedule.get(block).annotations.get(KERNEL_ATTRIBUTE) in ("pack_rows", "pack_columns", "pair_columns")


def _vectors(schedule: Schedule, lane: s_tir.schedule.LoopRV, lanes: int, whole: bool) -> None:
    if whole:
        schedule.vectorize(lane)
    else:
        mark_simd(schedule, lane, lanes)


def _row_parts(batch: int, row_tiles: int, cores: int) -> int:
    """Cut the rows of a product into as few parts as keep all cores busy: each part packs keys and values again."""
    options = divisors(row_tiles)
    even = [parts for parts in options if batch * parts % cores == 0]
    many = [parts for parts in options if batch * parts >= 8 * cores]
    return min([*even, *many], default=options[-1])
