"""Maxima and minima of floats are NaN where one of the two is, as in NumPy, PyTorch and ONNX.

before: ``max(x, 0)``        CUDA's ``fmaxf``, which passes over NaN: a relu would make 0 of it
after:  ``x < 0 ? 0 : x``, of float16 ``max(0, x)``, which TVM's sources compute as ``0 > x ? 0 : x``
before: ``max(x, y)``
after:  ``x > y or isnan(x) ? x : y``

What stays as it is, and passes over NaN: maxima that threads of a row take together, as TVM knows them by their plain
form (a softmax is NaN all the same, as its exponentials are), and those of bfloat16 and of two tensors in vectors of
more than four, for which CUDA has no comparisons.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.prim import expr as prim
from tvm.tirx import IterVar

from tvm_ext.schedules.rule import RULE_ATTRIBUTE
from tvm_ext.schedules.simd.vector import element_type

WIDEST = 4
"""Elements of the longest vector that CUDA compares."""


def keep_nan() -> tvm.transform.Pass:
    """Make the pass; it runs on scheduled kernels."""

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_ext.KeepNaN")
    def _keep(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        # Attention takes maxima only to keep exponentials in range; these hand NaN on.
        is_attention = str((func.attrs or {}).get(RULE_ATTRIBUTE, "")) == "cuda.attention"
        return func if is_attention else _Rewriter().function(func)

    return _keep


class _Rewriter:
    def __init__(self) -> None:
        self._wide = False
        self._callbacks = [(s_tir.SBlock, self._block), (tirx.For, self._loop), ((prim.Max, prim.Min), self._extreme)]

    def function(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        return tvm_ffi.structural_mutate(func, self._callbacks)

    def _block(self, block: Any, mutator: Any) -> Any:
        """Leave a reduction by maxima alone that threads may take together."""
        reduces = any(int(axis.iter_type) == IterVar.CommReduce for axis in block.iter_vars)
        stored = block.body
        if reduces and isinstance(stored, tirx.BufferStore) and isinstance(stored.value, prim.Max | prim.Min):
            return block
        return mutator.default_mutate(block)

    def _loop(self, loop: Any, mutator: Any) -> Any:
        before = self._wide
        if loop.kind == tirx.ForKind.VECTORIZED:
            self._wide = not isinstance(loop.extent, tirx.IntImm) or int(loop.extent) > WIDEST
        made = mutator.default_mutate(loop)
        self._wide = before
        return made

    def _extreme(self, expression: Any, mutator: Any) -> Any:
        expression = mutator.default_mutate(expression)
        first, second = expression.a, expression.b
        dtype = element_type(expression)
        if dtype == "float16" and _is_number(second):
            return type(expression)(second, first)
        if dtype not in ("float16", "float32", "float64") or self._wide or (dtype == "float16" and _is_number(first)):
            return expression
        wins, loses = (prim.GT, prim.LT) if isinstance(expression, prim.Max) else (prim.LT, prim.GT)
        if _is_number(second):
            return prim.Select(loses(first, second), second, first)
        if _is_number(first):
            return prim.Select(loses(second, first), first, second)
        return prim.Select(prim.Or(wins(first, second), tirx.isnan(first)), first, second)


def _is_number(value: Any) -> bool:
    value = value.value if isinstance(value, prim.Broadcast) else value
    return isinstance(value, prim.FloatImm)
