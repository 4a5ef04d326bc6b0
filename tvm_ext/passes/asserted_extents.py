"""Keep what a ``match_cast`` says of extents that are known already.

TVM's ``CanonicalizeBindings`` takes every extent that a ``match_cast`` names for one that is defined there, also one
that an input defines. It gives it the value's extent, drops the cast, whose types are equal then, and with it the
check: a product read past the end of an operand, and an addition of what was to be alike did not compile.

before: ``z = match_cast(y, Tensor((n, 5)))``, ``y`` of type ``Tensor((m, 5))``, ``n`` an extent of an input
after:  ``y_1 = match_cast(y, Tensor(ndim=2))``; ``z = match_cast(y_1, Tensor((n, 5)))``
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from tvm_ext.passes.extents_first import extents


def asserted_extents() -> tvm.transform.Pass:
    """Make the pass, for functions of blocks of bindings; it runs before bindings are canonicalised."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.AssertedExtents")
    def _asserted_extents(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod
        for variable, function in mod.functions_items():
            if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr):
                kept = _kept(function)
                if kept is not function:
                    updated = mod.clone() if updated is mod else updated
                    updated.update_func(variable, kept)
        return updated

    return _asserted_extents


def _kept(function: relax.Function) -> relax.Function:
    known = {extent for param in function.params for extent in extents(param.ty)}
    blocks, changed = [], False
    for block in function.body.blocks:
        bindings: list[relax.Binding] = []
        for binding in block.bindings:
            if isinstance(binding, relax.MatchCast):
                if _asserts(extents(binding.ty), extents(binding.value.ty), known):
                    plain = relax.Var(f"{binding.var.name}_any", _without_extents(binding.value.ty))
                    variable = relax.DataflowVar(plain.name, plain.ty) if _in_dataflow(block) else plain
                    bindings.append(relax.MatchCast(variable, binding.value, plain.ty))
                    binding = relax.MatchCast(binding.var, variable, binding.ty, binding.span)
                    changed = True
                known |= set(extents(binding.ty))
            bindings.append(binding)
        blocks.append((relax.DataflowBlock if _in_dataflow(block) else relax.BindingBlock)(bindings, block.span))
    if not changed:
        return function
    body = relax.SeqExpr(blocks, function.body.body, function.body.span)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs, function.span)


def _asserts(wanted: Sequence[Any], given: Sequence[Any], known: set[Any]) -> bool:
    """Whether an extent that is known, or named twice, is compared with one that is called something else."""
    named: dict[Any, Any] = {}
    if len(wanted) != len(given):
        return False  # nothing is known of the value's extents, so that the cast stays
    for name, extent in zip(wanted, given, strict=True):
        if not tvm.ir.is_prim_var(name):
            continue
        first = name if name in known else named.setdefault(name, extent)
        if not tvm_ffi.structural_equal(first, extent):
            return True
    return False


def _without_extents(ty: Any) -> Any:
    if isinstance(ty, relax.TensorType):
        return relax.TensorType(dtype=ty.dtype, vdevice=ty.vdevice, ndim=ty.ndim)
    if isinstance(ty, relax.ShapeType):
        return relax.ShapeType(ndim=ty.ndim)
    if isinstance(ty, relax.TupleType):
        return relax.TupleType([_without_extents(field) for field in ty.fields])
    return ty


def _in_dataflow(block: relax.BindingBlock) -> bool:
    return isinstance(block, relax.DataflowBlock)
