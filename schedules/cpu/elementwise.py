"""Element-wise, broadcast and other data-parallel kernels: producers inline, vectors inside, threads outside."""

from __future__ import annotations

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import PrimFunc
from tvm_ext.schedules.cpu.blocks import is_spatial, top_blocks
from tvm_ext.schedules.cpu.cost import block_seconds, is_simple
from tvm_ext.schedules.cpu.inline import inline_producers
from tvm_ext.schedules.cpu.machine import Machine, machine_of
from tvm_ext.schedules.cpu.tasks import share_out, share_out_one
from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.simd.loops import mark_simd


class Elementwise:
    """Schedule a kernel all of whose blocks are data-parallel, with one result or several."""

    name = "cpu.elementwise"

    def apply(self, func: PrimFunc, target: tvm.target.Target) -> Schedule | None:
        """Schedule ``func`` when no block reduces and every block computes single elements."""
        schedule = new_schedule(func)
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
    flat = max(1, flat_suffix(schedule, block))
    outer, inner = loops[:-flat], loops[-flat:]
    vector = schedule.fuse(*inner) if len(inner) > 1 else inner[0]
    lanes = vector_lanes(schedule, block, machine)
    seconds = block_seconds(schedule, block)
    if outer:
        share_out(schedule, outer, seconds, machine.cores)
    else:
        vector = share_out_one(schedule, vector, seconds, machine.cores, lanes)
    mark_simd(schedule, vector, lanes)


def vector_lanes(schedule: Schedule, block: SBlockRV, machine: Machine) -> int:
    """Choose the lanes of the vectors of a block: as many of its widest elements as fill a register."""
    body = schedule.get(block)
    bits = max(tvm.DataType(region.source.dtype).bits for region in (*body.reads, *body.writes))
    return max(2, machine.vector_bits // max(8, bits))


def flat_suffix(schedule: Schedule, block: SBlockRV) -> int:
    """Count the last loops that walk every tensor contiguously or not at all, and so can be one loop."""
    body = schedule.get(block)
    variables = [iter_var.var for iter_var in body.iter_vars]
    extents = [iter_var.dom.extent for iter_var in body.iter_vars]
    regions = [*body.reads, *body.writes]
    suffix = 0
    for position in range(len(variables) - 1, -1, -1):
        if not all(_walks_flat(region, variables[position:], extents[position:]) for region in regions):
            break
        suffix += 1
    return suffix


def _walks_flat(region: tvm.ir.TensorRegion, trailing: list[tvm.ir.Var], extents: list[tvm.tirx.Expr]) -> bool:
    """Whether the last dimensions of a region are exactly ``trailing``, whole and in order, or none of them occurs."""
    shape, ranges = region.source.shape, region.region
    used = [
        any(variable.same_as(found) for item in ranges for found in tvm.tirx.analysis.undefined_vars(item.min))
        for variable in trailing
    ]
    if not any(used):
        return True
    if len(ranges) < len(trailing):
        return False
    analyzer = tvm.sym.Analyzer()
    for index, (variable, extent) in enumerate(zip(reversed(trailing), reversed(extents), strict=True)):
        item, size = ranges[len(ranges) - 1 - index], shape[len(shape) - 1 - index]
        if not (item.min.same_as(variable) and analyzer.can_prove_equal(item.extent, 1)):
            return False
        if not analyzer.can_prove_equal(size, extent):
            return False
    return True
