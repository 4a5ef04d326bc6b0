"""When a kernel stores its result past the caches."""

from __future__ import annotations

from math import prod

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import IntImm

from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.simd.stream import mark_stream

STREAMING_ISAS = ("avx512", "avx2", "sse4")
"""Instruction sets with streaming stores."""

KEPT_PART = 2
"""A result of one part in so many of the last cache, or more, is streamed.

Measured on pairs of kernels of which the second reads what the first wrote, with 32 MiB of L3: a result of 4 MiB was
better left in the cache, 8 MiB made no difference, and from 16 MiB on streaming was faster for both together.
"""


def stream_large_result(schedule: Schedule, block: SBlockRV, loop: LoopRV, machine: Machine) -> bool:
    """Mark the loop over vectors of a block whose result is too large to be found in a cache later; say if it is."""
    extents = [iter_var.dom.extent for iter_var in schedule.get(block).iter_vars]
    if machine.isa not in STREAMING_ISAS or not all(isinstance(extent, IntImm) for extent in extents):
        return False
    bits = tvm.DataType(schedule.get(block).writes[0].source.dtype).bits
    is_large = prod(int(extent) for extent in extents) * bits // 8 >= machine.l3 // KEPT_PART
    if is_large:
        mark_stream(schedule, loop)
    return is_large
