"""Operators around an embedded instruction: a register tile of its results, stored where the operator has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import IterVar, PrimFunc

from tvm_ext.schedules.cpu.elementwise import vector_lanes, vectorize_and_divide
from tvm_ext.schedules.cpu.embedded_tile import (
    Copy,
    EmbeddedTasks,
    EmbeddedTile,
    copied_cycles,
    embedded_tasks,
    embedded_tile,
)
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.tile_registers import TILES_ATTRIBUTE, sum_up_tiles, tile_block
from tvm_ext.schedules.cpu.transpose import LARGEST_SIDE, transposed_axes
from tvm_ext.schedules.embedded_form import EMBEDDED, FORM_ATTRIBUTE, EmbeddedForm
from tvm_ext.schedules.instructions.instruction import Instruction
from tvm_ext.schedules.instructions.registered import instruction_named, tensor_intrinsic
from tvm_ext.schedules.kernel.access import Axes, axes_of
from tvm_ext.schedules.kernel.blocks import annotated_block, is_spatial, loop_extents, top_blocks
from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.simd.loops import mark_simd
from tvm_ext.schedules.simd.prefetch import mark_forgetful
from tvm_ext.schedules.simd.tile_marks import mark_tile


class Embedded:
    """Schedule an embedded operator with what stores its operands anew, and its element-wise epilogue.

    Parallel tasks take a band of the results; each copies the data it needs. Inside, a tile of results is accumulated
    in registers over the whole reduction, and stored in the operator's own layout, through the epilogue.
    """

    name = "cpu.embedded"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it holds an embedded operator."""
        schedule = new_schedule(func, tunable)
        product = annotated_block(schedule, EMBEDDED)
        if product is None:
            return None
        machine = machine_of(target)
        form = EmbeddedForm.read(str(schedule.get(product).annotations[FORM_ATTRIBUTE]))
        steps, results = prod(form.steps), prod(loop.extent for loop in form.loops)
        instruction, every = instruction_named(form.instruction), range(len(form.loops))
        if instruction.tiles:
            tile = tile_block(form.loops, steps, instruction, every, form.innermost_lane == 0)
        else:
            left_is_vector = _left_is_vector(schedule, product, form)
            tile = embedded_tile(form.loops, steps, machine, every, left_is_vector, not form.lanes_lie_together)
        copies = _copies(schedule, product)
        store, rest = _stores(schedule, product)
        copied = _copied_slots(schedule, product, copies, machine)
        lanes = prod(loop_extents(schedule, product)) // (results * steps)
        tasks = embedded_tasks(form.loops, tile, steps, copied, lanes, machine)
        _Scheduler(schedule, form, instruction, tile, tasks, machine).run(product, store, copies)
        if rest is not None:
            vectorize_and_divide(schedule, rest, machine)
        return schedule


def _left_of(schedule: Schedule, product: SBlockRV) -> Any:
    """Give the buffer of the instruction's left factor."""
    block = schedule.get(product)
    return next(read.source for read in block.reads if not read.source.same_as(block.writes[0].source))


def _left_is_vector(schedule: Schedule, product: SBlockRV, form: EmbeddedForm) -> bool:
    """Whether the left factor moves along the lanes of the result."""
    block = schedule.get(product)
    left = _left_of(schedule, product)
    region = next(read.region for read in block.reads if read.source.same_as(left))
    used = [variable for extent in region for variable in tvm.tirx.analysis.undefined_vars(extent.min)]
    lanes = [axis.var for axis in block.iter_vars[len(form.loops) :] if int(axis.iter_type) == IterVar.DataPar]
    return any(lane.same_as(variable) for lane in lanes for variable in used)


def _copies(schedule: Schedule, product: SBlockRV) -> list[SBlockRV]:
    """Inline what comes before the product, but for the last block of each of its factors."""
    kept = []
    last = {str(schedule.get(block).name_hint) for block in schedule.get_producers(product)}
    for block in top_blocks(schedule):
        name = str(schedule.get(block).name_hint)
        if name == str(schedule.get(product).name_hint):
            break
        if name in last:
            kept.append(block)
        else:
            schedule.compute_inline(block)
    return kept


def _copied_slots(
    schedule: Schedule, product: SBlockRV, copies: Sequence[SBlockRV], machine: Machine
) -> tuple[float, float]:
    """Multiply-adds that could be issued while the left and the right factor are stored anew."""
    slots = [0.0, 0.0]
    left = _left_of(schedule, product)
    for copy in copies:
        stored = schedule.get(copy).writes[0].source
        slots[not stored.same_as(left)] += 2.0 * _copied_cycles(schedule, copy, machine)
    return slots[0], slots[1]


def _copied_cycles(schedule: Schedule, copy: SBlockRV, machine: Machine) -> float:
    """Cycles of storing a factor anew."""
    axes, extents = axes_of(schedule, copy), loop_extents(schedule, copy)
    written = next(access.strides for access in axes.accesses if access.written) or ()
    last = next((at for at, step in enumerate(written) if step == 1 and extents[at] > 1), -1)
    pair = transposed_axes(axes)
    run = prod(extents[_first_flat(axes, last) : last + 1])
    kind: Copy = "elements"
    if any(access.strides and access.strides[last] == 1 for access in axes.accesses if not access.written):
        kind = "vectors"
    elif pair is not None:
        kind = "interleaved" if run in (2, 4) and written[pair[0]] == run else "tiles"
    return copied_cycles(prod(extents), kind, vector_lanes(schedule, copy, machine), run)


def _first_flat(axes: Axes, last: int) -> int:
    """First of the axes that walk all tensors as one axis would, up to ``last``."""
    first = last
    while first > 0 and axes.flat(first - 1, last):
        first -= 1
    return first


def _stores(schedule: Schedule, product: SBlockRV) -> tuple[SBlockRV, SBlockRV | None]:
    """Inline what follows the product as far as it walks over the operator's result; what is behind stays apart."""
    blocks = top_blocks(schedule)
    names = [str(schedule.get(block).name_hint) for block in blocks]
    _, *after = blocks[names.index(str(schedule.get(product).name_hint)) :]
    # The first one splits axes of the instruction, the second one is the operator's result.
    extents = loop_extents(schedule, after[1])
    alike = [is_spatial(schedule, block) and loop_extents(schedule, block) == extents for block in after[2:]]
    same = 2 + (alike.index(False) if False in alike else len(alike))
    for block in (*after[: same - 1], *after[same:-1]):
        schedule.compute_inline(block)
    return after[same - 1], after[-1] if same < len(after) else None


@dataclass
class _Scheduler:
    """Builds the schedule of one kernel."""

    schedule: Schedule
    form: EmbeddedForm
    instruction: Instruction
    tile: EmbeddedTile
    tasks: EmbeddedTasks
    machine: Machine

    def run(self, product: SBlockRV, store: SBlockRV, copies: Sequence[SBlockRV]) -> None:
        """Schedule product, store and copies."""
        schedule, tile, tasks = self.schedule, self.tile, self.tasks
        local = "local" if self.instruction.tiles else self.instruction.homes[2]
        loops, lanes, units = self._parts(store)
        outer, middle, inner = list(units), [], []
        if tile.vector >= 0:
            groups, vector = schedule.split(loops.pop(tile.vector), [None, tile.vectors])
            part, group = schedule.split(groups, [tasks.parts, None])
            inner.append(vector)
            outer.append(part)
            middle.append(group)
        if tasks.row >= 0:
            band, row = schedule.split(loops.pop(tasks.row), [tasks.bands, None])
            outer.append(band)
            middle.append(row)
        if tile.column >= 0:
            strips, column = schedule.split(loops.pop(tile.column), [None, tile.columns])
            piece, strip = schedule.split(strips, [tasks.pieces, None])
            inner.append(column)
            outer.append(piece)
            middle.append(strip)
        outer = [*(loop for _, loop in sorted(loops.items())), *outer]
        side_by_side = self.form.lanes_lie_together
        if self.instruction.tiles:
            held = [*inner, *(lanes if self.form.innermost_lane != 0 else reversed(lanes))]
        else:
            held = [*inner, *lanes] if side_by_side or tile.column < 0 else [*inner[:-1], *lanes, inner[-1]]
        schedule.reorder(*outer, *middle, *held)
        if not outer:
            outer = [schedule.add_unit_loop([*middle, *held, store][0])]
        if not middle:
            middle = [schedule.add_unit_loop([*held, store][0])]
        task = schedule.fuse(*outer) if len(outer) > 1 else outer[0]
        if tasks.parallel:
            schedule.parallel(task)
        depth = 1 + len(middle)
        if side_by_side:
            schedule.compute_at(product, middle[-1], preserve_unit_loops=True)
            schedule.set_scope(product, 0, local)
            for loop in inner:
                schedule.unroll(loop)
            mark_simd(schedule, held[-1], int(schedule.get(held[-1]).extent))
        else:
            # Sums that are read along another axis than that of the vectors would not stay in registers.
            staged = schedule.cache_write(product, 0, local)
            schedule.compute_at(staged, middle[-1], preserve_unit_loops=True)
            schedule.set_scope(staged, 0, local)
            schedule.compute_at(product, middle[-1], preserve_unit_loops=True)
            if self.instruction.tiles:
                schedule.annotate(task, TILES_ATTRIBUTE, 1)
                self._store_tiles(store, held)
            else:
                self._in_registers(staged, depth)
            if not self.instruction.tiles and tile.column >= 0 and lanes:
                mark_simd(schedule, held[-1], self.machine.lanes(self._result_type(store)))
                mark_tile(schedule, held[-2], self.machine.lanes(self._result_type(store)))
        for copy in copies:
            axes = axes_of(schedule, copy)
            schedule.compute_at(copy, task, preserve_unit_loops=True)
            self._copy(copy, axes)
        if self.instruction.tiles:
            form = self.form
            sum_up_tiles(schedule, product, staged, self.instruction, tile, depth, len(form.loops), len(form.steps))
        else:
            self._sum_up(product, depth)

    def _store_tiles(self, store: SBlockRV, held: Sequence[LoopRV]) -> None:
        """Make vectors of the rows of a tile, or of its columns, which are transposed."""
        lanes = self.machine.lanes(self._result_type(store))
        if self.form.innermost_lane >= 0:
            mark_simd(self.schedule, held[-1], lanes)
        if self.form.innermost_lane == 0:
            mark_tile(self.schedule, held[-2], lanes)

    def _result_type(self, store: SBlockRV) -> str:
        return str(self.schedule.get(store).writes[0].source.dtype)

    def _parts(self, store: SBlockRV) -> tuple[dict[int, LoopRV], list[LoopRV], list[LoopRV]]:
        """Split the dimensions of the result: loops by number, lanes in the order of the instruction, what is one."""
        loops: dict[int, LoopRV] = {}
        lanes: list[tuple[int, LoopRV]] = []
        units = []
        for loop, parts in zip(list(self.schedule.get_loops(store)), self.form.result, strict=True):
            if not parts:
                units.append(loop)
                continue
            pieces = [loop]
            if len(parts) > 1:
                pieces = list(self.schedule.split(loop, [None, *(part.extent for part in parts[1:])]))
            elif parts[0].lane >= 0:  # a vector that is longer than the dimension
                unit, piece = self.schedule.split(loop, [None, parts[0].extent])
                units.append(unit)
                pieces = [piece]
            for piece, part in zip(pieces, parts, strict=True):
                if part.lane >= 0:
                    lanes.append((part.lane, piece))
                else:
                    loops[part.loop] = piece
        return loops, [loop for _, loop in sorted(lanes, key=lambda item: item[0])], units

    def _in_registers(self, block: SBlockRV, depth: int) -> None:
        """Write out the loops of a block over a tile, and make vectors of the last."""
        *outer, last = self.schedule.get_loops(block)[depth:]
        for loop in outer:
            self.schedule.unroll(loop)
        self.schedule.vectorize(last)

    def _copy(self, copy: SBlockRV, axes: Axes) -> None:
        """Make vectors of what is stored anew; of two axes that are transposed, tiles."""
        schedule = self.schedule
        loops = list(schedule.get_loops(copy)[-len(axes.extents) :])
        lanes = vector_lanes(schedule, copy, self.machine)
        pair = transposed_axes(axes)
        if pair is not None:
            read, written = pair
            first = _first_flat(axes, written)
            row = loops[read]
            rest = [loop for at, loop in enumerate(loops) if at != read and not first <= at <= written]
            column = schedule.fuse(*loops[first : written + 1]) if first < written else loops[written]
            extents = (int(schedule.get(loop).extent) for loop in (row, column))
            side = min(lanes, LARGEST_SIDE, *(1 << (extent - 1).bit_length() for extent in extents))
            if side > 1:
                schedule.reorder(*rest, row, column)
                mark_simd(schedule, column, side)
                mark_tile(schedule, row, side)
                return
        innermost = loops[-1]
        first = _first_flat(axes, len(loops) - 1)
        if self.instruction.tiles and first < len(loops) - 1:  # the rows of a tile lie together
            innermost = schedule.fuse(*loops[first:])
        if int(schedule.get(innermost).extent) > 1:
            mark_simd(schedule, innermost, lanes)

    def _sum_up(self, product: SBlockRV, depth: int) -> None:
        """Sum up a tile in registers, the instruction innermost."""
        schedule = self.schedule
        every = list(schedule.get_loops(product))[depth:]
        block = schedule.get(product)
        count = len(self.form.loops)
        lanes = sum(int(axis.iter_type) == IterVar.DataPar for axis in block.iter_vars) - count
        outer, vector = every[:count], every[count : count + lanes]
        sums = every[count + lanes : count + lanes + len(self.form.steps)]
        inner = every[count + lanes + len(self.form.steps) :]
        if not sums:
            sums = [schedule.add_unit_loop(outer[0] if outer else vector[0])]
        held = [outer[at] for at in (self.tile.column, self.tile.vector) if at >= 0]
        others = [loop for at, loop in enumerate(outer) if at not in (self.tile.column, self.tile.vector)]
        schedule.reorder(*others, *sums, *held, *vector, *inner)
        for loop in held:
            schedule.unroll(loop)
        mark_forgetful(schedule, sums[0], rows_apart=bool(inner))  # lanes that are summed up are a load of their own
        initial = schedule.decompose_reduction(product, sums[0])
        self._in_registers(initial, depth + len(others))
        schedule.tensorize(vector[0], tensor_intrinsic(self.instruction))
