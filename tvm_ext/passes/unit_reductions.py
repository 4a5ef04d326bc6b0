"""A reduction over a single element is that element: blocks that reduce over axes of extent 1 become plain ones.

before: ``for i, k in grid(n, 1): init y[i] = 0; y[i] = y[i] + x[i, k]``
after:  ``for i, k in grid(n, 1): y[i] = x[i, k]``

Schedules that inline what follows a reduction put it into its beginning as well, where no loop is left that would tell
the two apart (a bias was added twice), and ones that reduce by threads have nothing to divide among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.prim import expr as prim
from tvm.tirx import IntImm, IterVar

_COMBINERS = (prim.Add, prim.Mul, prim.Max, prim.Min)


def unit_reductions() -> tvm.transform.Pass:
    """Make the pass, for kernels that are not scheduled yet."""

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_ext.UnitReductions")
    def _rewrite(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        if (func.attrs or {}).get("tirx.is_scheduled"):
            return func

        def block(node: Any, mutator: Any) -> Any:
            return _plain(mutator.default_mutate(node))

        return tvm_ffi.structural_mutate(func, [(s_tir.SBlock, block)])

    return _rewrite


def _plain(block: s_tir.SBlock) -> s_tir.SBlock:
    """Make a block that reduces over one element a plain one; any other stays."""
    reduced = [axis for axis in block.iter_vars if int(axis.iter_type) == IterVar.CommReduce]
    if block.init is None or not all(
        isinstance(axis.dom.extent, IntImm) and int(axis.dom.extent) == 1 for axis in reduced
    ):
        return block
    value = _element(block.body, block.init)
    if value is None:
        return block
    target = block.body.buffer
    axes = [
        IterVar(axis.dom, axis.var, IterVar.DataPar, axis.thread_tag) if axis in reduced else axis
        for axis in block.iter_vars
    ]
    return s_tir.SBlock(
        axes,
        [region for region in block.reads if not region.source.same_as(target)],
        block.writes,
        block.name_hint,
        tirx.BufferStore(target, value, block.body.indices),
        None,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )


def _element(update: Any, init: Any) -> Any:
    """Give what a sum, product or extreme takes in each step; None of anything else."""
    if not isinstance(update, tirx.BufferStore) or not isinstance(init, tirx.BufferStore):
        return None
    is_constant = isinstance(init.value, prim.FloatImm | IntImm)
    if not isinstance(update.value, _COMBINERS) or not is_constant or not init.buffer.same_as(update.buffer):
        return None
    for done, element in ((update.value.a, update.value.b), (update.value.b, update.value.a)):
        if _is_load(done, update.buffer, update.indices) and not _loads(element, update.buffer):
            return element
    return None


def _is_load(expr: Any, buffer: Any, indices: Sequence[Any]) -> bool:
    return (
        isinstance(expr, tvm.ir.TensorLoad)
        and expr.source.same_as(buffer)
        and all(map(tvm_ffi.structural_equal, expr.indices, indices))
    )


def _loads(expr: Any, buffer: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(expr, (tvm.ir.TensorLoad, lambda load: found.append(load.source)))
    return any(source.same_as(buffer) for source in found)
