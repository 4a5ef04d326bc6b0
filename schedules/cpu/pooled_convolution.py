"""Direct convolutions whose results are pooled as they come out of the registers, in windows of two columns.

before: ``t = relu(conv(x, w)); y = max_pool(t)``
after:  for each row of a window: ``y = max(y, relu(conv(x, w)))``, with no ``t`` in memory
"""

from __future__ import annotations

from dataclasses import replace

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.schedules.compute.bfloat16 import BITS
from tvm_ext.schedules.cpu.conv_tile import ConvTile, conv_tile
from tvm_ext.schedules.cpu.convolution import axes_of_convolution, read_convolution
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.divisors import divisors
from tvm_ext.schedules.kernel.blocks import annotated_block, is_spatial, loop_extents, static_extents, top_blocks
from tvm_ext.schedules.rule import is_prepared, new_schedule, prepared_for, prepared_schedule

WINDOW = 2
"""Rows and columns of a window."""


class PooledConvolution:
    """Schedule a direct convolution, what follows it element by element, and the pooling of that."""

    name = "cpu.pooled_convolution"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it holds both; nothing of it is tuned."""
        schedule = None if tunable else prepared_schedule(self, func, target)
        if schedule is None:
            return None
        machine = machine_of(target)
        conv, pad, shape, _ = read_convolution(schedule, machine)
        pool = annotated_block(schedule, "pool")
        assert pool is not None
        for block in _between(schedule, conv, pool):
            schedule.compute_inline(block)
        # The sums of a tile are complete when it is pooled.
        tile = replace(conv_tile(shape, machine), reduction_parts=1)
        _apply_tile(schedule, conv, pool, pad, tile)
        return schedule

    def prepare(self, func: PrimFunc, _target: tvm.target.Target) -> PrimFunc | None:
        """Note that this rule takes ``func``, which it does as it is."""
        if is_prepared(func, self.name):
            return func
        schedule = new_schedule(func)
        return prepared_for(func, self.name) if _is_pooled_convolution(schedule) else None


def _is_pooled_convolution(schedule: Schedule) -> bool:
    conv, pool = (annotated_block(schedule, kind) for kind in ("conv", "pool"))
    if conv is None or pool is None or not all(static_extents(schedule, block) for block in top_blocks(schedule)):
        return False
    if str(schedule.get(conv).reads[0].source.dtype) == BITS:
        return False  # tiles here multiply float32: without the instruction for pairs they take four times as long
    last = top_blocks(schedule)[-1]
    if schedule.get(last).name_hint != schedule.get(pool).name_hint:
        return False
    if loop_extents(schedule, pool)[-2:] != [WINDOW, WINDOW] or _columns(schedule, conv) % WINDOW:
        return False
    return all(is_spatial(schedule, block) for block in _between(schedule, conv, pool))


def _columns(schedule: Schedule, conv: SBlockRV) -> int:
    """Columns that a convolution computes."""
    return int(axes_of_convolution(loop_extents(schedule, conv)).column)


def _between(schedule: Schedule, first: SBlockRV, last: SBlockRV) -> list[SBlockRV]:
    blocks = top_blocks(schedule)
    names = [str(schedule.get(block).name_hint) for block in blocks]
    begin, end = (names.index(str(schedule.get(block).name_hint)) for block in (first, last))
    return blocks[begin + 1 : end]


def _apply_tile(schedule: Schedule, conv: SBlockRV, pool: SBlockRV, pad: SBlockRV | None, tile: ConvTile) -> None:
    """Divide the pooled rows and columns as the convolution's would be, and sum a tile for each row of the windows."""
    rank = (len(schedule.get(pool).iter_vars) - 3) // 2
    loops = schedule.get_loops(pool)
    out, taps = axes_of_convolution(loops[:-rank], reduces=False), loops[-rank:]
    rows, width = int(schedule.get(out.row).extent), _columns(schedule, conv)
    band_rows = max(size for size in divisors(rows) if size <= max(1, tile.rows // WINDOW))
    columns = max(size for size in divisors(width) if size % WINDOW == 0 and size <= max(WINDOW, tile.columns))
    part, group, vector = schedule.split(out.out_chunk, [tile.channel_parts, None, tile.vectors])
    band, row = schedule.split(out.row, [None, band_rows])
    strip, column = schedule.split(out.column, [None, columns // WINDOW])
    *high, wide = taps
    schedule.reorder(*out.planes, part, band, group, row, *high, strip, vector, column, wide, out.lane)
    task = schedule.fuse(*out.planes, part, band)
    if tile.parallel:
        schedule.parallel(task)
    for loop in (vector, column, wide):
        schedule.unroll(loop)
    schedule.vectorize(out.lane)
    schedule.compute_at(conv, strip, preserve_unit_loops=True)
    schedule.set_scope(conv, 0, "local")
    inner = axes_of_convolution(schedule.get_loops(conv)[len(high) + 4 :])
    schedule.reorder(*inner.planes, inner.row, *inner.reduction, inner.column, inner.out_chunk, inner.lane)
    schedule.vectorize(inner.lane)
    for loop in (inner.column, inner.out_chunk):
        schedule.unroll(loop)
    for block, sums, unrolled in ((conv, inner.reduction[0], 2), (pool, high[0], 2)):
        initial = schedule.decompose_reduction(block, sums)
        *outer, lane = schedule.get_loops(initial)
        for loop in outer[-unrolled:]:
            schedule.unroll(loop)
        schedule.vectorize(lane)
    if pad is not None:
        schedule.compute_at(pad, task, preserve_unit_loops=True)
        innermost = schedule.get_loops(pad)[-1]
        if int(schedule.get(innermost).extent) > 1:
            schedule.vectorize(innermost)
