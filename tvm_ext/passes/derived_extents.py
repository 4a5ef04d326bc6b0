"""Reads symbols from extents that are computed from them: ``s`` from an input whose dimension is ``4 * s``.

``torch.export`` describes inputs so (``4 * torch.export.Dim("s")``). Passes and kernels are left to see ``s`` and
``4 * s``, of which TVM can prove far more than of ``e // 4`` and ``e``; only TVM's last step, which reads symbols from
shapes, knows no other way to do so than from an extent that is the symbol.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_ext.relax_utils import substitute


def derived_extents() -> tvm.transform.Pass:
    """Make the pass, for functions that are ready for ``VMShapeLower``.

    Before and after::

        def main(x: R.Tensor((4 * s,))):      def main(x: R.Tensor((e,))):
            ...                           ->      R.match_cast(R.shape([e // 4]), R.Shape([s]))
                                                  x_1 = R.match_cast(x, R.Tensor((4 * s,)))  # refuses a remainder
                                                  ...
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.DerivedExtents")
    def _derived_extents(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod
        for variable, function in mod.functions_items():
            if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr):
                read = _reading(function)
                if read is not function:
                    updated = mod.clone() if updated is mod else updated
                    updated.update_func(variable, read)
        return updated

    return _derived_extents


def _reading(function: relax.Function) -> relax.Function:
    own = {dim for dim in _extents(function.params) if isinstance(dim, tirx.Var)}
    solved: dict[tirx.Var, tuple[tirx.Var, int, int]] = {}  # by symbol: extent, factor, summand
    for dim in _extents(function.params):
        missing = [symbol for symbol in tvm.tirx.analysis.undefined_vars(dim) if symbol not in own]
        if len(missing) == 1 and missing[0] not in solved and (terms := _linear(dim, missing[0])) is not None:
            solved[missing[0]] = (tirx.Var(f"{missing[0].name}_extent", "int64"), *terms)
    if not solved:
        return function
    symbols = {symbol: tirx.floordiv(extent - plus, times) for symbol, (extent, times, plus) in solved.items()}
    whole = {symbol: (symbol * times + plus, extent) for symbol, (extent, times, plus) in solved.items()}
    analyzer = tvm.sym.Analyzer()

    def written(dim: Any) -> Any:
        for computed, extent in whole.values():
            if analyzer.can_prove_equal(dim, computed):
                return extent
        return substitute(dim, symbols)

    bindings: list[relax.Binding] = []
    for symbol, value in symbols.items():
        found = relax.ShapeExpr([value])
        shape = relax.Var(f"{symbol.name}_computed", found.ty)
        ty = relax.ShapeType([symbol])
        bindings += [relax.VarBinding(shape, found), relax.MatchCast(relax.Var(f"{symbol.name}_shape", ty), shape, ty)]
    params = []
    for param in function.params:
        if any(symbol in solved for dim in _extents([param]) for symbol in tvm.tirx.analysis.undefined_vars(dim)):
            ty = param.ty
            given = relax.Var(param.name, relax.TensorType([written(dim) for dim in ty.shape], ty.dtype))
            bindings.append(relax.MatchCast(param, given, ty))
            params.append(given)
        else:
            params.append(param)
    body = relax.SeqExpr([relax.BindingBlock(bindings), *function.body.blocks], function.body.body)
    return relax.Function(params, body, function.ret_ty, function.is_pure, function.attrs, function.span)


def _extents(params: Sequence[relax.Var]) -> Iterator[Any]:
    for param in params:
        if isinstance(param.ty, relax.TensorType) and isinstance(param.ty.shape, relax.ShapeExpr):
            yield from param.ty.shape.values


def _linear(dim: Any, symbol: tirx.Var) -> tuple[int, int] | None:
    """Give ``(a, b)`` of ``a * symbol + b``, for a positive ``a``."""
    terms = tvm.sym.detect_linear_equation(dim, [symbol])
    if len(terms) != 2 or not all(isinstance(term, tirx.IntImm) for term in terms) or int(terms[0]) <= 0:
        return None
    return int(terms[0]), int(terms[1])
