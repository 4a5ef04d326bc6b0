"""Put what a task keeps for itself on the stack, where it is less than a kilobyte.

TVM takes memory in the scope of registers from the runtime, by two calls each time a task, or a tile of one, begins;
and as such memory may be any other for all that LLVM knows, some sums are stored and loaded again at each step.

before: ``sums = T.alloc_buffer((4, 16), scope="local")``
after:  ``sums = T.alloc_buffer((4, 16))``, which LLVM has in registers
"""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tvm_ext.relax_utils import substitute

MOST_BYTES = 1023
"""TVM takes larger buffers from the runtime."""


def stack_buffers() -> tvm.transform.Pass:
    """Make the pass, for scheduled kernels that are made of blocks still."""

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_ext.StackBuffers")
    def _stack_buffers(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        blocks: list[Any] = []
        tvm_ffi.structural_walk(func.body, (s_tir.SBlock, blocks.append))
        found = [buffer for block in blocks for buffer in block.alloc_buffers]
        moved = {
            buffer: _on_stack(buffer)
            for buffer in found
            if buffer.scope() == "local" and 0 < _bytes(buffer) <= MOST_BYTES
        }
        # What a block of an instruction calls a part of a buffer is in the scope of the buffer.
        for match in [match for block in blocks for match in block.match_buffers]:
            if match.source.source in moved:
                moved[match.buffer] = _on_stack(match.buffer)
        return substitute(func, moved) if moved else func

    return _stack_buffers


def _bytes(buffer: Any) -> int:
    """Give the bytes of a buffer; 0 where they are not known."""
    if not all(isinstance(extent, tirx.IntImm) for extent in buffer.shape):
        return 0
    dtype = tvm.DataType(buffer.dtype)
    return prod(int(extent) for extent in buffer.shape) * -(-dtype.bits * dtype.lanes // 8)


def _on_stack(buffer: Any) -> Any:
    return tirx.decl_buffer(
        buffer.shape, buffer.dtype, buffer.name, strides=buffer.strides or None, elem_offset=buffer.elem_offset,
        scope="global", data_alignment=buffer.data_alignment, offset_factor=buffer.offset_factor,
    )  # fmt: skip
