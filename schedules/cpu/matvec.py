"""Products of few rows with a computed matrix whose columns lie contiguous: dot products, nothing is packed."""

from __future__ import annotations

from math import prod

import tvm
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.schedules.cpu.elementwise import vectorize_and_divide
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.product import inline_neighbours, product_blocks, product_extents
from tvm_ext.schedules.cpu.tasks import share_out
from tvm_ext.schedules.cpu.transpose import transposed_axes
from tvm_ext.schedules.kernel.access import axes_of
from tvm_ext.schedules.kernel.blocks import annotated_block, loop_extents
from tvm_ext.schedules.rule import is_prepared, new_schedule, prepared_schedule
from tvm_ext.schedules.simd.loops import mark_simd


def dot_products_pay(rows: int, reduction: int) -> bool:
    """Whether dot products along contiguous columns take less time than packing the columns for vectors across them.

    Packing is done once and then every row costs less; measured, the limit is between two and four rows when columns
    are long, and at six when they are short.
    """
    return rows <= 2 or (rows <= 6 and rows * reduction <= 512)


class Matvec:
    """Schedule a product of few rows with a transposed operand that is computed, so not packed yet."""

    name = "cpu.matvec"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it holds such a product and packing would take longer than the product."""
        schedule = prepared_schedule(self, func, target, tunable)
        if schedule is not None:
            _schedule(schedule, machine_of(target))
        return schedule

    def prepare(self, func: PrimFunc, _target: tvm.target.Target) -> PrimFunc | None:
        """Inline what is fused to the product, and let it have one axis of columns instead of chunks and lanes."""
        if is_prepared(func, self.name):
            return func
        schedule = new_schedule(func)
        extents, pack = product_extents(schedule), annotated_block(schedule, "pack_columns")
        if extents is None or pack is None or extents.copies_rows or not _contiguous(schedule, pack):
            return None
        if not dot_products_pay(extents.rows, extents.reduction):
            return None
        schedule.compute_inline(pack)
        try:
            _join_columns(schedule, extents.lanes)
        except ScheduleError:  # where kernels were merged, an axis of one element is a number instead of a loop's
            return None
        return inline_neighbours(schedule, self.name)


def _join_columns(schedule: Schedule, lanes: int) -> None:
    """Let the product have one axis of columns instead of chunks and lanes."""
    product = annotated_block(schedule, "matmul")
    assert product is not None
    schedule.transform_layout(product, ("write", 0), lambda b, m, p, j: [b, m, p * lanes + j])
    schedule.transform_block_layout(product, lambda b, m, p, j, k: [b, m, p * lanes + j, k])


def _contiguous(schedule: Schedule, pack: SBlockRV) -> bool:
    """Whether the operand is contiguous along the reduction, which is the last axis but one of the packed form."""
    axes = axes_of(schedule, pack)
    pair = transposed_axes(axes)
    return pair is not None and pair[0] == len(axes.extents) - 2


def _schedule(schedule: Schedule, machine: Machine) -> None:
    product, store, rest = product_blocks(schedule)
    elements, dtype = prod(loop_extents(schedule, product)), tvm.DataType(schedule.get(product).writes[0].source.dtype)
    batch, row, column = schedule.get_loops(store)
    schedule.reorder(batch, column, row)
    share_out(schedule, [batch, column], elements * dtype.bits / 8 / machine.read_bandwidth, machine)
    schedule.compute_at(product, row, preserve_unit_loops=True)
    schedule.set_scope(product, 0, "local")
    k = schedule.get_loops(product)[-1]
    schedule.decompose_reduction(product, k)
    mark_simd(schedule, k, machine.lanes(str(dtype)))
    if rest is not None:
        vectorize_and_divide(schedule, rest, machine)
