"""Barriers behind sums that threads of several rows share.

before: ``if threadIdx.y == 0: total[threadIdx.x] = ...``, then all threads read ``total[threadIdx.x]``
after:  the same with ``__syncthreads()`` between them

TVM puts barriers in, but takes what is written and read at the same index for the work of one thread, whatever other
threads there are along another axis.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.script import tirx as T
from tvm.tirx import IterVar, PrimFunc


def barriers_behind_sums(func: PrimFunc) -> PrimFunc:
    """Put a barrier behind every reduction whose result is in shared memory, where threads are along two axes."""
    axes: list[Any] = []
    tvm_ffi.structural_walk(func.body, [(tirx.For, axes.append)])
    used = {str(loop.thread_binding.thread_tag) for loop in axes if loop.thread_binding is not None}
    if not {"threadIdx.x", "threadIdx.y"} <= used:
        return func

    def sequence(node: Any, mutator: Any) -> Any:
        items: list[Any] = []
        for item in node.seq:
            items.append(mutator.mutate(item))
            if _shares_a_sum(item):
                items.append(tirx.Evaluate(T.tvm_storage_sync("shared")))
        return tirx.SeqStmt(items)

    body = tvm_ffi.structural_mutate(func.body, [(tirx.SeqStmt, sequence)])
    return PrimFunc(func.params, body, func.ret_type, func.attrs, func.span)


def _shares_a_sum(statement: Any) -> bool:
    """Whether a statement is one block that threads reduce to shared memory, along x or y."""
    blocks: list[Any] = []
    loops: list[Any] = []
    tvm_ffi.structural_walk(statement, [(s_tir.SBlock, blocks.append), (tirx.For, loops.append)])
    if len(blocks) != 1 or not any(_is_of_threads(loop) for loop in loops):
        return False
    (block,) = blocks
    reduces = any(int(axis.iter_type) == IterVar.CommReduce for axis in block.iter_vars)
    return reduces and all(str(region.source.scope()) == "shared" for region in block.writes)


def _is_of_threads(loop: Any) -> bool:
    return loop.thread_binding is not None and str(loop.thread_binding.thread_tag).startswith("threadIdx.")
