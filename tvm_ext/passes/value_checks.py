"""Leave out the kernels by which importers look at values, for targets that cannot refuse them while they run.

before: ``y = R.take(table, R.call_tir(check_values, (indices,)))``
after:  ``y = R.take(table, indices)``
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

VALUE_CHECK = "tvm_ext.value_check"
"""Attribute of a kernel that hands its one operand through, and ends the run where it holds what it may not."""


def without_value_checks() -> tvm.transform.Pass:
    """Make the pass."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.WithoutValueChecks")
    def _without_value_checks(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        checks = {variable for variable, func in mod.functions.items() if is_value_check(func)}
        if not checks:
            return mod
        remover = _Remover(mod, checks)
        for variable, function in mod.functions.items():
            if isinstance(function, relax.Function):
                remover.builder_.update_func(variable, remover.visit_expr(function))
        return relax.transform.DeadCodeElimination()(remover.builder_.get())

    return _without_value_checks


def is_value_check(func: Any) -> bool:
    """Whether a function only looks at values."""
    return isinstance(func, tirx.PrimFunc) and VALUE_CHECK in (func.attrs or {})


@mutator
class _Remover(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, checks: set[Any]) -> None:
        super().__init__(mod)
        self._checks = checks

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if call.op == tvm.ir.Op.get("relax.call_tir") and call.args[0] in self._checks:
            return call.args[1].fields[0]
        return call
