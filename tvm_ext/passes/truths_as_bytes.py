"""Keeps truths that a kernel stores for itself as integers of one byte.

before: ``kept = T.alloc_buffer((64,), "bool"); kept[i] = x[i] < y[i]; z[i] = not kept[j]``
after:  ``kept = T.alloc_buffer((64,), "uint8"); kept[i] = uint8(x[i] < y[i]); z[i] = not (kept[j] != 0)``

Where such a buffer is read and written in vectors, TVM makes vectors its elements; of these LLVM's code has the bytes,
not their truth, so that ``not`` gives 254 and 255.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import TensorLoad

from tvm_ext.relax_utils import substitute


def truths_as_bytes() -> tvm.transform.Pass:
    """Make the pass, for scheduled kernels that are made of blocks still."""

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_ext.TruthsAsBytes")
    def _truths_as_bytes(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        blocks: list[Any] = []
        tvm_ffi.structural_walk(func.body, (s_tir.SBlock, blocks.append))
        truths = [buffer for block in blocks for buffer in block.alloc_buffers if str(buffer.dtype) == "bool"]
        if not truths:
            return func
        bytes_of = {buffer: _of_bytes(buffer) for buffer in truths}

        def store(statement: Any, mutator: Any) -> Any:
            statement = mutator.default_mutate(statement)
            if statement.buffer not in bytes_of:
                return statement
            return tirx.BufferStore(bytes_of[statement.buffer], statement.value.astype("uint8"), statement.indices)

        def load(node: Any, mutator: Any) -> Any:
            node = mutator.default_mutate(node)
            if node.source not in bytes_of:
                return node
            return tirx.BufferLoad(bytes_of[node.source], node.indices) != tirx.const(0, "uint8")

        changed = tvm_ffi.structural_mutate(func, [(tirx.BufferStore, store), (TensorLoad, load)])
        # What blocks allocate, and the regions that they say they touch.
        return substitute(changed, bytes_of)

    return _truths_as_bytes


def _of_bytes(buffer: Any) -> Any:
    return tirx.decl_buffer(
        buffer.shape, "uint8", buffer.name, strides=buffer.strides or None, elem_offset=buffer.elem_offset,
        scope=buffer.scope(), data_alignment=buffer.data_alignment, offset_factor=buffer.offset_factor,
    )  # fmt: skip
