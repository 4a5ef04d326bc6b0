"""Put what finds out an extent in front of the kernels that need it.

Fusion sorts calls by the tensors that they read and make. A ``match_cast`` that gives an extent its name is read by
nobody, and ends up behind calls whose results have that extent.

before: ``y = call_tir(fill, (), Tensor((n,)))``; ``match_cast(shape, Shape((n,)))``
after:  ``match_cast(shape, Shape((n,)))``; ``y = call_tir(fill, (), Tensor((n,)))``
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax


def extents_first() -> tvm.transform.Pass:
    """Make the pass, for functions of blocks of bindings."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.ExtentsFirst")
    def _extents_first(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod
        for variable, function in mod.functions_items():
            if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr):
                sorted_function = _sorted(function)
                if sorted_function is not function:
                    updated = mod.clone() if updated is mod else updated
                    updated.update_func(variable, sorted_function)
        return updated

    return _extents_first


def _sorted(function: relax.Function) -> relax.Function:
    known = {extent for param in function.params for extent in extents(param.ty)}
    blocks, changed = [], False
    for block in function.body.blocks:
        bindings = list(block.bindings)
        order = _order(bindings, known)
        known |= {extent for binding in bindings if isinstance(binding, relax.MatchCast) for extent in _named(binding)}
        if order != list(range(len(bindings))):
            changed = True
            kind = relax.DataflowBlock if isinstance(block, relax.DataflowBlock) else relax.BindingBlock
            block = kind([bindings[place] for place in order], block.span)
        blocks.append(block)
    if not changed:
        return function
    body = relax.SeqExpr(blocks, function.body.body, function.body.span)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs, function.span)


def _order(bindings: Sequence[Any], known: set[Any]) -> list[int]:
    """List the places of bindings in an order in which all that they need comes first, and else as they are."""
    found_by: dict[Any, int] = {}
    for place, binding in enumerate(bindings):
        if isinstance(binding, relax.MatchCast):
            for extent in _named(binding):
                if extent not in known:
                    found_by.setdefault(extent, place)
    if not found_by:
        return list(range(len(bindings)))
    made_by = {binding.var: place for place, binding in enumerate(bindings)}
    order: list[int] = []
    placed: set[int] = set()
    for root in range(len(bindings)):
        waiting = [root]
        while waiting:
            place = waiting[-1]
            needs = {} if place in placed else _needs(bindings[place], made_by, found_by)
            missing = [need for need in needs if need not in placed and need != place]
            if missing and not set(missing) & set(waiting):
                waiting += reversed(missing)
                continue
            waiting.pop()
            if place not in placed:
                placed.add(place)
                order.append(place)
    return order


def _needs(binding: Any, made_by: dict[Any, int], found_by: dict[Any, int]) -> dict[int, None]:
    places: dict[int, None] = {}

    def visit(variable: Any) -> None:
        place = made_by.get(variable, found_by.get(variable))
        if place is not None:
            places[place] = None

    for node in (binding.value, binding.var.ty):
        tvm_ffi.structural_walk(node, (tvm.ir.Var, visit))
    return places


def _named(binding: relax.MatchCast) -> list[Any]:
    """List the variables that a ``match_cast`` may give their values."""
    return [extent for extent in extents(binding.ty) if tvm.ir.is_prim_var(extent)]


def extents(ty: Any) -> list[Any]:
    """List the extents that a type names: of a tensor, of a shape, or of the fields of a tuple."""
    if isinstance(ty, relax.TensorType):
        return list(ty.shape.values) if isinstance(ty.shape, relax.ShapeExpr) else []
    if isinstance(ty, relax.ShapeType):
        return list(ty.values or [])
    if isinstance(ty, relax.TupleType):
        return [extent for field in ty.fields for extent in extents(field)]
    return []
