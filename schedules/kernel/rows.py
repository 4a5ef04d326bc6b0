"""Rows of kernels that reduce: what the results of reductions are indexed with, and what lies within."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_ext.schedules.kernel.access import Axes, axes_of
from tvm_ext.schedules.kernel.blocks import is_spatial


class NotRows(Exception):
    """Raised inside a rule when a kernel is not made of reductions that share their rows."""


def check_single_pass(schedule: Schedule, block: SBlockRV) -> None:
    """Refuse reductions such as products of matrices and windows, which read an element more than once."""
    axes = axes_of(schedule, block)
    if not any(not access.written and access.meets_elements_once(axes.extents) for access in axes.accesses):
        raise NotRows


def contiguous_axis_reduces(axes: Axes) -> bool:
    """Whether neighbours in memory are reduced with one another."""
    best: tuple[int, bool] | None = None
    for access in axes.accesses:
        if access.written or access.strides is None:
            continue
        if any(stride == 0 for stride, extent in zip(access.strides, axes.extents, strict=True) if extent != 1):
            continue
        for stride, reduces, extent in zip(access.strides, axes.reduces, axes.extents, strict=True):
            if extent != 1 and stride is not None and (best is None or stride < best[0]):
                best = (stride, reduces)
    if best is None:
        raise NotRows
    return best[1]


def row_loops(schedule: Schedule, blocks: list[SBlockRV]) -> tuple[list[LoopRV], list[LoopRV]]:
    """Split the loops of the last block into those over rows and those within a row.

    The rows are what the results of reductions are indexed with.
    """
    last = blocks[-1]
    body = schedule.get(last)
    analyzer = tvm.sym.Analyzer()
    for iter_var in body.iter_vars:
        analyzer.bind(iter_var.var, iter_var.dom)
    variables = [iter_var.var for iter_var in body.iter_vars]
    loops = list(schedule.get_loops(last))
    within = {number: 1 for number in range(len(loops))}
    row_buffers = row_buffers_of(schedule, blocks)
    for region in body.reads:
        if not any(region.source.same_as(buffer) for buffer in row_buffers):
            continue
        for item in region.region:
            index = analyzer.simplify(item.min)
            part = 1
            if isinstance(index, tvm.ir.prim.FloorDiv) and isinstance(index.b, tvm.tirx.IntImm):
                index, part = index.a, int(index.b)
            if isinstance(index, tvm.tirx.IntImm):
                continue
            position = next((number for number, variable in enumerate(variables) if variable.same_as(index)), None)
            if position is None:
                raise NotRows
            within[position] = 0 if part == 1 else part
    rows: list[LoopRV] = []
    inside: list[LoopRV] = []
    for number, loop in enumerate(loops):
        if within[number] == 0:
            rows.append(loop)
        elif within[number] == 1:
            inside.append(loop)
        else:
            outer, inner = schedule.split(loop, [None, within[number]])
            rows.append(outer)
            inside.append(inner)
    return rows, inside


def row_buffers_of(schedule: Schedule, blocks: list[SBlockRV]) -> list[Any]:
    """Find the tensors with one element a row: results of reductions, and what is computed from nothing else."""
    found: list[Any] = []
    for block in blocks[:-1]:
        body = schedule.get(block)
        reads = [region.source for region in body.reads]
        if not is_spatial(schedule, block) or (
            reads and all(any(source.same_as(buffer) for buffer in found) for source in reads)
        ):
            found += [region.source for region in body.writes]
    return found
