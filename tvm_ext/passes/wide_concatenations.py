"""Join many tensors in groups, so that no kernel chooses between hundreds of operands for each of its elements.

before: ``y = concat((a0, ..., a99))``
after:  ``y = join(concat((a0, ..., a15)), ..., concat((a96, ..., a99)))``, where ``join`` is never fused

A concatenation is compiled as one choice inside the other, as many deep as it has operands, and its producers are
fused into it. The time of compilation grows with the square of that depth, and recursion ends at some hundred.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax, te, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relax_utils import OPAQUE, rewriting_pass

WIDEST = 50
"""Most operands of a concatenation that is left whole; DenseNet-201 has one of 49."""

GROUP = 16
"""Operands that are joined at a time in a wider one."""


def wide_concatenations() -> tvm.transform.Pass:
    """Make the pass; it takes ``concat`` and ``stack`` of more than :data:`WIDEST` tensors, before ``LegalizeOps``."""
    return rewriting_pass("tvm_ext.WideConcatenations", WideConcatenationMutator)


@mutator
class WideConcatenationMutator(PyExprMutator):
    """Rewrites one module."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replace a concatenation that the pass is for."""
        call = super().visit_call_(call)
        if not isinstance(call.op, tvm.ir.Op) or call.op.name not in ("relax.concat", "relax.stack"):
            return call
        (tensors,) = call.args
        count = len(tensors.ty.fields)
        if count <= WIDEST or call.attrs.axis is None:
            return call
        axis = int(call.attrs.axis) % int(call.ty.ndim)
        if isinstance(tensors, relax.Tuple):
            operands = list(tensors.fields)
        else:
            operands = [self.builder_.emit(relax.TupleGetItem(tensors, index)) for index in range(count)]
        first = relax.op.concat if call.op.name == "relax.concat" else relax.op.stack
        joined = [self.builder_.emit(first(group, axis)) for group in _groups(operands)]
        while len(joined) > GROUP:
            joined = [self._join(group, axis) for group in _groups(joined)]
        return self._join(joined, axis)

    def _join(self, operands: Sequence[relax.Expr], axis: int) -> relax.Expr:
        def concatenate(*tensors: te.Tensor) -> te.Tensor:
            return topi.concatenate(tensors, axis)

        if len(operands) == 1:
            return operands[0]
        joined = self.builder_.call_te(
            concatenate, *operands, primfunc_name_hint="join", primfunc_attrs={"op_pattern": OPAQUE}
        )
        return self.builder_.emit(joined)


def _groups(operands: Sequence[relax.Expr]) -> list[Sequence[relax.Expr]]:
    return [operands[start : start + GROUP] for start in range(0, len(operands), GROUP)]
