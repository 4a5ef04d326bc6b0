"""Moves each ``If`` into a private function of its own, and each of its branches into another.

before: ``y = if c: add(exp(x), a) else: sqrt(x)``
after:  ``y = choose(c, x, a)``, where ``choose`` is ``if c: then(x, a) else: otherwise(x, a)``

All other functions are then straight lists of bindings, which every later pass can take, and whoever plans memory never
meets a storage that is allocated in one branch and used in the other (``StaticPlanBlockMemory`` makes such).
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.utils import copy_with_new_vars


def outline_branches() -> tvm.transform.Pass:
    """Make the pass; functions without ``If`` are left as they are."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.OutlineBranches")
    def _outline_branches(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        rewriter = _Outliner(mod)
        for global_var, function in mod.functions_items():
            if isinstance(function, relax.Function):
                rewriter.name = global_var.name_hint
                rewriter.builder_.update_func(global_var, rewriter.visit_expr(function))
        return rewriter.builder_.finalize()

    return _outline_branches


@mutator
class _Outliner(PyExprMutator):
    name = ""

    def visit_if_(self, branch: relax.If) -> relax.Expr:
        """Replace an ``If`` by a call."""
        condition = self.visit_expr(branch.cond)
        bodies = (branch.true_branch, branch.false_branch)
        captured = list(dict.fromkeys(variable for body in bodies for variable in relax.analysis.free_vars(body)))
        symbols = list(
            dict.fromkeys(
                symbol
                for body in bodies
                for symbol in relax.analysis.free_symbolic_vars(_function(captured, body, None))
            )
        )
        # Extents that no tensor among the parameters tells are handed over as a shape.
        extents = [relax.Var("extents", relax.ShapeType(symbols))] if symbols else []
        called = [
            self.builder_.add_func(
                # The copy is visited: its own branches are moved out in the same way.
                self.visit_expr(copy_with_new_vars(_function([*captured, *extents], body, branch.ty))),
                f"{self.name}_{suffix}",
            )
            for body, suffix in zip(bodies, ("then", "else"), strict=True)
        ]
        chooser = self.builder_.add_func(
            copy_with_new_vars(_choice(condition, captured, extents, called, branch.ty)), f"{self.name}_if"
        )
        shape = [relax.ShapeExpr(symbols)] if symbols else []
        return relax.Call(chooser, [condition, *(self.visit_expr(variable) for variable in captured), *shape])


def _function(parameters: list[relax.Var], body: relax.Expr, result: relax.Type | None) -> relax.Function:
    pure = not relax.analysis.contains_impure_call(relax.Function(parameters, body, result, is_pure=False))
    return relax.Function(parameters, body, result, is_pure=pure)


def _choice(
    condition: relax.Expr,
    captured: list[relax.Var],
    extents: list[relax.Var],
    called: list[tvm.ir.GlobalVar],
    result: relax.Type,
) -> relax.Function:
    """Build the function that holds nothing but the ``If``."""
    switch = relax.Var("condition", condition.ty)
    parameters = [*captured, *extents]
    branches = []
    for function in called:
        chosen = relax.Var("chosen", result)
        block = relax.BindingBlock([relax.VarBinding(chosen, relax.Call(function, parameters))])
        branches.append(relax.SeqExpr([block], chosen))
    value = relax.Var("value", result)
    body = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(value, relax.If(switch, *branches))])], value)
    pure = all(function.ty.purity for function in called)
    return relax.Function([switch, *parameters], body, result, is_pure=pure)
