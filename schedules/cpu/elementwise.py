"""Element-wise, broadcast and other data-parallel kernels: producers inline, vectors inside, threads outside."""

from __future__ import annotations

from math import gcd, prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.prim import expr as prim
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import IntImm, PrimFunc

from tvm_ext.schedules.cpu.cost import block_seconds
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.streaming import stream_large_rows
from tvm_ext.schedules.cpu.tasks import share_out, share_out_one
from tvm_ext.schedules.kernel.access import Axes, axes_of
from tvm_ext.schedules.kernel.blocks import is_spatial, top_blocks
from tvm_ext.schedules.kernel.inline import inline_producers
from tvm_ext.schedules.kernel.operations import is_simple
from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.simd.loops import mark_simd
from tvm_ext.schedules.simd.pieces import reads_in_pieces
from tvm_ext.schedules.simd.quotients import repeats_elements
from tvm_ext.schedules.simd.repeats import repeated_rows

SHORTEST_ROW = 4
"""Vectors in a row from which on rows of their own, the last vector of each in part, cost less than divisions."""


class Elementwise:
    """Schedule a kernel all of whose blocks are data-parallel, with one result or several."""

    name = "cpu.elementwise"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when no block reduces and every block computes single elements."""
        schedule = new_schedule(func, tunable)
        blocks = top_blocks(schedule)
        if not blocks or not all(is_spatial(schedule, block) and is_simple(schedule, block) for block in blocks):
            return None
        machine = machine_of(target)
        for block in inline_producers(schedule):
            vectorize_and_divide(schedule, block, machine)
        return schedule


def vectorize_and_divide(schedule: Schedule, block: SBlockRV, machine: Machine) -> None:
    """Vectorise the innermost loops of a data-parallel block and share the outer ones out among cores.

    Loops are fused into one where all tensors are walked in the same order; otherwise only the last loop is vectorised.
    """
    loops = list(schedule.get_loops(block))
    if not loops:
        return
    axes = axes_of(schedule, block)
    lanes = vector_lanes(schedule, block, machine)
    flat = min(axes.flat_suffix(), _axes_not_compared(schedule, block, lanes))
    seconds = block_seconds(schedule, block, machine)
    outer, inner = loops[:-flat], loops[-flat:]
    vector = schedule.fuse(*inner) if len(inner) > 1 else inner[0]
    period = repeated_rows(schedule.get(block), lanes) if flat == 1 else 0
    if period:
        copies, vector = schedule.split(vector, [None, period])
        outer.append(copies)
    elif flat == 1 and len(outer) > 1 and _computes_addresses(axes) and not _reads_in_order(schedule, block):
        lanes = _lanes_alike(schedule, block, vector, _lanes_in_row(schedule, vector, lanes))
        columns, vector = _split_evenly(schedule, vector, lanes)
        inside = outer.pop(_axis_of_same_places(schedule, block))
        outer.append(columns)
        schedule.reorder(*outer, inside)
    if outer:
        share_out(schedule, outer, seconds, machine)
    else:
        vector = share_out_one(schedule, vector, seconds, machine, lanes)
    mark_simd(schedule, vector, lanes)
    stream_large_rows(schedule, block, vector, machine)


def _axes_not_compared(schedule: Schedule, block: SBlockRV, lanes: int) -> int:
    """Count the last axes that can be walked as one before those that values depend on, as a triangle on its diagonal.

    Where an element lies would be divided out of its number again. All axes count where rows are short.
    """
    body = schedule.get(block)
    variables = [iter_var.var for iter_var in body.iter_vars]
    found: list[Any] = []

    def note(variable: Any, _visitor: Any) -> None:
        found.append(variable)

    def load(_node: Any, _visitor: Any) -> None:
        """Do not look at addresses."""

    def store(node: Any, visitor: Any) -> None:
        visitor.visit(node.value)

    tvm_ffi.structural_visit(body.body, [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store), (tvm.ir.Var, note)])
    used = [axis for axis, variable in enumerate(variables) if any(variable.same_as(other) for other in found)]
    if not used:
        return len(variables)
    count = max(1, len(variables) - 1 - used[-1])
    extents = [_number(iter_var.dom.extent) for iter_var in body.iter_vars[-count:]]
    return count if prod(extents) >= SHORTEST_ROW * lanes else len(variables)


def _computes_addresses(axes: Axes) -> bool:
    """Whether addresses along the last axis are computed element by element, as in a resize.

    The last axis then goes outside the one before it, which makes the addresses of a vector the same for all rows.
    """
    return any(access.strides is None or access.strides[-1] is None for access in axes.accesses)


def _reads_in_order(schedule: Schedule, block: SBlockRV) -> bool:
    """Whether rows are read in order though not evenly: in a few pieces, as where an image is padded by reflection, or
    each element several times, as where it is enlarged by whole numbers.
    """
    body = schedule.get(block)
    last = body.iter_vars[-1]
    if isinstance(last.dom.extent, IntImm) and reads_in_pieces(body.body, last.var, int(last.dom.extent)):
        return True
    return repeats_elements(body.body)


def _axis_of_same_places(schedule: Schedule, block: SBlockRV) -> int:
    """Choose the axis that the vectors of a row go along first: one with the same places, where they depend on data.

    So do all channels of an image that is sampled along a flow: places and weights are computed once for all of them.
    """
    body = schedule.get(block)
    variables = [iter_var.var for iter_var in body.iter_vars]
    read: list[Any] = []

    def note(load: Any) -> None:
        read.extend(tirx.analysis.undefined_vars(load))

    def in_address(load: Any) -> None:
        for index in load.indices:
            tvm_ffi.structural_walk(index, [(tvm.ir.TensorLoad, note)])

    tvm_ffi.structural_walk(body.body, [(tvm.ir.TensorLoad, in_address)])
    used = [any(variable.same_as(other) for other in read) for variable in variables]
    last = len(used) - 2
    if not used[-1]:
        return last
    free = (axis for axis in range(last, -1, -1) if not used[axis] and _number(body.iter_vars[axis].dom.extent) != 1)
    return next(free, last)


def _lanes_in_row(schedule: Schedule, loop: LoopRV, lanes: int) -> int:
    """Choose no more lanes than a short row fills, as that of a block of 16 channels, which are bytes."""
    extent = schedule.get(loop).extent
    return min(lanes, max(2, 1 << (int(extent) - 1).bit_length())) if isinstance(extent, IntImm) else lanes


def _lanes_alike(schedule: Schedule, block: SBlockRV, loop: LoopRV, lanes: int) -> int:
    """Choose so many lanes that all of a vector are in one piece of what is concatenated, sliced or blocked.

    Where pieces of 24 channels are joined and stored in blocks of 16, a border is in the middle of a block: halves of
    a vector are loaded as they lie, whole ones lane by lane.
    """
    body = schedule.get(block)
    variable = body.iter_vars[-1].var
    extent, found = schedule.get(loop).extent, [0]

    def is_lane(node: Any) -> bool:
        return any(variable.same_as(other) for other in tirx.analysis.undefined_vars(node))

    def divided(node: Any) -> None:
        if is_lane(node.a):
            found.append(_number(node.b))
            tvm_ffi.structural_walk(node.a, ((prim.Add, prim.Sub), moved))

    def moved(node: Any) -> None:
        found.extend(_number(side) for side in (node.a, node.b))

    def compared(node: Any) -> None:
        if is_lane(node):
            found.extend(_number(side) for side in (node.a, node.b))
            tvm_ffi.structural_walk(node, ((prim.Add, prim.Sub), moved))

    walks = ((prim.FloorDiv, prim.FloorMod), divided), ((prim.LE, prim.LT, prim.GE, prim.GT), compared)
    for walk in walks:
        tvm_ffi.structural_walk(body.body, walk)
    part = gcd(lanes, *found)
    return part if isinstance(extent, IntImm) and int(extent) % lanes == 0 and part >= lanes // 2 else lanes


def _number(expr: Any) -> int:
    """Give a number, or 0 for other expressions."""
    return abs(int(expr)) if isinstance(expr, IntImm) else 0


def _split_evenly(schedule: Schedule, loop: LoopRV, lanes: int) -> tuple[LoopRV, LoopRV]:
    """Split a loop into vectors, or into the largest parts of a vector that divide it."""
    extent = schedule.get(loop).extent
    part = gcd(int(extent), lanes) if isinstance(extent, IntImm) else 1
    outer, inner = schedule.split(loop, [None, part if part >= max(2, lanes // 2) else lanes])
    return outer, inner


def vector_lanes(schedule: Schedule, block: SBlockRV, machine: Machine) -> int:
    """Choose the lanes of the vectors of a block: as many of its widest elements as fill a register."""
    body = schedule.get(block)
    bits = max(tvm.DataType(region.source.dtype).bits for region in (*body.reads, *body.writes))
    return max(2, machine.vector_bits // max(8, bits))
