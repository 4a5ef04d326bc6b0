"""Kernels whose tiles come to shared memory by ``cp.async``, lowered here because TVM only does it when it is told to.

before: a loop annotated with ``software_pipeline_async_stages``, whose first stage copies tiles
after:  flat loops with ``cp.async`` of 4, 8 or 16 bytes, groups of them, and waits for the oldest group

TVM's pass is switched on by an entry of the pass context, which is the user's. So the function goes through TVM's own
pipeline with that entry set, as far as copies are made; what is compiled later finds nothing left to do. Kernels with
constants in vectors of bytes go that way too, as these are vectors only then (:mod:`.byte_vectors`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.instrument import pass_instrument
from tvm.ir.prim import expr as prim
from tvm.script import tirx as T

from tvm_ext.backends.cuda import warpgroup_steps
from tvm_ext.backends.cuda.byte_vectors import holds_byte_vectors, words_of_bytes
from tvm_ext.schedules.cuda.copy_source import pointer_to, within_offsets
from tvm_ext.schedules.simd.vector import lanes_of

_NEXT = "s_tir.MergeSharedMemoryAllocations"
ASYNC = "software_pipeline_async_stages"
_LOAD, _MULTIPLY = "tirx.ptx_legacy.ldmatrix", "tirx.ptx_legacy.mma"
_COPY = "tirx.s_tir.cp_async_raw"
_COMMIT, _WAIT = "async_commit_queue_scope", "async_wait_queue_scope"


def asynchronous_copies() -> tvm.transform.Pass:
    """Make the pass."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.AsynchronousCopies")
    def _lower(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        target = tvm.target.Target.current(allow_none=False)
        lowered = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        for variable, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and (copies_asynchronously(func) or holds_byte_vectors(func)):
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
    lowered = _lowered(func, target)
    if _scatters(lowered.body):  # which TVM does not understand when it lowers the function again
        lowered = _lowered(_without_wide_results(func), target)
    body = words_of_bytes(_within_reach(_explicit(lowered.body)))
    # Relax looks into a kernel of one operand for a reshape, and expects a block there.
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", body))
    return tirx.PrimFunc(lowered.params, root, func.ret_type, func.attrs, func.span)


def _lowered(func: tirx.PrimFunc, target: tvm.target.Target) -> tirx.PrimFunc:
    host = target.host if target.host is not None else tvm.target.Target("llvm")
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    kept = _Before(_NEXT)
    # What swizzles a tile reads the indices of its elements, which must not have names of their own.
    disabled = ["tirx.CommonSubexprElim"] if warpgroup_steps.multiplies_by_warpgroups(func.body) else []
    pipeline, _, _ = tirx.get_tir_pipeline("s_tir")
    with tvm.transform.PassContext(instruments=[kept], config={"tirx.use_async_copy": True}, disabled_pass=disabled):
        pipeline(tirx.transform.BindTarget(target.with_host(host))(mod))
    assert kept.func is not None
    return kept.func


def _within_reach(body: Any) -> Any:
    """Copy from pointers where offsets do not reach all of a tensor."""

    def reach(call: Any, mutator: Any) -> Any:
        if str(getattr(call.op, "name", "")) != _COPY or within_offsets(call.args[2].args[0]):
            return mutator.default_mutate(call)
        target, at, source, offset, *others = call.args
        begin = pointer_to(source.args[0], [offset])
        return tvm.ir.Call(call.op, [target, at, *begin, *others], call.attrs, call.ty_args, ret_ty=call.ty)

    return tvm_ffi.structural_mutate(body, [(tvm.ir.Call, reach)])


def _scatters(body: Any) -> bool:
    """Whether a lowered function has vectors of elements that do not lie side by side, by what is known of places."""
    found: list[bool] = []

    def note(access: Any) -> None:
        found.extend(lanes_of(index) > 1 and not isinstance(index, prim.Ramp) for index in access.indices)

    tvm_ffi.structural_walk(body, [(tirx.BufferStore, note), (tvm.ir.TensorLoad, note)])
    return any(found)


def _without_wide_results(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write loops over vectors out where they store to global memory."""

    def loop(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        scopes: list[str] = []
        tvm_ffi.structural_walk(node.body, [(tirx.BufferStore, lambda store: scopes.append(store.buffer.scope()))])
        if node.kind != tirx.ForKind.VECTORIZED or "global" not in scopes:
            return node
        return tirx.For(node.loop_var, node.min, node.extent, tirx.ForKind.UNROLLED, node.body)

    return func.with_body(tvm_ffi.structural_mutate(func.body, [(tirx.For, loop)]))


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
    """Say commits and waits as instructions, and let a step wait for the next tile before its last products.

    before: ``barrier; copies; commit; wait(n); barrier; products``
    after:  ``copies; commit; products; wait(n - 1); barrier; fragments of the next tile; last products``

    One barrier serves both, and tensor cores have work while the first fragments of a tile are loaded. The tile that
    the copies overwrite is the one of the step before, of which all threads had loaded the last fragments at the
    barrier in that step. Where a tile is one fragment deep, a step waits and loads first.
    """

    def warpgroups(products: Sequence[Any]) -> bool:  # a function may have kernels of both instructions
        return any(map(warpgroup_steps.multiplies_by_warpgroups, products))

    def loop(node: Any, mutator: Any) -> Any:
        if (found := _step(node.body)) is None:
            return mutator.default_mutate(node)
        copies, pending, products = found
        copies, products = mutator.mutate(copies), [mutator.mutate(item) for item in products]
        if warpgroups(products):
            return _sequence(warpgroup_steps.step(copies, pending, products, node))
        ready = [_wait(pending - 1), _barrier()]
        before: list[Any] = []
        if (ahead := _fragments_ahead(node, products, ready, pending + 1)) is not None:
            before, products = ahead
            inner = [copies, *products]
        else:
            inner = [*ready, copies, *products]
        made = tirx.For(
            node.loop_var, node.min, node.extent, node.kind, _sequence(inner), node.thread_binding, node.annotations
        )
        return _sequence([*before, made])

    def attribute(node: Any, mutator: Any) -> Any:
        if _is_attribute(node, _COMMIT):
            return _sequence([mutator.mutate(node.body), _commit()])
        if _is_attribute(node, _WAIT):
            _, *products = node.body.body.seq if isinstance(node.body.body, tirx.SeqStmt) else (None,)
            if warpgroups(products):
                return _sequence(warpgroup_steps.last_step(int(node.body.value), products))
            return _sequence([_wait(int(node.body.value)), mutator.mutate(node.body.body)])
        return mutator.default_mutate(node)

    made = tvm_ffi.structural_mutate(body, [(tirx.For, loop), (tirx.AttrStmt, attribute)])
    return warpgroup_steps.swizzled(made) if warpgroup_steps.multiplies_by_warpgroups(body) else made


def _fragments_ahead(
    step: tirx.For, products: Sequence[Any], ready: Sequence[Any], stages: int
) -> tuple[list[Any], list[Any]] | None:
    """Load fragments before the products of those before them; gives what goes before the loop, and its products."""
    if len(products) != 1 or not isinstance(products[0], tirx.For):
        return None
    # In a shorter loop the number of a step is taken for that of its place, which the tile behind the last has not.
    if not isinstance(step.extent, tirx.IntImm) or int(step.extent) <= stages:
        return None
    depth = products[0]
    count = int(depth.extent) if isinstance(depth.extent, tirx.IntImm) else 0
    statements = list(depth.body.seq) if isinstance(depth.body, tirx.SeqStmt) else []
    loads = [item for item in statements if _calls(item, _LOAD)]
    multiplies = [item for item in statements if _calls(item, _MULTIPLY)]
    named = [item for item in statements if isinstance(item, tirx.Bind)]
    if count < 2 or count % 2 or len(loads) + len(multiplies) + len(named) != len(statements) or not loads:
        return None
    # Fragments of even and of odd depth have registers of their own.
    first: dict[Any, Any] = {load.value.args[3].args[0]: None for load in loads}
    second = {
        buffer: tirx.decl_buffer(buffer.shape, str(buffer.dtype), buffer.name + "_ahead", scope="local")
        for buffer in first
    }
    substitution: dict[Any, Any] = {}

    def at(items: Sequence[Any], tile: Any, number: int) -> list[Any]:
        substitution.clear()
        substitution.update({step.loop_var: tile, depth.loop_var: tirx.IntImm(str(depth.loop_var.ty.dtype), number)})
        if number % 2:
            substitution.update(second)
        for item in named:
            substitution[item.var] = mutate(item.value)
        return [mutate(item) for item in items]

    def mutate(node: Any) -> Any:
        return tvm_ffi.structural_mutate(node, [(tvm.ir.Var, lambda variable, _: substitution.get(variable, variable))])

    tile = step.loop_var
    one = tirx.IntImm(str(tile.ty.dtype), 1)
    before = [*(tirx.AllocBuffer(buffer) for buffer in second.values()), *ready, *at(loads, step.min, 0)]
    inside: list[Any] = []
    for number in range(count):
        last = number == count - 1
        inside += [*ready, *at(loads, tile + one, 0)] if last else at(loads, tile, number + 1)
        inside += at(multiplies, tile, number)
    return before, inside


def _sequence(statements: Sequence[Any]) -> Any:
    """Put statements one after the other; a sequence has no sequence in it."""
    flat: list[Any] = []
    for statement in statements:
        flat += statement.seq if isinstance(statement, tirx.SeqStmt) else [statement]
    return tirx.SeqStmt(flat) if len(flat) > 1 else flat[0]


def _calls(statement: Any, name: str) -> bool:
    called = getattr(getattr(statement, "value", None), "op", None)
    return isinstance(statement, tirx.Evaluate) and str(getattr(called, "name", "")) == name


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
    return _calls(statement, "tirx.tvm_storage_sync")


def _without_barrier(statement: Any) -> Any:
    if isinstance(statement, tirx.SeqStmt):
        return tirx.SeqStmt([item for item in statement.seq if not _is_barrier(item)])
    return statement
