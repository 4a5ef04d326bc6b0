"""Winograd convolutions as one kernel: the transforms and the products of a strip, then those of the next.

before: ``for s: transform strip s;  for s: multiply strip s;  for s: transform the products of strip s back``
after:  ``for s: transform strip s; multiply strip s; transform the products of strip s back``

What is between the transforms is then needed for one strip only; TVM's lowering makes the buffers as small. Where
there are too few strips for the cores, or filters are much to read again, a task takes a part of the channels: it
transforms the strip itself, or all threads do so together before the first part is begun. How a convolution is divided
is decided in :mod:`.winograd_division`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.relax_utils import substitute
from tvm_ext.schedules.annotations import PARTS_ATTRIBUTE, SHARES_ATTRIBUTE, TILE_ATTRIBUTE
from tvm_ext.schedules.cpu.elementwise import vectorize_and_divide
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.matmul import apply_tile, matmul_task
from tvm_ext.schedules.cpu.product import order_axes, product_extents
from tvm_ext.schedules.cpu.winograd import transform_at
from tvm_ext.schedules.kernel.blocks import annotated_block, inline_epilogue, loop_extents, top_blocks
from tvm_ext.schedules.rule import is_prepared, new_schedule, prepared_for, prepared_schedule


class WinogradStrips:
    """Schedule a Winograd convolution that is one kernel, the epilogue fused to its end."""

    name = "cpu.winograd_strips"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it holds both transforms and the products; nothing of it is tuned."""
        if tunable:
            return None
        schedule = prepared_schedule(self, func, target)
        if schedule is None:
            return None
        machine = machine_of(target)
        forward, back = (annotated_block(schedule, f"winograd_{name}") for name in ("input", "output"))
        assert forward is not None
        assert back is not None
        flops = product_flops(schedule)
        one = replace(machine, cores=1)  # a strip is the work of one thread, which keeps what it needs to itself
        parts, shares = (int(schedule.get(forward).annotations[name]) for name in (PARTS_ATTRIBUTE, SHARES_ATTRIBUTE))
        _forward(schedule, forward)
        strips = _multiply(schedule, one, parts)
        _back(schedule, back, strips, parts, machine)
        join = _shared if shares else _joined
        return new_schedule(join(schedule.mod["main"], strips, parts, machine.divides(flops)))

    def prepare(self, func: PrimFunc, _target: tvm.target.Target) -> PrimFunc | None:
        """Let the block that stores the products walk over strips and positions, rows and columns."""
        if is_prepared(func, self.name):
            return func
        schedule = new_schedule(func)
        names = ("winograd_input", "matmul", "winograd_output")
        product = annotated_block(schedule, "matmul")
        if product is None or any(annotated_block(schedule, name) is None for name in names):
            return None
        windows = [block for block in top_blocks(schedule) if schedule.get(block).name_hint == "windows"]
        for block in windows:
            schedule.compute_inline(block)
        (store,) = schedule.get_consumers(product)
        order_axes(schedule, product, store, loop_extents(schedule, store))
        return prepared_for(s_tir.transform.StmtSimplify()(schedule.mod)["main"], self.name)


def product_flops(schedule: Schedule) -> int:
    """Count the multiplications and additions of the products."""
    extents = product_extents(schedule)
    assert extents is not None
    return extents.flops


def _forward(schedule: Schedule, transformed: SBlockRV) -> None:
    cut, half = (annotated_block(schedule, name) for name in ("winograd_tile", "winograd_half"))
    assert cut is not None
    assert half is not None
    lanes = loop_extents(schedule, cut)[-1]
    strip, position, *place, c = schedule.get_loops(transformed)
    chunk, lane = schedule.split(c, [None, lanes])
    schedule.reorder(strip, *place, chunk, position, lane)
    transform_at(schedule, (half, cut), chunk, (position, lane))


def _multiply(schedule: Schedule, machine: Machine, parts: int) -> int:
    product = annotated_block(schedule, "matmul")
    extents = product_extents(schedule)
    assert product is not None
    assert extents is not None
    (store,) = schedule.get_consumers(product)
    forward = annotated_block(schedule, "winograd_input")
    assert forward is not None
    strips = loop_extents(schedule, forward)[0]
    batch, row, column = schedule.get_loops(store)
    strip, batch = schedule.split(batch, [strips, None])
    part, column = schedule.split(column, [parts, None])
    schedule.reorder(strip, part, batch, row, column)
    extents = replace(extents, batch=extents.batch // strips, chunks=extents.chunks // parts)
    tile_rows, vectors = (int(extent) for extent in schedule.get(product).annotations[TILE_ATTRIBUTE])
    task = matmul_task(extents, (tile_rows, vectors), machine)
    # Filters are met once, one after another: all tiles take the same ones, and the next are fetched meanwhile.
    task = replace(task, block_tiles=extents.rows // tile_rows // task.row_parts)
    skip = (parts - 1) * extents.chunks * extents.lanes * extents.reduction  # filters of a position for other parts
    tile = (tile_rows, vectors)
    apply_tile(schedule, product, store, None, None, extents, tile, task, machine.pairs_loads, True, skip)
    return strips


def _back(schedule: Schedule, tile: SBlockRV, strips: int, parts: int, machine: Machine) -> None:
    half = annotated_block(schedule, "winograd_back_half")
    assert half is not None
    images, *_, rows, _, outputs, _, _ = loop_extents(schedule, tile)
    pool = _inline_before_pool(schedule, tile)
    steps = [tile, half]
    high = wide = outputs
    if pool is not None:
        steps.insert(0, pool)
        taps = loop_extents(schedule, pool)[-2:]
        high, wide = outputs // taps[0], outputs // taps[1]
    store, rest = inline_epilogue(schedule, steps[0])
    if rest is not None:
        vectorize_and_divide(schedule, rest, machine)
    image, c, *planes, h, w, lane = schedule.get_loops(store)
    strip, row, x = schedule.split(h, [strips // images, rows * images // strips, high])
    part, c = schedule.split(c, [parts, None])
    column, y = schedule.split(w, [None, wide])
    schedule.reorder(image, strip, part, c, *planes, row, column, x, y, lane)
    schedule.fuse(image, strip)
    if pool is not None:
        _pool_at(schedule, pool, column)
    transform_at(schedule, (tile, half), column, (x, y, lane))


def _inline_before_pool(schedule: Schedule, tile: SBlockRV) -> SBlockRV | None:
    """Inline what is between the transform back and a pooling into that; None where nothing is pooled."""
    pool = annotated_block(schedule, "pool")
    if pool is None:
        return None
    blocks = top_blocks(schedule)
    names = [str(schedule.get(block).name_hint) for block in blocks]
    first, last = (names.index(str(schedule.get(block).name_hint)) for block in (tile, pool))
    for block in blocks[first + 1 : last]:
        schedule.compute_inline(block)
    return pool


def _pool_at(schedule: Schedule, pool: SBlockRV, loop: LoopRV) -> None:
    """Pool a tile in registers, as soon as it is transformed back."""
    schedule.compute_at(pool, loop, preserve_unit_loops=True)
    schedule.set_scope(pool, 0, "local")
    rank = (len(schedule.get(pool).iter_vars) - 3) // 2
    *planes, high, wide, lane = schedule.get_loops(pool)[-(2 * rank + 1) : -rank]
    taps = schedule.get_loops(pool)[-rank:]
    schedule.reorder(*planes, *taps, high, wide, lane)
    for each in (*planes, *taps, high, wide):
        schedule.unroll(each)
    schedule.vectorize(lane)
    initial = schedule.decompose_reduction(pool, taps[0])
    *_, high, wide, lane = schedule.get_loops(initial)
    schedule.unroll(high)
    schedule.unroll(wide)
    schedule.vectorize(lane)


def _joined(func: PrimFunc, strips: int, parts: int, parallel: bool) -> PrimFunc:
    """Make one loop of the first three of a kernel, which go over the strips, the last two over parts inside."""
    steps = list(func.body.block.body.seq)
    variable = tvm.ir.Var("task", steps[0].loop_var.ty)
    strip, part = (variable, None) if parts == 1 else (variable // parts, variable % parts)
    if strips == 1:
        strip, part = _ZERO, variable
    given = ((strips, strip), (parts, part))
    bodies = [_peeled(step, given[: 1 + (step is not steps[0])]) for step in steps[:3]]
    return _replaced(func, _loop(variable, strips * parts, parallel, tirx.SeqStmt(bodies)), steps[3:])


def _shared(func: PrimFunc, strips: int, parts: int, parallel: bool) -> PrimFunc:
    """Go over the strips one by one: all threads transform its tiles, then each computes parts of the result."""
    steps = list(func.body.block.body.seq)
    strip, part = (tvm.ir.Var(name, steps[0].loop_var.ty) for name in ("strip", "part"))
    at = strip if strips > 1 else _ZERO
    place = _peeled(steps[0], ((strips, at),))
    forward = _loop(place.loop_var, int(place.extent), parallel, place.body)
    given = ((strips, at), (parts, part if parts > 1 else _ZERO))
    back = _loop(part, parts, parallel, tirx.SeqStmt([_peeled(step, given) for step in steps[1:3]]))
    return _replaced(func, _loop(strip, strips, False, tirx.SeqStmt([forward, back])), steps[3:])


_ZERO = tirx.const(0, "int32")


def _loop(variable: Any, extent: int, parallel: bool, body: Any) -> tirx.For:
    kind = tirx.ForKind.PARALLEL if parallel and extent > 1 else tirx.ForKind.SERIAL
    return tirx.For(variable, _ZERO, tirx.const(extent, "int32"), kind, body)


def _peeled(step: Any, given: Sequence[tuple[int, Any]]) -> Any:
    """Take the outermost loops off, of these extents, and put values in the place of their variables."""
    values = {}
    for extent, value in given:
        if not isinstance(step, tirx.For) or int(step.extent) != extent:
            raise ValueError(f"loops of {' and '.join(str(extent) for extent, _ in given)} are not the outermost ones")
        values[step.loop_var] = _ZERO if extent == 1 else value
        step = step.body
    return substitute(step, values)


def _replaced(func: PrimFunc, joined: tirx.For, rest: Sequence[Any]) -> PrimFunc:
    """Put a loop in the place of the first three steps of a kernel."""
    root = func.body.block
    body = tirx.SeqStmt([joined, *rest]) if rest else joined
    block = s_tir.SBlock(
        root.iter_vars, root.reads, root.writes, root.name_hint, body, root.init, root.alloc_buffers,
        root.match_buffers, root.annotations,
    )  # fmt: skip
    return func.with_body(s_tir.SBlockRealize(func.body.iter_values, func.body.predicate, block))
