"""Transcendental functions behind the first convolution of a network: its sums go through a small buffer.

Written out for a whole register tile, such an epilogue has more values at once than there are registers, as LLVM
computes the same step of all of them together: for 28 vectors of ``x * sigmoid(x)`` it writes 85 to the stack. From a
buffer that stays in the L1 cache a loop takes one vector after the other, with the constants in registers. Behind three
channels of 224 x 224 to 32 that takes 0.94 of the time on Zen 4, 0.77 as code for AVX2. Behind other convolutions and
products, tried on Zen 4, it takes 0.95 to 1.08 of it, so these write their epilogues out.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_ext.schedules.simd.transcendental import expands


def holds_function(schedule: Schedule, block: SBlockRV) -> bool:
    """Whether a block computes transcendental functions, such as those of an activation."""

    def interrupt(call: tvm.ir.Call) -> tvm_ffi.VisitInterrupt | None:
        return tvm_ffi.VisitInterrupt(True) if expands(call) else None

    return tvm_ffi.structural_walk(schedule.get(block).body, [(tvm.ir.Call, interrupt)]) is not None


def stage_sums(schedule: Schedule, sums: SBlockRV, place: LoopRV) -> None:
    """Copy the sums of an iteration of ``place`` from registers, where they are still to be put, into a buffer.

    Parameters
    ----------
    sums : SBlockRV
        The block that computes them, not yet at its place.
    place : LoopRV
        The loop over register tiles around the block that stores the results.
    """
    copy = schedule.cache_write(sums, 0, "local")
    schedule.compute_at(copy, place, preserve_unit_loops=True)
    schedule.set_scope(copy, 0, "local")
    axes = len(schedule.get(copy).iter_vars)
    *outer, lane = schedule.get_loops(copy)[-axes:]
    for loop in outer:
        schedule.unroll(loop)
    schedule.vectorize(lane)
