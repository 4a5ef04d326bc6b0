"""Reductions with what is computed from them, in one kernel: softmax, normalisations, means, products with a vector.

Where the reduced elements lie side by side, the threads of a block go along a row; otherwise neighbouring threads have
neighbouring rows, and further threads share the elements of each. There may be any number of rows, and of elements of
a row: what has the length of such a row is in no shared memory, but computed again.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import tvm
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import IterVar, PrimFunc
from tvm.tirx.analysis import undefined_vars

from tvm_ext.schedules.cuda.blocks import element_bytes, extent, longest_vector, touched
from tvm_ext.schedules.cuda.elementwise import bind_flat
from tvm_ext.schedules.cuda.finish import finish_schedule
from tvm_ext.schedules.cuda.machine import MOST_THREADS, STATIC_SHARED, WARP, GpuMachine, machine_of
from tvm_ext.schedules.cuda.open_extents import OPEN_ROWS, divisor, estimated, is_open, product, same
from tvm_ext.schedules.kernel.access import axes_of
from tvm_ext.schedules.kernel.blocks import is_spatial, static_extents, top_blocks
from tvm_ext.schedules.kernel.inline import inline_producers
from tvm_ext.schedules.kernel.operations import has_condition, is_simple
from tvm_ext.schedules.kernel.rows import (
    NotRows,
    check_single_pass,
    contiguous_axis_reduces,
    row_buffers_of,
    row_loops,
)
from tvm_ext.schedules.knobs import pick
from tvm_ext.schedules.rule import new_schedule

ELEMENTS = 8
"""Elements of a row that a thread takes, about: enough loads under way, and few steps of the tree that adds up."""

MOST_SHARED = STATIC_SHARED - (4 << 10)
"""Bytes of rows and of what they are reduced to that a block keeps; a reduction takes some besides on its way."""

MOST_SERIAL = 16
"""Elements up to which a thread for each row is better than a warp, as in pooling, where there are rows enough."""


RACING = ("int8", "uint8", "int16", "uint16", "bool", "bfloat16")
"""Types that TVM does not exchange by shuffles: threads of a warp go through shared memory without a barrier. Sums and
extremes of them come in 32 bits; what is left are places of extremes."""

THREADS_OF_OPEN = 256
"""Threads of a row that may have any number of elements."""

THREADS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""What a tuner may choose for the threads of a row, or the rows of a block."""


class RowReduction:
    """Schedule a kernel of reductions over single tensors, or products with a vector, and data-parallel blocks."""

    name = "cuda.row_reduction"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when its reductions share their rows and read an element once."""
        schedule = new_schedule(func, tunable)
        blocks = top_blocks(schedule)
        if not blocks or all(is_spatial(schedule, block) for block in blocks):
            return None
        if not all(is_simple(schedule, block) for block in blocks):
            return None
        if tunable and not all(static_extents(schedule, block) for block in blocks):
            return None
        try:
            _schedule(schedule, machine_of(target))
        except (ScheduleError, NotRows):
            return None
        return finish_schedule(schedule, {"tvm_ext.threads_of_one_type": 1, "tvm_ext.barriers_behind_sums": 1})


def _schedule(schedule: Schedule, machine: GpuMachine) -> None:
    blocks = _few_blocks(schedule)
    reductions = [block for block in blocks if not is_spatial(schedule, block)]
    if len(schedule.get_output_blocks("root")) != 1 or not reductions:
        raise NotRows
    for block in reductions:
        if not _reads_in_order(schedule, block):
            check_single_pass(schedule, block)
        if any(str(region.source.dtype) in RACING for region in schedule.get(block).writes):
            raise NotRows
    along = contiguous_axis_reduces(axes_of(schedule, reductions[0]))
    behind = _behind_rows(schedule, blocks)
    blocks = blocks[: len(blocks) - len(behind)]
    if not is_spatial(schedule, blocks[-1]):
        blocks = [*blocks, schedule.cache_write(blocks[-1], 0, "local")]
    rows, inside = row_loops(schedule, blocks)
    count = product(schedule.get(loop).extent for loop in rows)
    if not all(same(_results(schedule, block), count) for block in reductions):
        raise NotRows  # what is computed of it has other rows, as in squeeze and excitation
    length = max((_reduced(schedule, block) for block in reductions), key=estimated)
    few = not is_open(length) and length <= MOST_SERIAL and estimated(count, OPEN_ROWS) >= MOST_SERIAL * length
    if along and len(reductions) == 1 and few:
        raise NotRows
    if not rows:
        loops = schedule.get_loops(blocks[-1])
        rows = [schedule.add_unit_loop(loops[0] if loops else blocks[-1])]
        inside = list(loops)
    schedule.reorder(*rows, *inside)
    if not inside:
        schedule.add_unit_loop(blocks[-1])
    if along:
        _along_rows(schedule, blocks, rows, length, machine)
    else:
        _across_rows(schedule, blocks, rows, length, machine)
    for block in behind:
        bind_flat(schedule, block, machine)


def _behind_rows(schedule: Schedule, blocks: list[SBlockRV]) -> list[SBlockRV]:
    """Find what is computed of rows without what they were reduced to, as a softmax for many channels.

    It is a launch of its own, for which rows may be too few.
    """
    of_rows = row_buffers_of(schedule, blocks)
    position = len(blocks)
    while position > 1 and is_spatial(schedule, blocks[position - 1]):
        reads = [region.source for region in schedule.get(blocks[position - 1]).reads]
        if any(source.same_as(buffer) for source in reads for buffer in of_rows):
            break
        position -= 1
    return blocks[position:]


def _few_blocks(schedule: Schedule) -> list[SBlockRV]:
    """Inline what is worth it, and what has one element a row; a thread computes that again for nothing."""
    inline_producers(schedule)
    blocks = top_blocks(schedule)
    of_rows = row_buffers_of(schedule, blocks)
    for block in blocks[:-1]:
        written = schedule.get(block).writes[0].source
        if is_spatial(schedule, block) and any(written.same_as(buffer) for buffer in of_rows):
            schedule.compute_inline(block)
    return top_blocks(schedule)


def _reads_in_order(schedule: Schedule, block: SBlockRV) -> bool:
    """Whether a reduction reads each element of a tensor once, axis by axis: strides of open extents are no numbers.

    An axis of the tensor is one of the reduction, or several of known extents.
    """
    body = schedule.get(block)
    axes = [axis for axis in body.iter_vars if is_open(axis.dom.extent) or int(axis.dom.extent) != 1]
    return any(_meets_once(region, axes) for region in body.reads)


def _meets_once(region: Any, axes: list[Any]) -> bool:
    found = 0
    for item in region.region:
        own = [axis for axis in axes if any(axis.var.same_as(var) for var in undefined_vars(item.min))]
        found += len(own)
        if not own or (len(own) == 1 and own[0].var.same_as(item.min)):
            continue
        if any(is_open(axis.dom.extent) for axis in own):
            return False
        steps = list(tvm.sym.detect_linear_equation(item.min, [axis.var for axis in own]))[: len(own)]
        if len(steps) != len(own) or any(map(is_open, steps)):
            return False
        reach = 1
        for step, size in sorted((int(step), int(axis.dom.extent)) for step, axis in zip(steps, own, strict=True)):
            if step < reach:
                return False
            reach = step * size
    return found == len(axes)


def _reduced(schedule: Schedule, block: SBlockRV) -> Any:
    """Count the elements that one element of the result is made of."""
    axes = schedule.get(block).iter_vars
    return product(axis.dom.extent for axis in axes if int(axis.iter_type) == IterVar.CommReduce)


def _results(schedule: Schedule, block: SBlockRV) -> Any:
    """Count the elements of the result of a reduction."""
    axes = schedule.get(block).iter_vars
    return product(axis.dom.extent for axis in axes if int(axis.iter_type) != IterVar.CommReduce)


def _along_rows(
    schedule: Schedule, blocks: list[SBlockRV], rows: list[LoopRV], length: Any, machine: GpuMachine
) -> None:
    """Give each row to the threads of a block or, when rows are short, of a warp."""
    sides = [schedule.get(loop).extent for loop in rows]
    some = estimated(product(sides), OPEN_ROWS)
    share = ELEMENTS if some >= machine.multiprocessors else 2
    threads = THREADS_OF_OPEN
    if not is_open(length):
        threads = min(1024, max(WARP, _next_power_of_two(-(-length // share))))
        threads = pick(schedule, [size for size in THREADS if WARP <= size <= 2 * max(length, WARP)], threads)
    fitting = [size for size in range(1, 9) if _is_box(size, sides)]
    few = [size for size in fitting if size == 1 or (threads == WARP and some // size >= 2 * machine.multiprocessors)]
    together = pick(schedule, fitting, max(few))
    if threads * together > MOST_THREADS:
        raise NotRows
    block, inner = _blocks_of_rows(schedule, rows, together)
    schedule.bind(block, "blockIdx.x")
    if together > 1:
        schedule.bind(inner, "threadIdx.y")
    kept = MOST_SHARED + 1 if is_open(length) else length * together
    if _bytes_between(schedule, blocks, kept) > MOST_SHARED:
        blocks = _computed_again(schedule, blocks)
    for item in reversed(blocks[:-1]):
        schedule.compute_at(item, inner, preserve_unit_loops=False)
    for item in blocks:
        _spread(schedule, item, inner, threads, "threadIdx.x", vectors=True)
    _keep_in_shared(schedule, blocks, kept)


def _across_rows(
    schedule: Schedule, blocks: list[SBlockRV], rows: list[LoopRV], length: int, machine: GpuMachine
) -> None:
    """Give neighbouring rows to neighbouring threads, and each row to as many as keep the machine busy."""
    if is_open(length):
        blocks, length = _computed_again(schedule, blocks), estimated(length, OPEN_ROWS)
    sides = [schedule.get(loop).extent for loop in rows]
    columns, sharing = _shape(sides, length, machine)
    columns = pick(schedule, [size for size in THREADS if size <= 256 and _is_box(size, sides)], columns)
    sharing = pick(schedule, [size for size in (1, 2, 4, 8, 16, 32) if size <= max(1, length)], sharing)
    if columns * sharing > MOST_THREADS:
        raise NotRows
    # A row shared by one thread keeps its sums in registers.
    if sharing == 1:
        blocks = _computed_again(schedule, blocks)
        for item in blocks[:-1]:
            for number in range(len(schedule.get(item).writes)):
                schedule.set_scope(item, number, "local")
    elif _bytes_between(schedule, blocks, length * columns) > MOST_SHARED:
        blocks = _computed_again(schedule, blocks)
    block, thread = _blocks_of_rows(schedule, rows, columns)
    schedule.bind(block, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    for item in reversed(blocks[:-1]):
        schedule.compute_at(item, thread, preserve_unit_loops=False)
    if sharing > 1:
        for item in blocks:
            _spread(schedule, item, thread, sharing, "threadIdx.y", vectors=False)
        _keep_in_shared(schedule, blocks, length * columns)


def _is_box(size: int, sides: list[Any]) -> bool:
    """Whether each ``size`` rows that follow one another are a box of the axes that rows have.

    Of others, a block would keep the box around them in shared memory.
    """
    for side in reversed(sides):
        known = divisor(side)
        if known % size == 0:
            return True
        if is_open(side) or size % known:
            return False
        size //= known
    return size == 1


def _blocks_of_rows(schedule: Schedule, rows: list[LoopRV], size: int) -> tuple[LoopRV, LoopRV]:
    """Divide rows into blocks of ``size``; gives the loop over blocks, and that over the rows of one.

    A box is cut out of the axes that it lies on: TVM would take the quotients of a row's number for all there are.
    """
    sides = [schedule.get(loop).extent for loop in rows]
    if size == 1 or not _is_box(size, sides):
        block, row = schedule.split(schedule.fuse(*rows) if len(rows) > 1 else rows[0], [None, size])
        return block, row
    outside, inside = list(rows), list[LoopRV]()
    while size > 1:
        loop, known = outside.pop(), divisor(sides[len(outside)])
        if known % size == 0:
            more, loop = schedule.split(loop, [None, size])
            outside.append(more)
            known = size
        inside.insert(0, loop)
        size //= known
    block = schedule.fuse(*outside) if len(outside) > 1 else outside[0]
    return block, schedule.fuse(*inside) if len(inside) > 1 else inside[0]


def _shape(sides: list[Any], length: int, machine: GpuMachine) -> tuple[int, int]:
    """Choose how many rows are side by side in a block, and how many threads share each."""
    wanted = machine.multiprocessors * machine.threads_per_multiprocessor // 2
    some = estimated(product(sides), OPEN_ROWS)
    sharing = 1
    while sharing < 32 and some * sharing < wanted and length >= 2 * ELEMENTS * sharing:
        sharing *= 2
    most = 128 if sharing == 1 else 32
    while most > 8 and -(-some // most) < machine.multiprocessors:
        most //= 2
    # A part of a block without rows would be a condition around barriers, which there are none of where nothing is
    # shared.
    columns = max(size for size in range(1, most + 1) if _is_box(size, sides))
    return (columns, sharing) if columns >= min(8, some) else (32, 1)


def _computed_again(schedule: Schedule, blocks: list[SBlockRV]) -> list[SBlockRV]:
    """Compute again, wherever it is read, what has the length of a row that shared memory is too small for.

    The row itself comes from the L2 cache then, as the blocks that run at a time are few.
    """
    spatial = [block for block in blocks[:-1] if is_spatial(schedule, block)]
    for block in spatial:
        schedule.compute_inline(block)
    return [block for block in blocks if block not in spatial]


def _bytes_between(schedule: Schedule, blocks: list[SBlockRV], elements: int) -> int:
    """Count the bytes of what is passed between threads when a block has so many elements of rows."""
    return sum(
        element_bytes(region.source.dtype) * (elements if is_spatial(schedule, block) else 64)
        for block in blocks[:-1]
        for region in schedule.get(block).writes
    )


def _keep_in_shared(schedule: Schedule, blocks: list[SBlockRV], elements: int) -> None:
    """Keep what is passed between threads in shared memory, as long as it fits.

    This comes last: what is in shared memory is computed for all threads of a block at once where it is computed.
    """
    if _bytes_between(schedule, blocks, elements) > MOST_SHARED:
        raise NotRows
    for block in blocks[:-1]:
        for number, region in enumerate(schedule.get(block).writes):
            # The last reduction before a copy of its result keeps it in registers already.
            if str(region.source.scope()) in ("global", "local"):
                schedule.set_scope(block, number, "shared")


def _spread(schedule: Schedule, block: SBlockRV, row: LoopRV, threads: int, thread: str, vectors: bool) -> None:
    """Share what a block does for one row among threads."""
    loops = schedule.get_loops(block)
    names = [schedule.get(loop).loop_var.name for loop in loops]
    position = names.index(schedule.get(row).loop_var.name)
    # Axes of one element stay apart: a reduction across threads is recognised by loops of nothing but it.
    inner = [loop for loop in loops[position + 1 :] if estimated(schedule.get(loop).extent) > 1]
    if not inner:
        inner = [schedule.add_unit_loop(block)]
    fused = schedule.fuse(*inner) if len(inner) > 1 else inner[0]
    total = schedule.get(fused).extent
    wide = 1
    if vectors and is_spatial(schedule, block) and not has_condition(schedule, block):
        wide = _vector(schedule, block, total, threads)
    pieces = schedule.split(fused, [None, threads, wide]) if wide > 1 else schedule.split(fused, [None, threads])
    schedule.bind(pieces[1], thread)
    if wide > 1:
        schedule.vectorize(pieces[2])
    if not is_open(total) and extent(schedule, pieces[0]) > 1:
        schedule.annotate(pieces[0], "pragma_auto_unroll_max_step", 16)
        schedule.annotate(pieces[0], "pragma_unroll_explicit", 1)


def _vector(schedule: Schedule, block: SBlockRV, total: Any, threads: int) -> int:
    """Count the elements of an access where a row is stored: as many as lie side by side in every tensor."""
    wide = longest_vector(touched(schedule, block))
    axes = axes_of(schedule, block)
    for access in axes.accesses:
        if not access.strides or access.strides[-1] not in (0, 1):
            return 1
        row_size = divisor(access.buffer.shape[-1]) if access.strides[-1] == 1 else wide
        wide = gcd(wide, row_size)
    return wide if is_open(total) or int(total) >= threads * wide else 1


def _next_power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
