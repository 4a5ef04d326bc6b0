"""Leave out broadcasts that repeat nothing, and those of a matrix that a product takes for all of its rows anyway.

before: ``y = matmul(broadcast_to(x, (n, b, 48)), broadcast_to(w, (n, 48, 144)))``, ``x: [n, b, 48]``, ``w: [48, 144]``
after:  ``y = matmul(x, w)``

PyTorch exports a linear layer over two open extents so. As a product of ``n`` pairs it would have the weights copied
and packed ``n`` times.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relax_utils import open_shape, rewriting_pass, same_extents


def plain_broadcasts() -> tvm.transform.Pass:
    """Make the pass."""
    return rewriting_pass("tvm_ext.PlainBroadcasts", _Rewriter)


@mutator
class _Rewriter(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replace a broadcast or a product."""
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "")
        if name == "relax.broadcast_to":
            source = open_shape(call.args[0])
            return call.args[0] if source is not None and same_extents(source, open_shape(call) or ()) else call
        if name == "relax.matmul":
            matrix = self._repeated_matrix(call.args[1])
            left, right = (open_shape(argument) for argument in call.args)
            if matrix is not None and left and right and same_extents(left[:-2], right[:-2]):
                return relax.Call(call.op, [call.args[0], matrix], call.attrs)
        return call

    def _repeated_matrix(self, operand: relax.Expr) -> relax.Expr | None:
        """Give the matrix that an operand repeats; None where it repeats rows or columns, too."""
        value = self.lookup_binding(operand) if isinstance(operand, relax.Var) else operand
        if not isinstance(value, relax.Call) or getattr(value.op, "name", "") != "relax.broadcast_to":
            return None
        source, repeated = open_shape(value.args[0]), open_shape(value)
        if source is None or repeated is None or len(source) != 2:
            return None
        return value.args[0] if same_extents(source, repeated[-2:]) else None
