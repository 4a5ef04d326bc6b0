"""Writes quotients and remainders of indices that run backwards by indices that run forwards.

before: ``(3 - i) % 2`` and ``(3 - i) // 2``
after:  ``1 - i % 2`` and ``1 - i // 2``

TVM's affine analysis, which simplifies the places in flattened buffers, gets such terms of one iterator wrong: of
``(3 - i) % 2`` it makes ``-(i % -2)``, which is another number for every ``i``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import add
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import IntImm

_BINARY = (tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max)


def forward_indices() -> tvm.transform.Pass:
    """Make the pass, for kernels before their buffers are flattened."""

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_ext.ForwardIndices")
    def _rewrite(func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
        extents = [extent for tensor in filter(tirx.is_buffer_var, func.params) for extent in tensor.ty.shape]
        fixed = _variables([*func.params, *extents])

        def remainder(node: Any, mutator: Any) -> Any:
            node = mutator.default_mutate(node)
            found = _backwards(node.a, node.b, fixed)
            if found is None:
                return node
            terms, base, divisor = found  # (base - terms) % k = k - 1 - (terms - base - 1) % k
            rest = _reduced(-base - 1, divisor)[1]
            return divisor - 1 - tirx.floormod(terms + rest, divisor)

        def quotient(node: Any, mutator: Any) -> Any:
            node = mutator.default_mutate(node)
            found = _backwards(node.a, node.b, fixed)
            if found is None:
                return node
            terms, base, divisor = found  # (base - terms) // k = -((terms - base + k - 1) // k)
            whole, rest = _reduced(divisor - 1 - base, divisor)
            return -whole - tirx.floordiv(terms + rest, divisor)

        return tvm_ffi.structural_mutate(func, [(tirx.FloorMod, remainder), (tirx.FloorDiv, quotient)])

    return _rewrite


def _backwards(dividend: Expr, divisor: Expr, fixed: set[Any]) -> tuple[Expr, Any, Expr] | None:
    """Give ``(terms, base, divisor)`` of ``base - terms`` where all iterators count down; None of anything else."""
    if isinstance(divisor, IntImm):
        if int(divisor) < 1:
            return None
    elif not _variables([divisor]) <= fixed:
        return None
    if not _is_arithmetic(dividend):
        return None
    moving: list[Expr] = []
    base: Any = tirx.const(0, dividend.ty.dtype)
    for factor, term in _terms(dividend, 1):
        value = term * factor
        if _variables([term]) <= fixed:
            base = base + value
        elif factor > 0:
            return None
        else:
            moving.append(term * -factor)
    if not moving:
        return None
    return reduce(add, moving), tvm.sym.Analyzer().simplify(base), divisor


def _terms(expr: Expr, factor: int) -> Iterable[tuple[int, Expr]]:
    """List the terms of a sum, with their factors."""
    if isinstance(expr, tirx.Add | tirx.Sub):
        yield from _terms(expr.a, factor)
        yield from _terms(expr.b, factor if isinstance(expr, tirx.Add) else -factor)
    elif isinstance(expr, tirx.Mul) and isinstance(expr.b, IntImm):
        yield from _terms(expr.a, factor * int(expr.b))
    elif isinstance(expr, tirx.Mul) and isinstance(expr.a, IntImm):
        yield from _terms(expr.b, factor * int(expr.a))
    elif factor:
        yield factor, expr


def _reduced(base: Any, divisor: Expr) -> tuple[Any, Any]:
    """Divide what is known of a number, so that no remainder is taken of a negative one."""
    base = tvm.sym.Analyzer().simplify(base)
    if isinstance(base, IntImm) and isinstance(divisor, IntImm):
        whole, rest = divmod(int(base), int(divisor))
        return tirx.const(whole, base.ty.dtype), tirx.const(rest, base.ty.dtype)
    return tirx.const(0, base.ty.dtype), base


def _is_arithmetic(expr: Any) -> bool:
    """Whether an expression is made of variables and numbers alone: elements of tensors are no indices."""
    if isinstance(expr, tirx.Cast):
        return _is_arithmetic(expr.value)
    if isinstance(expr, _BINARY):
        return _is_arithmetic(expr.a) and _is_arithmetic(expr.b)
    return isinstance(expr, tvm.ir.Var | IntImm)


def _variables(nodes: Iterable[Any]) -> set[Any]:
    found: set[Any] = set()
    for node in nodes:
        tvm_ffi.structural_walk(node, [(tvm.ir.Var, found.add)])
    return found
