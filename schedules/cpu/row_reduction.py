"""Reductions over some axes of a tensor, with what is computed from them: softmax, normalisations, means, maxima.

All blocks of the kernel run inside one loop over rows, so a row is read from memory once and stays in the cache. Where
the reduced elements lie side by side, vectors run along the row; otherwise they run across neighbouring rows.
"""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import IntImm, PrimFunc

from tvm_ext.schedules.cpu.cost import block_seconds
from tvm_ext.schedules.cpu.elementwise import vector_lanes
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.streaming import stream_large_rows
from tvm_ext.schedules.cpu.tasks import share_out
from tvm_ext.schedules.divisors import divisors
from tvm_ext.schedules.kernel.access import Axes, axes_of
from tvm_ext.schedules.kernel.blocks import is_spatial, static_extents, top_blocks
from tvm_ext.schedules.kernel.exponentials import may_forget_nan
from tvm_ext.schedules.kernel.inline import inline_producers
from tvm_ext.schedules.kernel.operations import is_simple
from tvm_ext.schedules.kernel.rows import (
    NotRows,
    check_single_pass,
    contiguous_axis_reduces,
    row_buffers_of,
    row_loops,
)
from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.simd.loops import mark_forgotten_nan, mark_simd
from tvm_ext.schedules.simd.prefetch import LINE, NextRow, mark_next_row

WIDEST = 4
"""Bytes of an element that is computed with, mostly."""

COLUMN_VECTORS = 4
"""Vectors side by side when vectors run across rows: enough sums in flight to hide the latency of an addition."""

FETCHED_AHEAD = 1 << 10
"""Bytes ahead of what is computed with that are fetched, at least: memory takes as long to answer as that takes."""

NEAR_PART = 2
"""The next rows may be fetched into the L1 cache if one part in so many of it holds them and those computed with.

Measured on Zen 5, in turns with fetches into the L2 cache: rows of 32 KiB take 1.03 of the time.
"""

ROWS_TOGETHER = 2
"""Rows that go through a pass before the next pass begins: one hides the end of the other's sum, a chain of shuffles.

Measured on Zen 5, one thread: with two rows softmax takes 0.93 to 1.01 of the time, layer norm 0.86 to 0.97; with four
no less.
"""


class RowReduction:
    """Schedule a kernel of reductions over single tensors and of data-parallel blocks around them."""

    name = "cpu.row_reduction"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when its reductions share their rows."""
        schedule = new_schedule(func, tunable)
        blocks = top_blocks(schedule)
        if not blocks or all(is_spatial(schedule, block) for block in blocks):
            return None
        if not all(is_simple(schedule, block) and static_extents(schedule, block) for block in blocks):
            return None
        try:
            return _schedule(schedule, machine_of(target))
        except (tvm.s_tir.ScheduleError, NotRows):
            return None


def _schedule(schedule: Schedule, machine: Machine) -> Schedule:
    blocks = inline_producers(schedule)
    outputs = schedule.get_output_blocks(schedule.get_sblock("root"))
    reductions = [block for block in blocks if not is_spatial(schedule, block)]
    if len(outputs) != 1 or not reductions:
        raise NotRows
    axes = axes_of(schedule, reductions[0])
    for block in reductions:
        check_single_pass(schedule, block)
    seconds = sum(block_seconds(schedule, block, machine) for block in blocks)
    if not is_spatial(schedule, blocks[-1]):
        schedule.cache_write(blocks[-1], 0, "global")
        blocks = top_blocks(schedule)
    if contiguous_axis_reduces(axes):
        _along_rows(schedule, blocks, seconds, machine)
    else:
        _across_rows(schedule, blocks, seconds, machine)
    return schedule


def _along_rows(schedule: Schedule, blocks: list[SBlockRV], seconds: float, machine: Machine) -> None:
    """Run everything for one row after another, and vectors along the row."""
    rows, inside = row_loops(schedule, blocks)
    if not rows:
        for block in blocks:
            vectorize_along(schedule, block, 0, machine)
        return
    forgetful = [may_forget_nan(schedule, block, blocks) for block in blocks]
    schedule.reorder(*rows, *inside)
    if not inside:
        schedule.add_unit_loop(blocks[-1])
    together = _rows_together(schedule, rows, inside, machine)
    row = schedule.fuse(*rows)
    if together > 1:
        row, _ = schedule.split(row, [None, together])
    for block in reversed(blocks[:-1]):
        schedule.compute_at(block, row, preserve_unit_loops=True)
    depth = share_out(schedule, [row], seconds, machine)
    for block, forgets in zip(blocks, forgetful, strict=True):
        vectorize_along(schedule, block, depth, machine)
        if forgets:
            mark_forgotten_nan(schedule, schedule.get_loops(block)[-1])
    if inside:
        stream_large_rows(schedule, blocks[-1], schedule.get_loops(blocks[-1])[-1], machine, shortest=LINE)
    _fetch_next_row(schedule, blocks, together, machine)


def _rows_together(schedule: Schedule, rows: list[LoopRV], inside: list[LoopRV], machine: Machine) -> int:
    """Choose how many rows go through each pass before the next begins, so that what they read and write stays in L1.

    Of rows along several axes, two that follow one another need not be neighbours along any.
    """
    extents = [[schedule.get(loop).extent for loop in loops] for loops in (rows, inside)]
    if not inside or not all(isinstance(extent, IntImm) for extent in (*extents[0], *extents[1])):
        return 1
    counts, lengths = ([int(extent) for extent in part] for part in extents)
    if max(counts) != prod(counts) or max(counts) % (ROWS_TOGETHER * machine.cores):
        return 1
    fits = 2 * ROWS_TOGETHER * WIDEST * prod(lengths) <= machine.l1 // 2
    return ROWS_TOGETHER if fits else 1


def _fetch_next_row(schedule: Schedule, blocks: list[SBlockRV], together: int, machine: Machine) -> None:
    """Fetch the next row of what is read in several passes over a row, in the last of them.

    Memory would otherwise be idle in all passes but the first.
    """
    own = [region.source for block in blocks for region in schedule.get(block).writes]
    row_buffers = row_buffers_of(schedule, blocks)
    for block in reversed(blocks):
        row = _next_row(schedule, block, own, row_buffers, together, machine) if is_spatial(schedule, block) else None
        if row is None:
            continue
        passes = [
            sum(region.source.name == name for other in blocks for region in schedule.get(other).reads)
            for name in row.operands
        ]
        if max(passes) > 1:
            mark_next_row(schedule, schedule.get_loops(block)[-1], row)
            return


def _next_row(
    schedule: Schedule, block: SBlockRV, own: list[Any], row_buffers: list[Any], together: int, machine: Machine
) -> NextRow | None:
    """Describe the rows that a block reads one after the other of tensors, not ``own``, beyond the L2 cache."""
    axes = axes_of(schedule, block)
    over_rows = [
        any(access.strides[axis] for access in axes.accesses if access.strides and _is_one_of(access, row_buffers))
        for axis in range(len(axes.extents))
    ]
    length = prod(extent or 0 for extent, is_row in zip(axes.extents, over_rows, strict=True) if not is_row)
    found: dict[str, int] = {}
    for access in axes.accesses:
        if access.strides is None or _is_one_of(access, own) or not access.meets_elements_once(axes.extents):
            continue
        size = tvm.DataType(access.buffer.dtype).bits // 8
        steps = [stride for stride, is_row in zip(access.strides, over_rows, strict=True) if is_row and stride]
        is_large = size * prod(extent or 0 for extent in axes.extents) > machine.l2
        if steps and min(steps) == length and is_large and LINE <= size * length <= machine.l2 // 2:
            found[str(access.buffer.name)] = size
    if not found or len(set(found.values())) > 1:
        return None
    size = next(iter(found.values()))
    distance = length * together * -(-FETCHED_AHEAD // (size * length * together))
    fits = 2 * size * distance <= machine.l1 // NEAR_PART
    return NextRow(tuple(found), distance, size, near=machine.fetches_near and fits)


def _is_one_of(access: Any, buffers: list[Any]) -> bool:
    return any(access.buffer.same_as(buffer) for buffer in buffers)


def vectorize_along(schedule: Schedule, block: SBlockRV, depth: int, machine: Machine) -> None:
    """Fuse the innermost loops that walk straight on, and mark them; ``depth`` loops are the rows."""
    axes = axes_of(schedule, block)
    loops = list(schedule.get_loops(block))[depth:]
    if not loops:
        return
    lanes = vector_lanes(schedule, block, machine)
    last = len(axes.extents) - 1
    count = 1
    while count < len(loops) and axes.reduces[last - count] == axes.reduces[last] and axes.flat(last - count, last):
        count += 1
    reduced = [loop for loop, reduces in zip(reversed(loops), reversed(axes.reduces), strict=False) if reduces]
    vector = schedule.fuse(*loops[-count:])
    if reduced:
        outermost = reduced[-1] if len(reduced) > count else vector
        schedule.decompose_reduction(block, outermost)
        vector = schedule.get_loops(block)[-1]
    mark_simd(schedule, vector, lanes)


def _across_rows(schedule: Schedule, blocks: list[SBlockRV], seconds: float, machine: Machine) -> None:
    """Run everything for a strip of neighbouring rows, and vectors across them."""
    last = blocks[-1]
    column = _contiguous_axis(axes_of(schedule, last))
    rows, inside = row_loops(schedule, blocks)
    position = next((number for number, loop in enumerate(rows) if _is_loop(schedule, last, loop, column)), None)
    if position is None:
        raise NotRows
    one_pass = _is_one_pass(schedule, blocks)
    joined = rows[position - _planes_joined(schedule, blocks, rows, position, machine) : position] if one_pass else []
    strip = rows[position]
    rows = [row for row in rows if row not in (*joined, strip)]
    lanes = vector_lanes(schedule, last, machine)
    width = int(schedule.get(strip).extent)
    count = prod(int(schedule.get(row).extent) for row in rows)
    choose = _one_pass_strip if one_pass else _strip_width
    strip_width = width if joined else choose(width, count, lanes, machine)
    if strip_width < width:
        outer, strip = schedule.split(strip, [None, strip_width])
        rows.append(outer)
    schedule.reorder(*rows, *inside, *joined, strip)
    if not rows:
        rows = [schedule.add_unit_loop(schedule.get_loops(last)[0])]
    row = schedule.fuse(*rows)
    for block in reversed(blocks[:-1]):
        schedule.compute_at(block, row, preserve_unit_loops=True)
    share_out(schedule, [row], seconds, machine)
    mark_simd(schedule, strip, lanes)
    stream_large_rows(schedule, last, strip, machine)
    for block in blocks[:-1]:
        _vectorize_across(schedule, block, machine, len(joined))


def _planes_joined(
    schedule: Schedule, blocks: list[SBlockRV], rows: list[LoopRV], position: int, machine: Machine
) -> int:
    """Count the axes in front of that of neighbouring rows that are read on from it, as those of an image are.

    A sum over channels reads whole images one after the other then, and not a few cache lines of each.
    """
    reduction = axes_of(schedule, next(block for block in blocks if not is_spatial(schedule, block)))
    extents = [int(schedule.get(row).extent) for row in rows]
    axes = [
        number
        for number, (extent, reduces) in enumerate(zip(reduction.extents, reduction.reduces, strict=True))
        if not reduces and extent != 1
    ]
    around = [extent for extent in extents[: position + 1] if extent != 1]
    if [reduction.extents[axis] for axis in axes] != around or 1 in extents[:position]:
        return 0
    joined, size = 0, extents[position]
    while joined < position:
        size *= extents[position - joined - 1]
        others = prod(extents) // size
        if not reduction.flat(axes[-2 - joined], axes[-1 - joined]) or others < machine.cores:
            break
        if size > machine.l1 // 4 // WIDEST:
            break
        joined += 1
    return joined


def _is_one_pass(schedule: Schedule, blocks: list[SBlockRV]) -> bool:
    """Whether one reduction reads everything, and the other blocks work on results: a sum, a mean, a maximum."""
    reductions = [axes_of(schedule, block) for block in blocks if not is_spatial(schedule, block)]
    if len(reductions) > 1:
        return False
    axes = reductions[0]
    results = prod(extent or 0 for extent, reduces in zip(axes.extents, axes.reduces, strict=True) if not reduces)
    others = [axes_of(schedule, block).extents for block in blocks if is_spatial(schedule, block)]
    return all(prod(extent or 0 for extent in extents) <= results for extents in others)


def _one_pass_strip(width: int, rows: int, lanes: int, machine: Machine) -> int:
    """Choose how many neighbouring rows go together where what they hold is read once, so that only sums are kept.

    All of them read memory from end to end. If they must be divided among cores, strips are several cache lines wide:
    where rows are powers of two, every vector of a narrow one has a page of its own and the same place in the cache.
    """
    fitting = [size for size in divisors(width) if size % lanes == 0 and size <= machine.l1 // 4 // WIDEST]
    if rows >= machine.cores and width in fitting:
        return width
    narrow = [size for size in fitting if COLUMN_VECTORS * lanes <= size <= 4 * COLUMN_VECTORS * lanes]
    return max(narrow, default=0) or _strip_width(width, rows, lanes, machine)


def _strip_width(width: int, rows: int, lanes: int, machine: Machine) -> int:
    """Choose how many of ``width`` neighbouring rows go together, of which there are ``rows`` times as many.

    A strip that reaches beyond the last row has a condition at every vector, and its sums leave the registers.
    """
    vectors = COLUMN_VECTORS * lanes
    if width % vectors == 0:
        return vectors
    if width <= 2 * COLUMN_VECTORS * vectors:
        return width
    filled = [size for size in divisors(width) if vectors <= size <= 2 * COLUMN_VECTORS * vectors]
    if filled:
        return max(filled)
    if rows >= machine.cores and width * WIDEST <= machine.l1 // 4:
        return width
    return vectors


def _vectorize_across(schedule: Schedule, block: SBlockRV, machine: Machine, joined: int) -> None:
    """Move the axis of neighbouring elements innermost, inside the reduction, and mark it; so many before it too."""
    axes = axes_of(schedule, block)
    loops = list(schedule.get_loops(block))[-len(axes.extents) :]
    column = loops[_contiguous_axis(axes)]
    reduced = [loop for loop, reduces in zip(loops, axes.reduces, strict=True) if reduces]
    lanes = vector_lanes(schedule, block, machine)
    rest = [loop for loop in loops if loop not in (*reduced, column)]
    planes = [loop for loop in rest if int(schedule.get(loop).extent) != 1] if joined else []
    schedule.reorder(*(loop for loop in rest if loop not in planes), *reduced, *planes, column)
    mark_simd(schedule, column, lanes)
    if reduced:
        initial = schedule.decompose_reduction(block, reduced[0])
        mark_simd(schedule, schedule.get_loops(initial)[-1], lanes)


def _contiguous_axis(axes: Axes) -> int:
    """Find the data-parallel axis along which the result of a block is contiguous."""
    written = next(access for access in axes.accesses if access.written)
    for position, (extent, reduces) in enumerate(zip(axes.extents, axes.reduces, strict=True)):
        if not reduces and extent != 1 and written.strides is not None and written.strides[position] == 1:
            return position
    raise NotRows


def _is_loop(schedule: Schedule, block: SBlockRV, loop: LoopRV, position: int) -> bool:
    return schedule.get(schedule.get_loops(block)[position]).same_as(schedule.get(loop))
