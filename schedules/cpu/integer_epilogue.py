"""What follows an integer convolution: rounding in registers, transcendental functions in a loop of their own."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.schedules.cpu.elementwise import vectorize_and_divide
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.kernel.blocks import inline_epilogue, top_blocks
from tvm_ext.schedules.simd.transcendental import expands


def schedule_epilogue(schedule: Schedule, compute: SBlockRV, machine: Machine) -> SBlockRV:
    """Inline what follows ``compute`` into the block that stores its result, and return that block.

    The polynomial of a transcendental function needs registers that are full of sums here. From the first such function
    on, the epilogue is therefore a second loop, over what was stored (8-bit integers as a rule).
    """
    blocks = top_blocks(schedule)
    names = [str(schedule.get(block).name_hint) for block in blocks]
    after = blocks[names.index(str(schedule.get(compute).name_hint)) + 1 :]
    if not any(_is_transcendental(schedule, block) for block in after):
        store, large = inline_epilogue(schedule, compute)
        if large is not None:
            vectorize_and_divide(schedule, large, machine)
        return store
    chain = [compute]
    while True:
        consumers = list(schedule.get_consumers(chain[-1]))
        if len(consumers) != 1 or _is_transcendental(schedule, consumers[0]):
            break
        chain.append(consumers[0])
    kept = {str(schedule.get(block).name_hint) for block in chain}
    rest = [block for block in after if str(schedule.get(block).name_hint) not in kept]
    store = chain[-1] if len(chain) > 1 else schedule.cache_write(compute, 0, "global")
    for block in chain[1:-1]:
        schedule.compute_inline(block)
    for block in rest[:-1]:
        schedule.compute_inline(block)
    vectorize_and_divide(schedule, rest[-1], machine)
    return store


def _is_transcendental(schedule: Schedule, block: SBlockRV) -> bool:
    def interrupt(call: Any) -> Any:
        return tvm_ffi.VisitInterrupt(True) if expands(call) else None

    return tvm_ffi.structural_walk(schedule.get(block).body, [(tvm.ir.Call, interrupt)]) is not None
