"""Give an extent that is computed at run time its value, where folding has found that out.

before: ``places = R.shape([2])``; ``match_cast(places, Shape([picked]))``; ``y = arange(picked)``
after:  ``y = arange(2)``

How many elements a slice keeps is computed by operators where its bounds or the extent of its axis are not known. Where
they turn out to be constants, what is left is an extent with two names, of which TVM's fusion knows one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from tvm_ext.passes.fold_constants import fold_constants


def matched_extents() -> tvm.transform.Pass:
    """Make the pass, for functions of blocks of bindings; constants that come of it are folded as well."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.MatchedExtents")
    def _matched_extents(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        while known := {
            variable: found
            for variable, function in mod.functions_items()
            if isinstance(function, relax.Function) and (found := _matches(function))
        }:
            mod = mod.clone()
            for variable, values in known.items():
                mod.update_func(variable, _bound(mod[variable], values))
            mod = fold_constants()(mod)
        return mod

    return _matched_extents


def _matches(function: relax.Function) -> dict[Any, Any]:
    """Find extents that get their names from a shape which is written out."""
    if not isinstance(function.body, relax.SeqExpr):
        return {}
    shapes: dict[relax.Var, Sequence[Any]] = {}
    named = {dim for param in function.params for dim in _dims(param.ty)}
    found: dict[Any, Any] = {}
    for block in function.body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.ShapeExpr):
                shapes[binding.var] = list(binding.value.values)
            if not isinstance(binding, relax.MatchCast):
                continue
            for extent, value in zip(_dims(binding.ty), shapes.get(binding.value, ()), strict=False):
                # One at a time: a value may be given in names that are found here.
                if tvm.ir.is_prim_var(extent) and extent not in named and not found:
                    found[extent] = value
            named.update(_dims(binding.ty))
    return found


def _dims(ty: Any) -> Sequence[Any]:
    if isinstance(ty, relax.TensorType):
        return list(ty.shape.values) if isinstance(ty.shape, relax.ShapeExpr) else []
    return list(ty.values or []) if isinstance(ty, relax.ShapeType) else []


def _bound(function: relax.Function, values: dict[Any, Any]) -> relax.Function:
    """Put values in the place of variables, which TVM does for those in the types of parameters."""
    names = relax.Var("names", relax.ShapeType(list(values)))
    told = relax.Function([*function.params, names], function.body, function.ret_ty, function.is_pure, function.attrs)
    bound = told.bind_symbolic_vars(values)
    params = list(bound.params)[:-1]
    return relax.Function(params, bound.body, bound.ret_ty, bound.is_pure, bound.attrs, function.span)
