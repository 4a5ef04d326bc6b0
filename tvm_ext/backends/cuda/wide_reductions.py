"""Reductions of narrow types are made in 32 bits, and rounded once.

before: ``total[i] = total[i] + x[i, k]`` of int8, int16 or bfloat16
after:  ``wide[i] = wide[i] + int32(x[i, k])``, then ``total[i] = int8(wide[i])``

Threads that reduce a row together exchange numbers of 32 and 64 bits and float16 by shuffles. Of other types TVM goes
through shared memory without a barrier between the threads of a warp, which has been a race since sm_70. Integers wrap
around as before; a sum of bfloat16 becomes more exact.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.prim import expr as prim
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.schedules.kernel.blocks import is_spatial, top_blocks
from tvm_ext.schedules.rule import new_schedule

WIDE = {"int8": "int32", "uint8": "int32", "int16": "int32", "uint16": "int32", "bfloat16": "float32"}
"""In what numbers of a type are reduced; those of fewer bits are all numbers of it."""

_REDUCING = (prim.Add, prim.Max, prim.Min)

_ENDS = {prim.Max: tirx.min_value, prim.Min: tirx.max_value}
"""What TVM expects an extreme to begin with, by type."""


def wide_reductions() -> tvm.transform.Pass:
    """Make the pass; it runs on kernels before they are scheduled."""

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_ext.WideReductions")
    def _widen(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        return with_wide_reductions(func)

    return _widen


def with_wide_reductions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Reduce in 32 bits what is reduced in fewer; a kernel without such reductions stays as it is."""
    if not isinstance(func.body, s_tir.SBlockRealize):
        return func
    schedule = new_schedule(func)
    narrow = [block for block in top_blocks(schedule) if _is_narrow(schedule, block)]
    if not narrow:
        return func
    wide: dict[Any, Any] = {}
    ends: dict[Any, Any] = {}
    for block in narrow:
        schedule.cache_write(block, 0, "global")
        buffer = schedule.get(block).writes[0].source
        ends[buffer] = _ENDS.get(type(schedule.get(block).body.value))
        wide[buffer] = tirx.decl_buffer(buffer.shape, WIDE[str(buffer.dtype)], buffer.name)
    body = _Rewriter(wide, ends).statement(schedule.mod["main"].body)
    made = schedule.mod["main"]
    return tirx.PrimFunc(made.params, body, func.ret_type, func.attrs, func.span)


def _is_narrow(schedule: tvm.s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether a block reduces to one buffer of a narrow type by a sum or an extreme."""
    found = schedule.get(block)
    if is_spatial(schedule, block) or len(found.writes) != 1:
        return False
    store = found.body
    return (
        isinstance(store, tirx.BufferStore)
        and isinstance(found.init, tirx.BufferStore)
        and str(store.buffer.dtype) in WIDE
        and isinstance(store.value, _REDUCING)
        and isinstance(store.value.a, tvm.ir.TensorLoad)
        and store.value.a.source.same_as(store.buffer)
    )


class _Rewriter:
    """Puts wide buffers in the place of narrow ones."""

    def __init__(self, wide: dict[Any, Any], ends: dict[Any, Any]) -> None:
        self._wide, self._ends = wide, ends
        self._callbacks = [
            (s_tir.SBlock, self._block),
            (tirx.BufferStore, self._store),
            (tvm.ir.TensorLoad, self._load),
            (tvm.ir.TensorRegion, self._region),
        ]

    def statement(self, body: Any) -> Any:
        return tvm_ffi.structural_mutate(body, self._callbacks)

    def _block(self, block: Any, mutator: Any) -> Any:
        block = mutator.default_mutate(block)
        allocated = [self._wide.get(buffer, buffer) for buffer in block.alloc_buffers]
        return s_tir.SBlock(
            block.iter_vars, block.reads, block.writes, block.name_hint, block.body, block.init, allocated,
            block.match_buffers, block.annotations,
        )  # fmt: skip

    def _store(self, store: Any, mutator: Any) -> Any:
        wide = self._wide.get(store.buffer)
        if wide is None:
            return mutator.default_mutate(store)
        dtype, indices = str(wide.dtype), [mutator.mutate(index) for index in store.indices]
        value = store.value
        if isinstance(value, _REDUCING):
            sofar = tirx.BufferLoad(wide, indices)
            return tirx.BufferStore(wide, type(value)(sofar, tirx.Cast(dtype, mutator.mutate(value.b))), indices)
        end = self._ends[store.buffer]
        if end is not None and value.value == end(str(store.buffer.dtype)).value:
            return tirx.BufferStore(wide, end(dtype), indices)
        return tirx.BufferStore(wide, tirx.const(value.value, dtype), indices)

    def _load(self, load: Any, mutator: Any) -> Any:
        load = mutator.default_mutate(load)
        wide = self._wide.get(load.source)
        return load if wide is None else tirx.Cast(str(load.ty.dtype), tirx.BufferLoad(wide, load.indices))

    def _region(self, region: Any, mutator: Any) -> Any:
        region = mutator.default_mutate(region)
        wide = self._wide.get(region.source)
        return region if wide is None else tirx.BufferRegion(wide, region.region)
