"""Axes that are squeezed are counted from the front: TVM's pass that orders channels fails on others.

before: ``y = squeeze(x, axis=[-2])`` of four dimensions
after:  ``y = squeeze(x, axis=[2])``
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.passes.bindings import calls
from tvm_ext.relax_utils import rewritten


def positive_axes(mod: tvm.IRModule) -> tvm.IRModule:
    """Count the axes of all ``squeeze`` of a module from the front."""
    rewriter = _Axes(mod)
    return rewritten(mod, rewriter)


@mutator
class _Axes(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replace a squeeze with an axis that is counted from the end."""
        call = super().visit_call_(call)
        axes = call.attrs.axis if calls(call, "relax.squeeze") else None
        if axes is None or all(int(axis) >= 0 for axis in axes) or call.args[0].ty.ndim < 0:
            return call
        return relax.op.squeeze(call.args[0], [int(axis) % int(call.args[0].ty.ndim) for axis in axes])
