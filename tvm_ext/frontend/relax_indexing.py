"""Keeps indices that are computed or fed from reading outside their table."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator


def clip_indices(mod: tvm.IRModule) -> tvm.IRModule:
    """Let every ``take`` clip its indices to the table.

    By default TVM's ``take`` does not look at them (``mode="fast"``): a token number out of range, which any user of a
    model can feed, then reads foreign memory or ends the process. Clipping costs two comparisons per index.

    Before: ``R.take(table, indices, axis=0, mode="fast")``; after: ``R.take(table, indices, axis=0, mode="clip")``.
    """
    clipper = _Clipper(mod)
    for variable, function in mod.functions.items():
        if isinstance(function, relax.Function):
            clipper.builder_.update_func(variable, clipper.visit_expr(function))
    return clipper.builder_.get()


@mutator
class _Clipper(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if call.op == tvm.ir.Op.get("relax.take") and call.attrs.mode == "fast":
            return relax.op.take(call.args[0], call.args[1], call.attrs.axis, mode="clip")
        return call
