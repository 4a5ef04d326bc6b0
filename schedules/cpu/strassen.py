"""Products by Strassen's algorithm: the sums of the left operand, then seven products for each tile of columns.

Of a tile of columns all seven products are computed before the next is begun: they stay in the L2 cache until they are
put together, with the epilogue. Of many rows some are computed after the others, so that their sums stay there, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.schedules.annotations import TILE_ATTRIBUTE, USED_ATTRIBUTE
from tvm_ext.schedules.compute.strassen import PRODUCTS
from tvm_ext.schedules.cpu.elementwise import vectorize_and_divide
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.matmul import TASK_CYCLES, tile_cost
from tvm_ext.schedules.cpu.product import inline_neighbours
from tvm_ext.schedules.cpu.weights import fetch_next_weights
from tvm_ext.schedules.divisors import divisors
from tvm_ext.schedules.kernel.blocks import annotated_block, loop_extents, top_blocks
from tvm_ext.schedules.rule import is_prepared, new_schedule, prepared_schedule
from tvm_ext.schedules.simd.loops import mark_simd

FLOAT_BYTES = 4

MOVED_ROWS, MOVED_RESULTS = 4 + PRODUCTS, 2 * PRODUCTS + 4
"""Vectors that are read and written for one vector of each quarter: of the rows, and of the result."""

MOVED_TWICE = 2
"""Times as long as the L2 cache alone needs for that, measured on Zen 5."""

WEIGHTS_NOT_HIDDEN = 0.1
"""Part of the time that constants take from memory that fetching them ahead does not hide, measured on Zen 5."""

FEWEST_ROWS = 64
"""Of each half that are computed at once, however long they are: for fewer the constants are read too often."""

KERNELS = ("strassen_left", "strassen_product", "strassen_kept", "strassen")
"""What its blocks are annotated as, in their order."""


class Strassen:
    """Schedule the kernel of :func:`tvm_ext.schedules.compute.strassen.strassen`, with its element-wise epilogue."""

    name = "cpu.strassen"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it holds such a product; nothing of it is tuned."""
        if tunable:
            return None
        schedule = prepared_schedule(self, func, target)
        if schedule is not None:
            _schedule(schedule, machine_of(target))
        return schedule

    def prepare(self, func: PrimFunc, _target: tvm.target.Target) -> PrimFunc | None:
        """Inline what is fused to the product, and let the block that stores walk over sequences, rows and columns."""
        if is_prepared(func, self.name):
            return func
        schedule = new_schedule(func)
        if any(annotated_block(schedule, name) is None for name in KERNELS):
            return None
        sequence, _ = _used(schedule)
        return inline_neighbours(
            schedule, self.name, "strassen", KERNELS, lambda batch, m, n: [batch, m // sequence, m % sequence, n]
        )


def _used(schedule: Schedule) -> tuple[int, int]:
    """Rows between which groups begin anew, and columns."""
    quarters = annotated_block(schedule, "strassen")
    row_groups, _, rows, *_ = loop_extents(schedule, quarters)
    sequence, columns = (int(extent) for extent in schedule.get(quarters).annotations[USED_ATTRIBUTE])
    return sequence if sequence % (2 * rows) else row_groups * 2 * rows, columns


@dataclass(frozen=True)
class StrassenExtents:
    """A product of ``2 * row_groups * rows`` x ``2 * half`` with ``2 * column_tiles * vectors`` vectors of columns.

    What fills up groups is counted. Where rows of several ``sequences`` fill up groups, a part of the rows is made of
    whole ones, or of a part of one.
    """

    row_groups: int
    rows: int
    column_tiles: int
    vectors: int
    lanes: int
    half: int
    sequences: int = 1

    @property
    def flops(self) -> int:
        """Multiplications and additions of the seven products."""
        rows, columns = self.row_groups * self.rows, self.column_tiles * self.vectors * self.lanes
        return 2 * PRODUCTS * rows * columns * self.half


def task_parts(extents: StrassenExtents, cost: float, machine: Machine) -> tuple[float, int, int]:
    """Choose into how many parts columns and rows are divided, so that the slowest core is done first.

    Rows are added up again for each part of the columns, most of them are written by other cores then, and constants
    are read again for each part of the rows.

    Parameters
    ----------
    extents : StrassenExtents
    cost : float
        Multiply-adds of vectors that could be issued meanwhile, for each step of the sums of all seven products.
    machine : Machine

    Returns
    -------
    tuple of float, int, int
        Seconds, parts of the columns, and parts of the rows.
    """
    best = float("inf"), 1, 1
    row_vectors = extents.row_groups * extents.rows * extents.half // extents.lanes
    result_vectors = extents.row_groups * extents.rows * extents.column_tiles * extents.vectors
    weight_vectors = PRODUCTS * extents.column_tiles * extents.vectors * extents.half
    vector_bytes, parallel = FLOAT_BYTES * extents.lanes, machine.divides(extents.flops)
    work = cost * extents.half / machine.slots(1.0)
    sequences = extents.sequences
    for row_parts in divisors(extents.row_groups) if parallel else (1,):
        if sequences % row_parts and row_parts % sequences:
            continue
        for column_parts in divisors(extents.column_tiles) if parallel else (1,):
            tasks = row_parts * column_parts
            reading = WEIGHTS_NOT_HIDDEN * weight_vectors * vector_bytes / column_parts / machine.weight_bandwidth
            moved = MOVED_ROWS * row_vectors / row_parts + MOVED_RESULTS * result_vectors / tasks
            foreign = 4 * row_vectors / row_parts * (1 - 1 / min(column_parts, machine.cores))
            seconds = hypot(work / tasks, reading) + TASK_CYCLES / machine.clock
            seconds += vector_bytes * (MOVED_TWICE * moved / machine.l2_bandwidth + foreign / machine.l3_bandwidth)
            seconds *= -(-tasks // (machine.cores if parallel else 1))
            best = min(best, (seconds, column_parts, row_parts))
    return best


def cached_parts(extents: StrassenExtents, row_parts: int, machine: Machine) -> int:
    """Divide parts of the rows further, until the sums of one fit into the L2 cache.

    Parameters
    ----------
    extents : StrassenExtents
    row_parts : int
        What :func:`task_parts` divides the rows into.
    machine : Machine

    Returns
    -------
    int
        A multiple of ``row_parts``.
    """
    most = max(machine.l2 // (PRODUCTS * FLOAT_BYTES * extents.half), FEWEST_ROWS)
    possible = [
        parts
        for parts in divisors(extents.row_groups)
        if parts % row_parts == 0 and not (extents.sequences % parts and parts % extents.sequences)
    ]
    return next((parts for parts in possible if extents.row_groups // parts * extents.rows <= most), possible[-1])


def products_cost(extents: StrassenExtents, machine: Machine) -> float:
    """Estimate the cycles of the seven products for each step of their sums; infinite for a tile too large."""
    rows, chunks = extents.row_groups * extents.rows, extents.column_tiles * extents.vectors
    return PRODUCTS * tile_cost(rows, chunks, extents.half, (extents.rows, extents.vectors), machine)


def _schedule(schedule: Schedule, machine: Machine) -> None:
    left, product, kept, quarters = (annotated_block(schedule, name) for name in KERNELS)
    assert product is not None
    (store,) = schedule.get_consumers(quarters)
    last = top_blocks(schedule)[-1]
    apart = schedule.get(last).name_hint != schedule.get(store).name_hint
    rows, vectors = (int(extent) for extent in schedule.get(quarters).annotations[TILE_ATTRIBUTE])
    sequence, columns = _used(schedule)
    _, row_groups, _, column_tiles, _, lanes, half = loop_extents(schedule, product)
    groups = -(-sequence // (2 * rows))
    extents = StrassenExtents(row_groups, rows, column_tiles, vectors, lanes, half, row_groups // groups)
    _, column_parts, row_parts = task_parts(extents, products_cost(extents, machine), machine)
    parallel = column_parts * row_parts > 1
    row_parts = cached_parts(extents, row_parts, machine)

    schedule.compute_inline(quarters)
    batch, text, row, column = schedule.get_loops(store)
    group, upper, row = schedule.split(row, [groups, 2, rows])
    group = schedule.fuse(text, group)
    column_tile, side, vector, lane = schedule.split(column, [column_tiles, 2, vectors, lanes])
    row_part, group = schedule.split(group, [row_parts, None])
    column_part, column_tile = schedule.split(column_tile, [column_parts, None])
    schedule.reorder(batch, column_part, row_part, column_tile, group, row, vector, upper, side, lane)
    part = schedule.fuse(batch, column_part, row_part)
    if parallel:
        schedule.parallel(part)
    if columns % (2 * vectors * lanes):
        mark_simd(schedule, lane, lanes)
    else:
        schedule.vectorize(lane)
    for loop in (upper, side):
        schedule.unroll(loop)
    schedule.compute_at(kept, column_tile, preserve_unit_loops=True)
    _multiply(schedule, product, kept, lanes)
    _sum(schedule, left, part, lanes)
    if apart:
        vectorize_and_divide(schedule, last, machine)


def _multiply(schedule: Schedule, product: SBlockRV, kept: SBlockRV, lanes: int) -> None:
    """Compute a register tile of one of the products over the whole reduction, in the order of the weights."""
    _, group, row, _, vector, lane = schedule.get_loops(kept)[-6:]
    mark_simd(schedule, lane, lanes)
    for loop in (row, vector):
        schedule.unroll(loop)
    schedule.compute_at(product, group, preserve_unit_loops=True)
    schedule.set_scope(product, 0, "local")
    *_, row, _, vector, lane, k = schedule.get_loops(product)
    schedule.reorder(k, row, vector, lane)
    schedule.vectorize(lane)
    for loop in (row, vector):
        schedule.unroll(loop)
    fetch_next_weights(schedule, product, [group], k, True)
    initial = schedule.decompose_reduction(product, k)
    *_, row, _, vector, lane = schedule.get_loops(initial)
    schedule.vectorize(lane)
    for loop in (row, vector):
        schedule.unroll(loop)


def _sum(schedule: Schedule, left: SBlockRV, part: LoopRV, lanes: int) -> None:
    schedule.compute_at(left, part, preserve_unit_loops=True)
    number, group, row, k = schedule.get_loops(left)[-4:]
    vector, lane = schedule.split(k, [None, lanes])
    schedule.reorder(group, row, vector, number, lane)
    schedule.unroll(number)
    mark_simd(schedule, lane, lanes)
