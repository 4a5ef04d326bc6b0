"""Makes tensors filled with an infinity or NaN of a broadcast: TVM's kernel of ``full`` refuses such a value.

before: ``mask = full((4, 4), const(-inf))``        after: ``mask = broadcast_to(const(-inf), (4, 4))``
before: ``mask = full_like(x, const(nan))``         after: ``mask = broadcast_to(const(nan), shape_of(x))``

TVM looks there whether the type is one of floats by searching its name, and what it holds is no name but a type.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator


def broadcast_fill(call: relax.Call) -> relax.Expr:
    """Make a broadcast of a call that fills a tensor with a constant that is not finite; give back all other calls.

    A value that is computed is broadcast, too: it may be found to be infinite when constants are folded.

    Parameters
    ----------
    call : relax.Call
        Normalised: its type is known.
    """
    if not isinstance(call.op, tvm.ir.Op) or call.op.name not in ("relax.full", "relax.full_like"):
        return call
    value, dtype = call.args[1], str(call.ty.dtype)
    if "float" not in dtype:
        return call
    if isinstance(value, tvm.ir.GenericConst):
        number = value.value.numpy().astype("float64")
        if np.isfinite(number).all():
            return call
        value = relax.const(float(number), dtype)
    elif str(value.ty.dtype) != dtype:
        value = relax.op.astype(value, dtype)
    if call.op.name == "relax.full":
        shape = call.args[0]
    else:
        known = call.args[0].ty.shape
        shape = relax.op.shape_of(call.args[0]) if known is None else known
    return relax.op.broadcast_to(value, shape)


def broadcast_fills(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite every function of a module; see :func:`broadcast_fill`."""
    rewriter = _FillMutator(mod)
    for variable, function in mod.functions_items():
        if isinstance(function, relax.Function):
            rewriter.builder_.update_func(variable, rewriter.visit_expr(function))
    return rewriter.builder_.get()


@mutator
class _FillMutator(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replace a fill."""
        return broadcast_fill(self.visit_expr_post_order(call))
