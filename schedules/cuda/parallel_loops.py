"""Kernels whose loops somebody wrote: those marked ``parallel`` become threads, as in searches and running extremes.

before: ``for i in parallel(n): found[i] = ...``
after:  ``for i0 in blockIdx(n / 64): for i1 in threadIdx(64): if i0 * 64 + i1 < n: found[i0 * 64 + i1] = ...``

Each of these loops is a launch of its own, and what is inside of it is the work of one thread.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import Schedule
from tvm.tirx import ForKind, IntImm, PrimFunc

from tvm_ext.schedules.cuda.statements import bound_loop
from tvm_ext.schedules.rule import new_schedule

THREADS = 64
"""Of a block: such a thread does a lot, and few of them are to reach many multiprocessors."""


class ParallelLoops:
    """Bind the parallel loops of a kernel that is one block without axes, of nothing but such loops."""

    name = "cuda.parallel_loops"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when all its work is in parallel loops."""
        body = _scheduled(func.body)
        return None if body is None else new_schedule(PrimFunc(func.params, body, func.ret_type, func.attrs), tunable)


def _scheduled(realize: Any) -> Any:
    """Rewrite a block, or the only one in it; None where not all its work is in parallel loops."""
    block = realize.block if isinstance(realize, s_tir.SBlockRealize) else None
    if block is None or block.iter_vars or block.alloc_buffers or block.match_buffers or block.init is not None:
        return None
    if isinstance(block.body, s_tir.SBlockRealize):
        body = _scheduled(block.body)
    else:
        loops = _statements(block.body)
        is_parallel = all(isinstance(loop, tirx.For) and loop.kind == ForKind.PARALLEL for loop in loops)
        bound = [_threads(loop) for loop in loops] if is_parallel else [None]
        body = tirx.SeqStmt(bound) if len(bound) > 1 else bound[0]
    if body is None:
        return None
    made = s_tir.SBlock([], block.reads, block.writes, block.name_hint, body, None, [], [], block.annotations)
    return s_tir.SBlockRealize([], realize.predicate, made)


def _statements(body: Any) -> list[Any]:
    if isinstance(body, tirx.SeqStmt):
        return [part for statement in body.seq for part in _statements(statement)]
    return [body]


def _threads(loop: tirx.For) -> tirx.For:
    kind = str(loop.loop_var.ty.dtype)
    threads = IntImm(kind, THREADS)
    grid, thread = tirx.Var("grid", kind), tirx.Var("thread", kind)
    step = grid * threads + thread
    body = _substituted(loop.body, loop.loop_var, loop.min + step)
    body = tirx.IfThenElse(step < loop.extent, body, None)
    blocks = tirx.floordiv(loop.extent + threads - 1, threads)
    return bound_loop(grid, blocks, "blockIdx.x", bound_loop(thread, threads, "threadIdx.x", body))


def _substituted(body: Any, variable: Any, value: Any) -> Any:
    """Put a value in the place of a variable, and leave the loops inside to the thread."""

    def loop(node: tirx.For, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        if node.kind != ForKind.PARALLEL:
            return node
        return tirx.For(node.loop_var, node.min, node.extent, ForKind.SERIAL, node.body)

    def replaced(found: Any, _mutator: Any) -> Any:
        return value if found.same_as(variable) else found

    return tvm_ffi.structural_mutate(body, [(tirx.For, loop), (tvm.ir.Var, replaced)])
