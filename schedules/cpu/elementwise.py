"""Element-wise, broadcast and other data-parallel kernels: one loop nest, divided among threads, vectorised inside."""

from __future__ import annotations

from math import prod

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import PrimFunc
from tvm_ext.schedules.cpu.blocks import is_spatial, loop_extents, static_extents, top_blocks
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.cpu.parallel import PARALLEL_BYTES
from tvm_ext.schedules.rule import new_schedule


class Elementwise:
    """Schedule a kernel all of whose blocks are data-parallel: producers go inline, the last block is one loop nest."""

    name = "cpu.elementwise"

    def apply(self, func: PrimFunc, target: tvm.target.Target) -> Schedule | None:
        """Schedule ``func`` when no block reduces and all extents are static."""
        schedule = new_schedule(func)
        blocks = top_blocks(schedule)
        if not blocks or not all(is_spatial(schedule, block) and static_extents(schedule, block) for block in blocks):
            return None
        for block in blocks[:-1]:
            try:
                schedule.compute_inline(block)
            except tvm.s_tir.ScheduleError:
                return None  # a second output, or a value that is read in a way that cannot be substituted
        block = blocks[-1]
        machine = machine_of(target)
        dtype = str(schedule.get(block).writes[0].source.dtype)
        vectorize_and_divide(schedule, block, machine.lanes(dtype), machine.cores)
        return schedule


def vectorize_and_divide(schedule: Schedule, block: SBlockRV, lanes: int, cores: int) -> None:
    """Vectorise the innermost loops of a data-parallel block and divide the outermost ones among cores.

    Loops are fused into one where all tensors are walked in the same order; otherwise only the last loop is vectorised.
    """
    loops = list(schedule.get_loops(block))
    extents = loop_extents(schedule, block)
    total = prod(extents)
    if not loops:
        return
    inner = len(loops) - _flat_suffix(schedule, block, extents)
    vector = schedule.fuse(*loops[inner:]) if inner < len(loops) - 1 else loops[-1]
    outer = loops[:inner] if inner < len(loops) else loops[:-1]
    length = prod(extents[len(outer) :])
    if length >= lanes:
        vector, body = schedule.split(vector, [None, lanes])
        if length % lanes:
            schedule.annotate(vector, "pragma_loop_partition_hint", 1)
        schedule.vectorize(body)
        outer = [*outer, vector]
    elif length > 1 and length & (length - 1) == 0:
        schedule.vectorize(vector)
    else:
        outer = [*outer, vector]
    divide(schedule, outer, total * _bytes_per_element(schedule, block), cores, keep_last=length % lanes != 0)


def divide(schedule: Schedule, loops: list[LoopRV], moved_bytes: int, cores: int, keep_last: bool = False) -> None:
    """Run the outermost loops in parallel when the kernel is worth it; ``keep_last``: the last loop stays as it is."""
    if cores < 2 or moved_bytes < PARALLEL_BYTES or not loops:
        return
    free = loops[:-1] if keep_last and len(loops) > 1 else loops
    extent, count = 1, 0
    while count < len(free) and extent < 8 * cores:
        extent *= int(schedule.get(free[count]).extent)
        count += 1
    task = schedule.fuse(*free[:count]) if count > 1 else free[0]
    if extent > 64 * cores:
        task, _ = schedule.split(task, [_parts(extent, cores), None])
    schedule.parallel(task)


def _parts(extent: int, cores: int) -> int:
    """Number of tasks: a divisor of ``extent``, a multiple of ``cores`` if there is one, at most 16 a core."""
    divisors = [count for count in range(cores, 16 * cores + 1) if extent % count == 0]
    even = [count for count in divisors if count % cores == 0]
    return max(even or divisors or [cores])


def _flat_suffix(schedule: Schedule, block: SBlockRV, extents: list[int]) -> int:
    """How many of the last loops walk every tensor contiguously or not at all, and so can be one loop."""
    body = schedule.get(block)
    variables = [iter_var.var for iter_var in body.iter_vars]
    suffix = 0
    regions = [*body.reads, *body.writes]
    for position in range(len(variables) - 1, -1, -1):
        trailing = variables[position:]
        if not all(_walks_flat(region, trailing, extents[position:]) for region in regions):
            break
        suffix += 1
    return suffix


def _walks_flat(region: tvm.ir.TensorRegion, trailing: list[tvm.tirx.Var], extents: list[int]) -> bool:
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
    for index, (variable, extent) in enumerate(zip(reversed(trailing), reversed(extents), strict=True)):
        item, size = ranges[len(ranges) - 1 - index], shape[len(shape) - 1 - index]
        if not (item.min.same_as(variable) and int(item.extent) == 1 and int(size) == extent):
            return False
    return True


def _bytes_per_element(schedule: Schedule, block: SBlockRV) -> int:
    body = schedule.get(block)
    return sum(tvm.DataType(region.source.dtype).bits // 8 or 1 for region in [*body.reads, *body.writes])
