"""Bounds within bounds of vectors are computed one after the other, and registers keep what is between.

before: ``for lane in T.vectorized(4): y[lane] = max(min(2 * max(min(x[lane], 9), -9), 8), -8)``
after:  ``for lane in T.vectorized(4): bounded[lane] = max(min(x[lane], 9), -9)``
        ``for lane in T.vectorized(4): y[lane] = max(min(2 * bounded[lane], 8), -8)``

A bound that hands NaN on names its operand twice (:mod:`.keep_nan`), so that each of those within each other doubles
the text, which TVM goes through many times: eight took 46 s. Elsewhere a name is enough; a vector has none.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.prim import expr as prim

from tvm_ext.backends.cuda.keep_nan import FLOATS, HALVES, is_number
from tvm_ext.backends.cuda.narrow_vectors import COMPARED
from tvm_ext.relax_utils import substitute
from tvm_ext.schedules.cuda.blocks import VECTOR_BYTES, element_bytes
from tvm_ext.schedules.simd.vector import element_type, operation

MOST_BOUNDS = 2
"""Bounds within each other that stay in one expression: those of one ``clip``."""


def bounds_apart() -> tvm.transform.Pass:
    """Make the pass; it runs on scheduled kernels, before bounds become comparisons."""

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_ext.BoundsApart")
    def _apart(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        return _Rewriter().function(func)

    return _apart


class _Rewriter:
    def __init__(self) -> None:
        self._made: list[Any] = []  # buffers that the block around is to have

    def function(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        return tvm_ffi.structural_mutate(func, [(s_tir.SBlock, self._block), (tirx.For, self._loop)])

    def _block(self, block: Any, mutator: Any) -> Any:
        outer, self._made = self._made, []
        block, made = mutator.default_mutate(block), self._made
        self._made = outer
        if not made:
            return block
        return s_tir.SBlock(
            block.iter_vars, block.reads, block.writes, block.name_hint, block.body, block.init,
            [*block.alloc_buffers, *made], block.match_buffers, block.annotations,
        )  # fmt: skip

    def _loop(self, loop: Any, mutator: Any) -> Any:
        store = _stored(loop)
        if store is None or _bounds(store.value) <= MOST_BOUNDS:
            return mutator.default_mutate(loop)
        widest = max(map(element_bytes, [store.buffer.dtype, *_types(store.value)]))
        lanes = min(COMPARED, VECTOR_BYTES // widest, int(loop.extent))
        if int(loop.extent) % lanes:
            return loop
        lane = tirx.Var("lane", loop.loop_var.ty.dtype)
        parts = _Parts(lane, lanes)
        last = parts.divided(store.value)
        if not parts.stores:
            return loop  # all of it stands under a condition
        self._made += [part.buffer for part in parts.stores]
        stores = [*parts.stores, tirx.BufferStore(store.buffer, last, store.indices)]
        part, width = tirx.Var("part", lane.ty.dtype), tirx.const(lanes, lane.ty.dtype)
        body = tirx.SeqStmt([_vector(loop, statement, lane, lanes, part * width) for statement in stores])
        zero, count = tirx.const(0, lane.ty.dtype), tirx.const(int(loop.extent) // lanes, lane.ty.dtype)
        return tirx.For(part, zero, count, tirx.ForKind.UNROLLED, body)


class _Parts:
    """Divides a value where bounds are within bounds; ``stores`` are those of the inner ones, in their order."""

    def __init__(self, lane: Any, lanes: int) -> None:
        self.stores: list[Any] = []
        self._lane, self._lanes = lane, lanes

    def divided(self, value: Any) -> Any:
        # What stands under a condition, or names anything, stays where it is.
        kept = (prim.Let, prim.And, prim.Or, tvm.ir.TensorLoad)
        return tvm_ffi.structural_mutate(
            value, [((prim.Max, prim.Min), self._bound), (kept, _same), (tvm.ir.Call, _call)]
        )

    def _bound(self, bound: Any, mutator: Any) -> Any:
        bound = mutator.default_mutate(bound)
        if _bounds(bound) <= MOST_BOUNDS:
            return bound
        return type(bound)(self._kept(bound.a), self._kept(bound.b))

    def _kept(self, value: Any) -> Any:
        if not _bounds(value):
            return value
        buffer = tirx.decl_buffer(
            (tirx.const(self._lanes, self._lane.ty.dtype),), element_type(value), "bounded", scope="local"
        )
        self.stores.append(tirx.BufferStore(buffer, value, [self._lane]))
        return tirx.BufferLoad(buffer, [self._lane])


def _same(node: Any, _mutator: Any) -> Any:
    return node


def _call(call: Any, mutator: Any) -> Any:
    return call if operation(call) == "if_then_else" else mutator.default_mutate(call)


def _stored(loop: Any) -> Any:
    """Give what a loop over a vector stores, where it stores one value and knows its extent; None otherwise."""
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(loop.extent, tirx.IntImm):
        return None
    if not isinstance(loop.body, s_tir.SBlockRealize) or not isinstance(loop.min, tirx.IntImm) or int(loop.min):
        return None
    block = loop.body.block
    simple = block.init is None and not block.alloc_buffers and not block.match_buffers
    return block.body if simple and isinstance(block.body, tirx.BufferStore) else None


def _bounds(value: Any) -> int:
    """Count the bounds that are within each other, at most, of those that become comparisons."""
    level = most = 0

    def bound(node: Any, mutator: Any) -> Any:
        nonlocal level, most
        dtype = element_type(node)
        grows = dtype in FLOATS and not (dtype in HALVES and (is_number(node.a) or is_number(node.b)))
        level += grows
        most = max(most, level)
        mutator.default_mutate(node)
        level -= grows
        return node

    tvm_ffi.structural_mutate(value, [((prim.Max, prim.Min), bound), (tvm.ir.TensorLoad, _same)])
    return most


def _types(value: Any) -> list[Any]:
    """List the types of the bounds in a value."""
    found: list[Any] = []
    tvm_ffi.structural_walk(value, [((prim.Max, prim.Min), lambda node: found.append(node.ty.dtype))])
    return found


def _vector(loop: Any, store: Any, lane: Any, lanes: int, begin: Any) -> Any:
    """Make a loop over ``lanes`` elements from ``begin`` on that does one store of a block; ``lane`` is among them."""
    block = loop.body.block
    axes = {axis.var: tirx.Var(axis.var.name, axis.var.ty.dtype) for axis in block.iter_vars}
    running, inside = (tirx.Var(name, lane.ty.dtype) for name in ("lane", "v_lane"))
    names = {**axes, lane: inside}
    iterations = [tirx.IterVar(axis.dom, axes[axis.var], axis.iter_type) for axis in block.iter_vars]
    zero, width = tirx.const(0, lane.ty.dtype), tirx.const(lanes, lane.ty.dtype)
    own = tirx.IterVar(tvm.ir.Range(zero, width), inside, tirx.IterVar.DataPar)
    kept = [_element(buffer, inside) for buffer in _read_at(store.value, lane)]
    reads = [*substitute(block.reads, names), *kept]
    is_last = store.buffer.same_as(block.body.buffer)
    writes = substitute(block.writes, names) if is_last else [_element(store.buffer, inside)]
    made = s_tir.SBlock(
        [*iterations, own], reads, writes, block.name_hint, substitute(store, names), annotations=block.annotations
    )
    here = {loop.loop_var: begin + running}
    values = [substitute(value, here) for value in loop.body.iter_values]
    realize = s_tir.SBlockRealize([*values, running], substitute(loop.body.predicate, here), made)
    return tirx.For(running, zero, width, tirx.ForKind.VECTORIZED, realize)


def _element(buffer: Any, place: Any) -> Any:
    return tirx.BufferRegion(buffer, [tvm.ir.Range.from_min_extent(place, tirx.const(1, place.ty.dtype))])


def _read_at(value: Any, lane: Any) -> list[Any]:
    """List the buffers that are read at ``lane``: those that keep what is between."""
    found: list[Any] = []

    def load(node: Any) -> None:
        if len(node.indices) == 1 and isinstance(node.indices[0], tvm.ir.Var) and node.indices[0].same_as(lane):
            found.append(node.source)

    tvm_ffi.structural_walk(value, [(tvm.ir.TensorLoad, load)])
    return found
