"""Direct convolution in blocked layout: register tiles of output columns x output channel vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Generic, TypeVar

import tvm
from tvm.ir import Expr
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import PrimFunc, Var

from tvm_ext.schedules.compute.bfloat16 import BITS, PAIR
from tvm_ext.schedules.cpu.conv_cost import division_cost
from tvm_ext.schedules.cpu.conv_tile import ConvShape, ConvTile, conv_tile, move_slots
from tvm_ext.schedules.cpu.elementwise import vectorize_and_divide
from tvm_ext.schedules.cpu.intrinsics import bfloat16_intrinsic
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.prologue import inline_prologue
from tvm_ext.schedules.cpu.staged_epilogue import holds_function, stage_sums
from tvm_ext.schedules.cpu.weights import FETCHING_PASSES, MOST_PASSES, fetch_next_weights
from tvm_ext.schedules.kernel.blocks import annotated_block, inline_epilogue, loop_extents
from tvm_ext.schedules.knobs import divide
from tvm_ext.schedules.rule import Cost, is_prepared, new_schedule, prepared_for, prepared_schedule
from tvm_ext.schedules.simd.loops import mark_simd
from tvm_ext.schedules.simd.prefetch import mark_steps

Item = TypeVar("Item")


class Convolution:
    """Schedule a blocked convolution (2-D, 3-D or transposed) with what precedes it, its padding and its epilogue.

    Parallel tasks take a band of rows and a part of the channels; each copies its padded input once, and computes
    meanwhile what is fused in front. Inside, a register
    tile is accumulated over the whole reduction, and the epilogue is applied as the tile is stored.
    """

    name = "cpu.convolution"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it holds a blocked convolution."""
        schedule = prepared_schedule(self, func, target, tunable)
        if schedule is None:
            return None
        machine = machine_of(target)
        conv, pad, shape, transposed = read_convolution(schedule, machine)
        store, rest = inline_epilogue(schedule, conv)
        _apply_tile(schedule, conv, store, pad, conv_tile(shape, machine), transposed, machine.pairs_loads)
        if rest is not None:
            vectorize_and_divide(schedule, rest, machine)
        return schedule

    def cost(self, func: PrimFunc, target: tvm.target.Target) -> Cost | None:
        """Estimate divisions of channels, rows and columns, the first three knobs."""
        schedule = prepared_schedule(self, func, target)
        if schedule is None:
            return None
        machine = machine_of(target)
        _, _, shape, _ = read_convolution(schedule, machine)
        parallel = machine.divides(shape.flops)
        return 3, lambda factors: division_cost(shape, machine, factors, parallel)

    def prepare(self, func: PrimFunc, _target: tvm.target.Target) -> PrimFunc | None:
        """Let the store of a transposed convolution run over phases and positions, as its convolution does."""
        if is_prepared(func, self.name):
            return func
        schedule = new_schedule(func)
        transposed, pixels = (annotated_block(schedule, name) for name in ("conv_transpose", "conv_pixels"))
        if transposed is not None or pixels is not None:
            if transposed is not None:
                axes = axes_of_convolution(loop_extents(schedule, transposed), True)
                _store_by_phase(schedule, inline_epilogue(schedule, transposed)[0], axes)
            else:
                _store_by_pixel(schedule, inline_epilogue(schedule, pixels)[0])
            # The new index expressions must be simplified before they are scheduled.
            return prepared_for(tvm.s_tir.transform.StmtSimplify()(schedule.mod)["main"], self.name)
        return prepared_for(func, self.name) if annotated_block(schedule, "conv") is not None else None


def read_convolution(schedule: Schedule, machine: Machine) -> tuple[SBlockRV, SBlockRV | None, ConvShape, bool]:
    """Find convolution and padding, what is in front inlined; gives what a tile depends on, and whether transposed."""
    transposed, pixels = (annotated_block(schedule, name) for name in ("conv_transpose", "conv_pixels"))
    conv = transposed or pixels or annotated_block(schedule, "conv")
    pad, _ = inline_prologue(schedule, conv, annotated_block(schedule, "pad"))
    shape = _shape_of(schedule, conv, axes_of_convolution(loop_extents(schedule, conv), transposed is not None))
    if pixels is not None:
        size = _input_bytes(schedule, conv)
        shape = replace(shape, input_row_bytes=size, bands=True)
        if pad is not None:
            behind = 1 - shape.out_w / int(schedule.get(conv).reads[0].source.shape[-2])
            slots = _copy_slots(schedule, conv, size, machine)
            shape = replace(shape, copy_slots=slots, copied_behind=max(0.0, behind))
    return conv, pad, shape, transposed is not None


@dataclass(frozen=True)
class _Axes(Generic[Item]):
    """The loops of a convolution (or their extents) by what they run over."""

    planes: list[Item]
    out_chunk: Item
    row: Item
    column: Item
    lane: Item
    reduction: list[Item]


def axes_of_convolution(items: Sequence[Item], transposed: bool = False, reduces: bool = True) -> _Axes[Item]:
    """Sort the loops around the convolution block, or (``reduces`` False) around the block that stores it."""
    reductions = 0
    if reduces:
        reductions = 4 if transposed else len(items) // 2  # input chunk, taps, input lane
    *spatial, row, column, lane = items[: len(items) - reductions]
    if transposed:  # batch, phase row, phase column, chunk
        *planes, out_chunk = spatial
    else:  # batch, chunk, depth
        planes, out_chunk = [spatial[0], *spatial[2:]], spatial[1]
    return _Axes(planes, out_chunk, row, column, lane, list(items[len(items) - reductions :]))


def _shape_of(schedule: Schedule, conv: SBlockRV, axes: _Axes[int]) -> ConvShape:
    source = schedule.get(conv).reads[0].source
    row_chunks, *input_spatial, block = (int(extent) for extent in source.shape[1:])
    pairs = str(source.dtype) == BITS
    _, *taps, _ = axes.reduction[:-1] if pairs else axes.reduction
    row_bytes = input_spatial[-1] * row_chunks * block * (tvm.DataType(source.dtype).bits // 8)
    return ConvShape(
        planes=prod(axes.planes),
        out_chunks=axes.out_chunk,
        out_h=axes.row,
        out_w=axes.column,
        block_out=axes.lane,
        reduction=prod(axes.reduction) // (PAIR if pairs else 1),  # an instruction takes a pair as if it were one
        in_chunks=axes.reduction[0],
        kernel_h=taps[-2],
        stride_h=max(1, (input_spatial[-2] - taps[-2]) // max(1, axes.row - 1)),
        input_row_bytes=row_bytes * prod(taps[:-2]),
    )


def _store_by_phase(schedule: Schedule, store: SBlockRV, axes: _Axes[int]) -> None:
    _, scale_h, scale_w = axes.planes

    def by_phase(n: Var, c: Var, h: Var, w: Var, i: Var) -> list[Expr]:
        return [n, h % scale_h, w % scale_w, c, h // scale_h, w // scale_w, i]

    schedule.transform_block_layout(store, by_phase)


def _input_bytes(schedule: Schedule, conv: SBlockRV) -> int:
    """Bytes of the input of one image, as the convolution reads it."""
    source = schedule.get(conv).reads[0].source
    return prod(int(extent) for extent in source.shape[1:]) * (tvm.DataType(source.dtype).bits // 8)


def _copy_slots(schedule: Schedule, conv: SBlockRV, size: int, machine: Machine) -> float:
    source = schedule.get(conv).reads[0].source
    move_bytes = int(source.shape[-1]) * (tvm.DataType(source.dtype).bits // 8)
    return size // move_bytes * move_slots(move_bytes, machine, size)


def _store_by_pixel(schedule: Schedule, store: SBlockRV) -> None:
    width = loop_extents(schedule, store)[-2]

    def by_pixel(n: Var, c: Var, h: Var, w: Var, i: Var) -> list[Expr]:
        return [n, c, tvm.tirx.const(0), h * width + w, i]

    schedule.transform_block_layout(store, by_pixel)


def _apply_tile(
    schedule: Schedule,
    conv: SBlockRV,
    store: SBlockRV,
    pad: SBlockRV | None,
    tile: ConvTile,
    transposed: bool,
    keeps_apart: bool,
) -> None:
    out = axes_of_convolution(schedule.get_loops(store), transposed, reduces=False)
    part, group, vector = divide(schedule, out.out_chunk, [tile.channel_parts, None, tile.vectors], 4)
    band, row = divide(schedule, out.row, [None, tile.rows])
    piece, strip, column = divide(schedule, out.column, [tile.column_parts, None, tile.columns], 28)
    # Phases differ in what they have to do, so each thread takes some of all.
    planes, phases = (out.planes[:1], out.planes[1:]) if transposed else (out.planes, [])
    outer = [*planes, part, band, piece, *phases]
    schedule.reorder(*outer, group, row, strip, vector, column, out.lane)
    task = schedule.fuse(*outer)
    if tile.parallel:
        schedule.parallel(task)
    passes = tile.rows * int(schedule.get(strip).extent)
    is_plain = int(schedule.get(conv).iter_vars[-1].dom.extent) == 1
    fetches = passes > 1 and (passes <= MOST_PASSES or is_plain)
    if fetches:  # a kernel without such a loop is not looked at when vector code is made
        mark_simd(schedule, out.lane, int(schedule.get(out.lane).extent))
    else:
        schedule.vectorize(out.lane)
    is_part = tile.reduction_parts > 1
    staged = is_plain and not is_part and holds_function(schedule, store)
    if not staged:
        for loop in (column, vector):
            schedule.unroll(loop)
    if is_part:
        conv, row, strip = _sum_in_parts(schedule, conv, group, tile, transposed)
    elif staged:
        stage_sums(schedule, conv, strip)
    schedule.compute_at(conv, strip, preserve_unit_loops=True)
    schedule.set_scope(conv, 0, "local")
    # The loops above come first: task, group, row, strip; and of a part, which it is.
    inner = axes_of_convolution(schedule.get_loops(conv)[7 if is_part else 4 :], transposed)
    pairs = str(schedule.get(conv).reads[0].source.dtype) == BITS
    sums, place = (inner.reduction[:-1], inner.reduction[-1:]) if pairs else (inner.reduction, [])
    schedule.reorder(*inner.planes, inner.row, *sums, inner.column, inner.out_chunk, inner.lane, *place)
    if not pairs:
        schedule.vectorize(inner.lane)
    for loop in (inner.column, inner.out_chunk):
        schedule.unroll(loop)
    if fetches:
        # Over channels in plain layout LLVM writes out the taps of a row, and keeps what one reads for the next one in
        # registers that it does not have; a fetch between them ends that.
        pays = passes <= FETCHING_PASSES or is_plain
        fetch_next_weights(schedule, conv, [row, strip], inner.reduction[0], pays, is_part)
    if keeps_apart:
        mark_steps(schedule, inner.reduction[0])
    initial = schedule.decompose_reduction(conv, inner.reduction[0])
    column_init, vector_init, lane_init = schedule.get_loops(initial)[-3:]
    for loop in (column_init, vector_init):
        schedule.unroll(loop)
    schedule.vectorize(lane_init)
    if pad is not None:
        schedule.compute_at(pad, task, preserve_unit_loops=True)
        innermost = schedule.get_loops(pad)[-1]
        lanes = int(schedule.get(innermost).extent)
        if pairs:
            mark_simd(schedule, innermost, lanes)
        elif lanes > 1:
            schedule.vectorize(innermost)
    if pairs:  # last: what becomes opaque by it must still be seen before
        schedule.tensorize(inner.lane, bfloat16_intrinsic(int(schedule.get(inner.lane).extent)))


def _sum_in_parts(
    schedule: Schedule, conv: SBlockRV, group: LoopRV, tile: ConvTile, transposed: bool
) -> tuple[SBlockRV, LoopRV, LoopRV]:
    """Divide the sums by blocks of input channels; all tiles of a group of channels take a part before the next.

    Returns
    -------
    SBlockRV
        The sum of a part of one tile.
    LoopRV, LoopRV
        Rows, and strips of columns, inside a part.
    """
    axes = axes_of_convolution(schedule.get_loops(conv), transposed)
    part, _ = schedule.split(axes.reduction[0], [tile.reduction_parts, None])
    partial = schedule.rfactor(part, 0)
    schedule.compute_at(conv, group, preserve_unit_loops=True)
    part, *planes, out_chunk, row, column, lane = schedule.get_loops(conv)[2:]  # task and group come first
    strip, column = schedule.split(column, [None, tile.columns])
    schedule.reorder(*planes, part, row, strip, out_chunk, column, lane)
    mark_simd(schedule, lane, int(schedule.get(lane).extent))
    for loop in (out_chunk, column):
        schedule.unroll(loop)
    planes[0] = schedule.fuse(*planes)
    initial = schedule.decompose_reduction(conv, part)
    mark_simd(schedule, schedule.get_loops(initial)[-1], int(schedule.get(lane).extent))
    return partial, row, strip
