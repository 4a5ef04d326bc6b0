"""A walk over a function that makes one reshape of two in a row, one transpose of two, and looks through names."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator

from tvm_ext.passes.bindings import calls, permutation
from tvm_ext.relax_utils import open_shape, rewriting_pass, same_extents


def view_pass(name: str, rewriter: type[ViewMutator]) -> tvm.transform.Pass:
    """Make a pass of such a mutator, behind which what nothing reads any more is gone."""
    steps = [
        rewriting_pass(name, rewriter),
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(),
    ]
    return tvm.transform.Sequential(steps, name=name)


class ViewMutator(PyExprMutator):
    """What passes about reshapes and transposes have in common; a class that derives from this is a mutator."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Make one of two reshapes or transposes in a row, and ask for what becomes of other calls."""
        call = super().visit_call_(call)
        name = call.op.name if isinstance(call.op, tvm.ir.Op) else ""
        if name == "relax.reshape":
            return self.reshape(call)
        return self.transpose(call) if name == "relax.permute_dims" else self.other(call, name)

    def other(self, call: relax.Call, name: str) -> relax.Expr:
        """Rewrite a call of the operator ``name``, whose arguments are what they were rewritten to."""
        raise NotImplementedError

    def reshape(self, call: relax.Call) -> relax.Expr:
        """Make one of a reshape of a reshape, or none."""
        source = self.source(call.args[0], "relax.reshape")
        shape, wanted = None if source is None else open_shape(source), open_shape(call)
        if shape is None or wanted is None:
            return call
        return source if same_extents(shape, wanted) else relax.op.reshape(source, call.args[1])

    def transpose(self, call: relax.Call) -> relax.Expr:
        """Make one of a transpose of a transpose, or none; none of one that leaves all axes in place."""
        axes, source = permutation(call), self.source(call.args[0], "relax.permute_dims")
        if axes is not None and list(axes) == sorted(axes):
            return call.args[0]
        if axes is None or source is None:
            return call
        before = permutation(self.value(call.args[0])) or ()
        both = [before[axis] for axis in axes]
        return source if both == sorted(both) else relax.op.permute_dims(source, both)

    def source(self, expr: relax.Expr, operator: str) -> relax.Expr | None:
        """Give the operand of the call of an operator that a variable is bound to, if it is seen here."""
        value = self.value(expr)
        if not calls(value, operator):
            return None
        seen = isinstance(expr, relax.DataflowVar) or not isinstance(value.args[0], relax.DataflowVar)
        return value.args[0] if seen else None

    def value(self, expr: relax.Expr) -> Any:
        """Look up what a variable is bound to, through other names of it."""
        value = self.builder_.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        return self.value(value) if isinstance(value, relax.Var) else value
