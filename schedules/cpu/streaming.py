"""When a kernel stores its result past the caches."""

from __future__ import annotations

from math import prod

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import IntImm, Var, is_buffer_var

from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.simd.loops import SIMD_ATTRIBUTE, mark_simd
from tvm_ext.schedules.simd.stream import SMALLEST_STREAM, mark_stream
from tvm_ext.schedules.simd.tile_shapes import LINE

STREAMING_ISAS = ("avx512", "avx2", "sse4")
"""Instruction sets with streaming stores."""

SMALLEST_PART = 3
"""A result of less than one part in so many of what the caches keep is left there, whatever passes by meanwhile."""

LONG_ROW = 1 << 10
"""Bytes of a row from which on it pays to store quarters of lines past the caches while rows are being reduced.

Measured on Ice Lake, two threads, 48 MiB: layer norm over 100 elements takes 1.2 times as long in quarters as through
the caches, over 1,004 elements 0.72 times, over 1,000 in halves 0.69 times. Without anything but sums the halves and
quarters of 12 elements take 0.83 times as long; a line of which a part went through the caches, ten times.
"""

KEPT = {"one core": 0.75, "cores": 1.25, "far rows": 0.75, "shared": 0.5}
"""What a kernel reads and writes is left in the caches up to so many times the last one.

Measured on Zen 5 with 32 MiB of L3, copies in turns with themselves: one core stores 1.4 times as fast into the cache
with results of 8 MiB, and past it 1.05 times as fast with 14 MiB, 1.2 times with 20; two cores, which the memory
serves no faster than one, 1.7 times as fast into the cache with 16 MiB, 1.1 times with 24 and 0.92 times with 32.
Chains of six softmaxes or layer norms on two cores take 0.93 to 0.97 of the time with results of 16 MiB left in the
cache, 1.04 to 1.07 with 24 MiB; whole networks in batches of 16 differ by no more than their noise. On a server by
Intel whose last cache of 480 MiB other machines use as well, results of 8 MiB and more are better stored past it.
"""


def kept_bytes(machine: Machine, is_far: bool = False) -> int:
    """Bytes that a kernel may read and write together whose result the next kernel then finds in a cache.

    With ``is_far``, what is stored one after the other lies pages apart.
    """
    kind = "shared" if machine.shares_l3 else "one core" if machine.cores == 1 else "far rows" if is_far else "cores"
    return int(machine.l3 * KEPT[kind])


def stream_large_rows(schedule: Schedule, block: SBlockRV, loop: LoopRV, machine: Machine, shortest: int = 0) -> bool:
    """Mark a loop as :func:`stream_large_result` does, with all parts of a line stored one right after the other.

    Where loads of the next part come between them, a line may leave before it is whole: adding a row with AVX2 to a
    tensor of 48 MiB that begins within a line took 2.3 times as long so on Ice Lake.
    """
    streams = stream_large_result(schedule, block, loop, machine, shortest=shortest)
    lanes = int((schedule.get(loop).annotations or {}).get(SIMD_ATTRIBUTE, 0))
    size = tvm.DataType(schedule.get(block).writes[0].source.dtype).bits // 8
    if streams and SMALLEST_STREAM <= lanes * size < LINE:
        schedule.unannotate(loop, SIMD_ATTRIBUTE)
        mark_simd(schedule, loop, LINE // size)
    return streams


def stream_large_result(
    schedule: Schedule, block: SBlockRV, loop: LoopRV, machine: Machine, is_far: bool = False, shortest: int = 0
) -> bool:
    """Mark the loop over vectors of a block whose result is too large to be found in a cache later; say if it is.

    Rows of fewer bytes than ``shortest`` are left to the caches, and so are rows that are not made of parts which can
    be stored past them: a line that is stored both ways is written to memory several times. With ``is_far``, tiles are
    stored that see to it themselves.
    """
    extents = [iter_var.dom.extent for iter_var in schedule.get(block).iter_vars]
    if machine.isa not in STREAMING_ISAS or not all(isinstance(extent, IntImm) for extent in extents):
        return False
    if not is_far and not _streams_rows(schedule, block, loop, shortest):
        return False
    bits = tvm.DataType(schedule.get(block).writes[0].source.dtype).bits
    result = prod(int(extent) for extent in extents) * bits // 8
    moved = sum(map(_bytes_of, filter(is_buffer_var, schedule.mod["main"].params)))
    is_large = SMALLEST_PART * result >= kept_bytes(machine, is_far) < moved
    if is_large:
        mark_stream(schedule, loop)
    return is_large


def _streams_rows(schedule: Schedule, block: SBlockRV, loop: LoopRV, shortest: int) -> bool:
    """Whether the rows that a loop stores, one behind the other, are long enough and whole numbers of parts."""
    extents = [int(iter_var.dom.extent) for iter_var in schedule.get(block).iter_vars]
    if not extents or not isinstance(schedule.get(loop).extent, IntImm):
        return False
    row, length = 1, int(schedule.get(loop).extent)
    while extents and row < length:
        row *= extents.pop()
    row *= tvm.DataType(schedule.get(block).writes[0].source.dtype).bits // 8
    part = LINE // 2 if shortest and row < LONG_ROW else SMALLEST_STREAM
    return prod(extents) == 1 or (row >= shortest and row % part == 0)


def _bytes_of(tensor: Var) -> int:
    """Bytes of a tensor; 0 if its extents are not known."""
    if not all(isinstance(extent, IntImm) for extent in tensor.ty.shape):
        return 0
    return prod(map(int, tensor.ty.shape)) * tvm.DataType(tensor.ty.dtype).bits // 8
