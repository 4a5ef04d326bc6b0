"""What no other rule takes: any mixture of reductions and data-parallel blocks.

A reduction takes what follows it into the place where its result leaves the registers, if that is one block which reads
every element once; the other blocks are scheduled on their own.
"""

from __future__ import annotations

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.schedules.cpu.cost import block_seconds
from tvm_ext.schedules.cpu.elementwise import vector_lanes, vectorize_and_divide
from tvm_ext.schedules.cpu.joined_store import join_store, spread_rows
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.tasks import share_out
from tvm_ext.schedules.cpu.transpose import transpose
from tvm_ext.schedules.kernel.access import Axes, axes_of
from tvm_ext.schedules.kernel.blocks import is_spatial, static_extents, top_blocks
from tvm_ext.schedules.kernel.inline import inline_producers
from tvm_ext.schedules.kernel.operations import is_simple
from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.simd.loops import mark_simd

TILE_VECTORS = 2
"""Vectors side by side in the tile of results that a reduction accumulates in registers; at most twice as many."""

TILE_ROWS = (4, 3, 2)
"""Results above one another in that tile, in order of preference; an operand that they share is loaded once."""


class Fallback:
    """Schedule every block of a kernel on its own: vectors inside, threads outside."""

    name = "cpu.fallback"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when its blocks compute single elements and have extents that are known."""
        machine = machine_of(target)
        for joins in (True, False):
            schedule = new_schedule(func, tunable)
            blocks = top_blocks(schedule)
            if not blocks or not all(is_simple(schedule, b) and static_extents(schedule, b) for b in blocks):
                return None
            try:
                _schedule(schedule, machine, joins)
            except tvm.s_tir.ScheduleError:
                continue
            return schedule
        return None


def _schedule(schedule: Schedule, machine: Machine, joins: bool) -> None:
    """Schedule block by block; with ``joins`` what follows a reduction is computed where its result is finished."""
    joined: set[str] = set()
    for block in inline_producers(schedule):
        if schedule.get(block).name_hint in joined:
            continue
        if is_spatial(schedule, block):
            if not transpose(schedule, block, machine):
                vectorize_and_divide(schedule, block, machine)
            continue
        store = join_store(schedule, block) if joins else None
        spread = spread_rows(schedule, block) if joins and store is None else None
        if store is not None:
            joined.add(str(schedule.get(store).name_hint))
        if spread is not None:
            joined.add(str(schedule.get(spread[0]).name_hint))
            _reduce_rows(schedule, block, *spread, machine)
        else:
            _reduce(schedule, block, store, machine)


def _reduce(schedule: Schedule, block: SBlockRV, store: SBlockRV | None, machine: Machine) -> None:
    """Vectorise a reduction along the axis whose elements are easiest to load, be it reduced or not.

    ``store`` is the block that takes its result, over the same axes, if there is one.
    """
    axes = axes_of(schedule, block)
    lanes = vector_lanes(schedule, block, machine)
    seconds = block_seconds(schedule, block, machine)
    axis = _best_axis(axes, lanes)
    if (axis is None or axes.reduces[axis]) and store is not None:
        _reduce_into(schedule, block, store, axes, axis, lanes, seconds, machine)
        return
    loops = list(schedule.get_loops(block))
    if axis is None:
        spatial = [loop for loop, reduces in zip(loops, axes.reduces, strict=True) if not reduces]
        schedule.reorder(*spatial, *(loop for loop, reduces in zip(loops, axes.reduces, strict=True) if reduces))
        share_out(schedule, spatial, seconds, machine)
    elif axes.reduces[axis]:
        _reduce_along(schedule, block, axes, axis, lanes, seconds, machine)
    else:
        _reduce_side_by_side(schedule, block, store, axes, axis, lanes, seconds, machine)


def _best_axis(axes: Axes, lanes: int) -> int | None:
    """Choose the axis for vectors by the elements computed at once over what loading and storing them takes."""
    best, best_gain = None, 1.0
    for axis, extent in enumerate(axes.extents):
        cost = 0.5
        for access in axes.accesses:
            stride = access.strides[axis] if access.strides is not None else None
            loads = 0.25 if stride == 0 else 1.0 if stride == 1 else lanes / 2
            cost += loads / 4 if access.written else loads  # stored once, after all that is reduced was loaded
        gain = min(extent or 1, lanes) / cost
        if gain > best_gain:
            best, best_gain = axis, gain
    return best


def _reduce_along(
    schedule: Schedule, block: SBlockRV, axes: Axes, axis: int, lanes: int, seconds: float, machine: Machine
) -> None:
    loops = list(schedule.get_loops(block))
    spatial = [loop for loop, reduces in zip(loops, axes.reduces, strict=True) if not reduces]
    reduced = [loop for number, loop in enumerate(loops) if axes.reduces[number] and number != axis]
    schedule.reorder(*spatial, *reduced, loops[axis])
    share_out(schedule, spatial, seconds, machine)
    schedule.decompose_reduction(block, [*reduced, loops[axis]][0])
    mark_simd(schedule, schedule.get_loops(block)[-1], lanes)


def _reduce_rows(
    schedule: Schedule, block: SBlockRV, store: SBlockRV, row: LoopRV, depth: int, machine: Machine
) -> None:
    """Reduce a row, then spread it; ``depth`` loops up to ``row`` are rows."""
    axes = axes_of(schedule, block)
    lanes = vector_lanes(schedule, block, machine)
    seconds = block_seconds(schedule, block, machine) + block_seconds(schedule, store, machine)
    axis = _best_axis(axes, lanes)
    schedule.compute_at(block, row, preserve_unit_loops=True)
    inner = list(schedule.get_loops(block))[-len(axes.extents) :]
    reduced = [loop for loop, reduces in zip(inner, axes.reduces, strict=True) if reduces]
    rest = [loop for loop, reduces in zip(inner, axes.reduces, strict=True) if not reduces]
    vector = inner[axis] if axis is not None else None
    order = [*rest, *reduced] if vector is None or vector in reduced else [*reduced, *rest]
    order = [*(loop for loop in order if vector is None or loop is not vector), *([] if vector is None else [vector])]
    schedule.reorder(*order)
    share_out(schedule, list(schedule.get_loops(store))[:depth], seconds, machine)
    initial = schedule.decompose_reduction(block, next(loop for loop in order if any(loop is r for r in reduced)))
    if vector is not None:
        mark_simd(schedule, vector, lanes)
        if not any(vector is loop for loop in reduced):
            mark_simd(schedule, schedule.get_loops(initial)[-1], lanes)
    mark_simd(schedule, schedule.get_loops(store)[-1], vector_lanes(schedule, store, machine))


def _reduce_into(
    schedule: Schedule,
    block: SBlockRV,
    store: SBlockRV,
    axes: Axes,
    axis: int | None,
    lanes: int,
    seconds: float,
    machine: Machine,
) -> None:
    """Reduce one element after another, each where it is stored; vectors along ``axis`` if there is one."""
    *outer, innermost = schedule.get_loops(store) or [schedule.add_unit_loop(store)]
    schedule.compute_at(block, innermost, preserve_unit_loops=True)
    schedule.set_scope(block, 0, "local")
    inner = list(schedule.get_loops(block))[-len(axes.extents) :]
    reduced = [
        loop
        for number, (loop, reduces) in enumerate(zip(inner, axes.reduces, strict=True))
        if reduces and number != axis
    ]
    if axis is not None:
        reduced.append(inner[axis])
    schedule.reorder(*reduced)
    share_out(schedule, outer or [innermost], seconds, machine)
    schedule.decompose_reduction(block, reduced[0])
    if axis is not None:
        mark_simd(schedule, inner[axis], lanes)


def _reduce_side_by_side(
    schedule: Schedule,
    block: SBlockRV,
    store: SBlockRV | None,
    axes: Axes,
    axis: int,
    lanes: int,
    seconds: float,
    machine: Machine,
) -> None:
    """Accumulate tiles of results in registers: vectors along ``axis``, rows along an axis that shares operands."""
    shared = _shared_axis(axes, axis)
    if store is None:
        store = schedule.cache_write(block, 0, "global")
    loops = list(schedule.get_loops(store))
    # The copy has the data-parallel axes of the block, in the order in which they index the result.
    places = [number for number, reduces in enumerate(axes.reduces) if not reduces]
    column = loops[places.index(axis)]
    row = loops[places.index(shared[0])] if shared else None
    outer = [loop for loop in loops if loop not in (column, row)]
    width = int(schedule.get(column).extent)
    tile = tile_width(width, lanes)
    if tile < width:
        column_outer, column = schedule.split(column, [None, tile])
        outer.append(column_outer)
    if row is not None and shared:
        row_outer, row = schedule.split(row, [None, shared[1]])
        outer.append(row_outer)
    inside: list[LoopRV] = [row, column] if row is not None else [column]
    schedule.reorder(*outer, *inside)
    if not outer:
        outer = [schedule.add_unit_loop(schedule.get_loops(store)[0])]
    task = schedule.fuse(*outer)
    schedule.compute_at(block, task, preserve_unit_loops=True)
    share_out(schedule, [task], seconds, machine)
    mark_simd(schedule, column, lanes)
    _accumulate(schedule, block, axes, axis, shared[0] if shared else None, lanes)


def _accumulate(schedule: Schedule, block: SBlockRV, axes: Axes, axis: int, row: int | None, lanes: int) -> None:
    loops = list(schedule.get_loops(block))[-len(axes.extents) :]
    reduced = [loop for loop, reduces in zip(loops, axes.reduces, strict=True) if reduces]
    inner = [loops[number] for number in (row, axis) if number is not None]
    rest = [loop for loop in loops if loop not in (*reduced, *inner)]
    schedule.reorder(*rest, *reduced, *inner)
    if row is not None:
        schedule.unroll(loops[row])
    mark_simd(schedule, loops[axis], lanes)
    initial = schedule.decompose_reduction(block, reduced[0])
    mark_simd(schedule, schedule.get_loops(initial)[-1], lanes)


def tile_width(width: int, lanes: int) -> int:
    """Choose the width of a tile by the vectors that cover all tiles; one that does not divide needs masked stores."""

    def vectors(tile: int) -> float:
        # What is left beside whole vectors is covered by ever smaller ones.
        covering = tile // lanes + (tile % lanes).bit_count()
        tiles = -(-width // tile)
        return tiles * (covering * (1.0 if width % tile == 0 else 3.0) + 1.0)

    largest = 2 * TILE_VECTORS * lanes
    return min(range(min(width, lanes), min(width, largest) + 1), key=vectors)


def _shared_axis(axes: Axes, column: int) -> tuple[int, int] | None:
    """Find a data-parallel axis along which an operand stays the same, and how many of it a tile takes."""
    for axis, extent in enumerate(axes.extents):
        if axes.reduces[axis] or axis == column or extent is None or extent == 1:
            continue
        if any(not access.written and access.strides and access.strides[axis] == 0 for access in axes.accesses):
            count = next((count for count in TILE_ROWS if extent % count == 0), 1)
            if count > 1:
                return axis, count
    return None
