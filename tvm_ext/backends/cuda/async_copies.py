"""Kernels whose tiles come to shared memory by ``cp.async``, lowered here because TVM only does it when it is told to.

before: a loop annotated with ``software_pipeline_async_stages``, whose first stage copies tiles
after:  flat loops with ``cp.async`` of 4, 8 or 16 bytes, groups of them, and waits for the oldest group

TVM's pass is switched on by an entry of the pass context, which is the user's. So the function goes through TVM's own
pipeline with that entry set, as far as copies are made; what is compiled later finds nothing left to do.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.instrument import pass_instrument
from tvm.script import tirx as T

_NEXT = "s_tir.MergeSharedMemoryAllocations"
ASYNC = "software_pipeline_async_stages"
_COMMIT, _WAIT = "async_commit_queue_scope", "async_wait_queue_scope"


def asynchronous_copies() -> tvm.transform.Pass:
    """Make the pass."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.AsynchronousCopies")
    def _lower(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        target = tvm.target.Target.current(allow_none=False)
        lowered = tvm.IRModule(mod.functions, attrs=mod.attrs)
        for variable, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and copies_asynchronously(func):
                lowered.update_func(variable, with_async_copies(func, target))
        return lowered

    return _lower


def copies_asynchronously(func: tirx.PrimFunc) -> bool:
    """Whether a scheduled function has a loop with asynchronous stages."""
    found: list[bool] = []
    tvm_ffi.structural_walk(func.body, [(tirx.For, lambda loop: found.append(ASYNC in (loop.annotations or {})))])
    return any(found)


def with_async_copies(func: tirx.PrimFunc, target: tvm.target.Target) -> tirx.PrimFunc:
    """Lower a scheduled function until its copies are ``cp.async``; what it computes stays the same."""
    host = target.host if target.host is not None else tvm.target.Target("llvm")
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    kept = _Before(_NEXT)
    pipeline, _, _ = tirx.get_tir_pipeline("s_tir")
    with tvm.transform.PassContext(instruments=[kept], config={"tirx.use_async_copy": True}):
        pipeline(tirx.transform.BindTarget(target.with_host(host))(mod))
    assert kept.func is not None
    return tirx.PrimFunc(kept.func.params, _explicit(kept.func.body), func.ret_type, func.attrs, func.span)


@pass_instrument
class _Before:
    """Keeps the function that a pass is given, and skips what follows."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.func: tirx.PrimFunc | None = None

    def should_run(self, mod: tvm.IRModule, info: tvm.ir.transform.PassInfo) -> bool:
        if info.name == self._name:
            self.func = mod["main"]
        return self.func is None


def _explicit(body: Any) -> Any:
    """Say commits and waits as instructions, and let a step wait before it copies: one barrier then serves both.

    before: ``barrier; copies; commit; wait(n); barrier; products``
    after:  ``wait(n - 1); barrier; copies; commit; products``

    The tile that the copies overwrite is the one of the step before, which all threads are done with at the barrier.
    """

    def loop(node: Any, mutator: Any) -> Any:
        if (found := _step(node.body)) is None:
            return mutator.default_mutate(node)
        copies, pending, products = found
        body = tirx.SeqStmt([_wait(pending - 1), _barrier(), mutator.mutate(copies), *map(mutator.mutate, products)])
        return tirx.For(node.loop_var, node.min, node.extent, node.kind, body, node.thread_binding, node.annotations)

    def attribute(node: Any, mutator: Any) -> Any:
        if _is_attribute(node, _COMMIT):
            return tirx.SeqStmt([mutator.mutate(node.body), _commit()])
        if _is_attribute(node, _WAIT):
            return tirx.SeqStmt([_wait(int(node.body.value)), mutator.mutate(node.body.body)])
        return mutator.default_mutate(node)

    return tvm_ffi.structural_mutate(body, [(tirx.For, loop), (tirx.AttrStmt, attribute)])


def _commit() -> Any:
    return tirx.Evaluate(T.ptx.cp.async_.commit_group())


def _wait(pending: int) -> Any:
    return tirx.Evaluate(T.ptx.cp.async_.wait_group(pending))


def _barrier() -> Any:
    return tirx.Evaluate(T.tvm_storage_sync("shared"))


def _step(body: Any) -> tuple[Any, int, list[Any]] | None:
    """Find the copies of a step, how many groups it leaves under way, and its products."""
    if not isinstance(body, tirx.SeqStmt) or len(body.seq) != 2:
        return None
    first, second = body.seq
    if not (_is_attribute(first, _COMMIT) and _is_attribute(second, _WAIT)):
        return None
    pending, inner = int(second.body.value), second.body.body
    if not isinstance(inner, tirx.SeqStmt) or not _is_barrier(inner.seq[0]) or pending < 1:
        return None
    copies = tirx.AttrStmt(first.node, _COMMIT, first.value, _without_barrier(first.body))
    return copies, pending, list(inner.seq[1:])


def _is_attribute(statement: Any, key: str) -> bool:
    return isinstance(statement, tirx.AttrStmt) and str(statement.attr_key) == key


def _is_barrier(statement: Any) -> bool:
    called = getattr(getattr(statement, "value", None), "op", None)
    return isinstance(statement, tirx.Evaluate) and str(getattr(called, "name", "")) == "tirx.tvm_storage_sync"


def _without_barrier(statement: Any) -> Any:
    if isinstance(statement, tirx.SeqStmt):
        return tirx.SeqStmt([item for item in statement.seq if not _is_barrier(item)])
    return statement
