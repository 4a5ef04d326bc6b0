"""Winograd convolutions strip by strip: the transforms and the products of a strip, then those of the next.

before: ``for s: transform strip s;  for s: multiply strip s;  for s: transform the products of strip s back``
after:  ``for s: transform strip s; multiply strip s; transform the products of strip s back``

What is between the transforms is then needed for one strip only; TVM's lowering makes the buffers as small.
"""

from __future__ import annotations

from dataclasses import replace

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.relax_utils import substitute
from tvm_ext.schedules.annotations import TILE_ATTRIBUTE
from tvm_ext.schedules.cpu.elementwise import vectorize_and_divide
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.matmul import apply_tile, matmul_task
from tvm_ext.schedules.cpu.product import order_axes, product_extents
from tvm_ext.schedules.cpu.winograd import transform_at
from tvm_ext.schedules.kernel.blocks import annotated_block, inline_epilogue, loop_extents
from tvm_ext.schedules.rule import is_prepared, new_schedule, prepared_for, prepared_schedule

STRIP_OF_L2 = 2
"""Times the L2 cache of a core that the tiles of a strip and their products may take, about: they are written and read
once or twice, one after the other."""

WORTH_STRIPS = 4
"""Strips that an image makes at least; tiles of fewer are near enough to the cores as they are."""


def strip_rows(tile_rows: int, row_bytes: int, weight_bytes: int, machine: Machine) -> int:
    """Choose the rows of tiles of a strip; 0: the image at once, which is right where that is not much more.

    Parameters
    ----------
    tile_rows : int
        Rows of tiles of the image.
    row_bytes : int
        Of the transformed tiles of a row and their products.
    weight_bytes : int
        Of the transformed filters, which are read anew for each strip: they have to stay in the last cache.
    machine : Machine
    """
    most = STRIP_OF_L2 * machine.l2
    if tile_rows * row_bytes <= WORTH_STRIPS * most or weight_bytes > machine.l3 // 4 or tile_rows < machine.cores:
        return 0

    def slowest(strip: int) -> tuple[int, int]:
        """Rows of the core that has most, then the length of strips, of which fewer are better."""
        strips = -(-tile_rows // strip)
        return -(-strips // machine.cores) * strip, -strip

    return min(range(1, max(1, min(most // row_bytes, tile_rows // machine.cores)) + 1), key=slowest)


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
        _forward(schedule, forward)
        strips = _multiply(schedule, one)
        _back(schedule, back, strips, machine)
        return new_schedule(_joined(schedule.mod["main"], strips, machine.divides(flops)))

    def prepare(self, func: PrimFunc, _target: tvm.target.Target) -> PrimFunc | None:
        """Let the block that stores the products walk over strips and positions, rows and columns."""
        if is_prepared(func, self.name):
            return func
        schedule = new_schedule(func)
        names = ("winograd_input", "matmul", "winograd_output")
        product = annotated_block(schedule, "matmul")
        if product is None or any(annotated_block(schedule, name) is None for name in names):
            return None
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
    strip, position, place, c = schedule.get_loops(transformed)
    chunk, lane = schedule.split(c, [None, lanes])
    schedule.reorder(strip, place, chunk, position, lane)
    transform_at(schedule, (half, cut), chunk, (position, lane))


def _multiply(schedule: Schedule, machine: Machine) -> int:
    product = annotated_block(schedule, "matmul")
    extents = product_extents(schedule)
    assert product is not None
    assert extents is not None
    (store,) = schedule.get_consumers(product)
    forward = annotated_block(schedule, "winograd_input")
    assert forward is not None
    strips = loop_extents(schedule, forward)[0]
    batch, _, _ = schedule.get_loops(store)
    schedule.split(batch, [strips, None])
    extents = replace(extents, batch=extents.batch // strips)
    tile_rows, vectors = (int(extent) for extent in schedule.get(product).annotations[TILE_ATTRIBUTE])
    task = matmul_task(extents, (tile_rows, vectors), machine)
    apply_tile(schedule, product, store, None, None, extents, (tile_rows, vectors), task, machine.pairs_loads)
    return strips


def _back(schedule: Schedule, tile: SBlockRV, strips: int, machine: Machine) -> None:
    half = annotated_block(schedule, "winograd_back_half")
    assert half is not None
    _, rows, _, outputs, _, _ = loop_extents(schedule, tile)
    store, rest = inline_epilogue(schedule, tile)
    if rest is not None:
        vectorize_and_divide(schedule, rest, machine)
    *outer, h, w, lane = schedule.get_loops(store)
    strip, row, x = schedule.split(h, [None, rows // strips, outputs])
    column, y = schedule.split(w, [None, outputs])
    schedule.reorder(strip, *outer, row, column, x, y, lane)
    transform_at(schedule, (tile, half), column, (x, y, lane))


def _joined(func: PrimFunc, strips: int, parallel: bool) -> PrimFunc:
    """Make one loop of the first three of a kernel, which go over the strips."""
    root = func.body.block
    parts = list(root.body.seq)
    loops = parts[:3]
    if not all(isinstance(loop, tirx.For) and int(loop.extent) == strips for loop in loops):
        raise ValueError(f"the loops over {strips} strips are not the outermost ones")
    variable = tvm.ir.Var("strip", loops[0].loop_var.ty)
    bodies = [substitute(loop.body, {loop.loop_var: variable}) for loop in loops]
    kind = tirx.ForKind.PARALLEL if parallel else tirx.ForKind.SERIAL
    joined = tirx.For(variable, loops[0].min, loops[0].extent, kind, tirx.SeqStmt(bodies))
    body = tirx.SeqStmt([joined, *parts[3:]]) if parts[3:] else joined
    block = s_tir.SBlock(
        root.iter_vars, root.reads, root.writes, root.name_hint, body, root.init, root.alloc_buffers,
        root.match_buffers, root.annotations,
    )  # fmt: skip
    return func.with_body(s_tir.SBlockRealize(func.body.iter_values, func.body.predicate, block))
