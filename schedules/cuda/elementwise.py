"""Element-wise, broadcast and other data-parallel kernels: one flat grid, 128 bits an access where that is possible."""

from __future__ import annotations

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import PrimFunc

from tvm_ext.schedules.cuda.blocks import (
    extent,
    longest_vector,
    moved_bytes,
    power_of_two,
    touched,
)
from tvm_ext.schedules.cuda.cost import Launch, kernel_seconds
from tvm_ext.schedules.cuda.machine import GpuMachine, machine_of
from tvm_ext.schedules.kernel.access import axes_of
from tvm_ext.schedules.kernel.blocks import is_spatial, static_extents, top_blocks
from tvm_ext.schedules.kernel.inline import inline_producers
from tvm_ext.schedules.kernel.operations import has_condition, is_simple
from tvm_ext.schedules.knobs import choose
from tvm_ext.schedules.rule import new_schedule

THREADS = (64, 128, 256, 512)
"""Threads of a block, of which the cost model chooses."""
THREADS_OF_OPEN = 256
"""Where only a run knows how many elements there are."""


class Elementwise:
    """Schedule a kernel all of whose blocks are data-parallel, with one result or several."""

    name = "cuda.elementwise"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when no block reduces, and every block computes single elements."""
        schedule = new_schedule(func, tunable)
        blocks = top_blocks(schedule)
        if not blocks or not all(is_spatial(schedule, block) and is_simple(schedule, block) for block in blocks):
            return None
        if tunable and not all(static_extents(schedule, block) for block in blocks):
            return None
        machine = machine_of(target)
        for block in inline_producers(schedule):
            bind_flat(schedule, block, machine)
        return schedule


def bind_flat(schedule: Schedule, block: SBlockRV, machine: GpuMachine) -> None:
    """Spread the elements of a data-parallel block over a grid of one dimension, vectors innermost."""
    if not schedule.get_loops(block):
        schedule.add_unit_loop(block)
    vector, is_open = vector_elements(schedule, block), not static_extents(schedule, block)
    bytes_moved = 0 if is_open else moved_bytes(schedule, block)
    loop = schedule.fuse(*schedule.get_loops(block))
    if is_open:
        threads = THREADS_OF_OPEN
    else:
        total = extent(schedule, loop)
        vector, threads = _cheapest(total, vector, bytes_moved, machine)
        threads = choose(schedule, THREADS, threads) if total > 32 else threads
    # Vectors stay powers of two, which divide the extent: a tail would be computed element by element.
    outer, inner = schedule.split(loop, [None, vector]) if vector > 1 else (loop, None)
    grid, thread = schedule.split(outer, [None, threads])
    schedule.bind(grid, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    if inner is not None:
        schedule.vectorize(inner)


def vector_elements(schedule: Schedule, block: SBlockRV) -> int:
    """Count the elements of an access of 128 bits, or of as many as all tensors of the block lie side by side."""
    if has_condition(schedule, block):
        return 1  # a vector under a condition would be taken apart
    axes = axes_of(schedule, block)
    suffix = axes.flat_suffix()
    inner = 1
    for size in axes.extents[-suffix:]:
        inner *= size or 1
    for access in axes.accesses:
        # A tensor that lies in another order is loaded element by element; neighbours of a thread would not share
        # what is fetched for it.
        step = None if access.strides is None else access.strides[-1]
        if axes.extents[-1] != 1 and step not in (0, 1):
            return 1
    return min(power_of_two(inner), longest_vector(touched(schedule, block)))


def _cheapest(total: int, vector: int, bytes_moved: int, machine: GpuMachine) -> tuple[int, int]:
    """Choose the elements of a thread and the threads of a block that take least time."""
    if total <= 32:
        return 1, 32

    def seconds(choice: tuple[int, int]) -> float:
        wide, threads = choice
        blocks = -(-total // (wide * threads))
        in_flight = wide * bytes_moved / total
        # An access of a warp takes the load unit a cycle for each 128 bytes, and its address some instructions.
        issue = threads / 32 * (12 + 4 * wide)
        launch = Launch(blocks, threads, issue=issue, bytes=bytes_moved, in_flight=in_flight)
        return kernel_seconds(launch, machine)

    widths = [1 << power for power in range(vector.bit_length()) if 1 << power <= vector]
    # Of equals the widest access, which takes fewest instructions.
    return min(((wide, threads) for wide in reversed(widths) for threads in (256, 128, 64)), key=seconds)
