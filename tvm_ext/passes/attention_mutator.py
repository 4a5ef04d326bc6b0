"""Walks over a function and replaces attentions by what a backend computes them with."""

from __future__ import annotations

from abc import abstractmethod

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator

from tvm_ext.passes.bindings import Bindings, calls, permutation


class AttentionMutator(PyExprMutator):
    """Replaces the second product of an attention, or the transpose of one; what led to it is dead then.

    The class of a backend that derives from this is decorated as a mutator.

    Attributes
    ----------
    bindings : Bindings
        Of the function that is rewritten.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.bindings = Bindings()

    @abstractmethod
    def attention_kernel(self, var: relax.Var, product: relax.Call, order: tuple[int, ...] | None) -> relax.Call | None:
        """Make the call that computes an attention.

        Parameters
        ----------
        var : relax.Var
            What is bound to the result: operands must be visible there.
        product : relax.Call
            A product of matrices, perhaps the second one of an attention.
        order : tuple of int or None
            Axes of the transpose of the product that is replaced; None if the product itself is.

        Returns
        -------
        relax.Call or None
            None if there is no attention, or if it does not pay.
        """

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Replace what a kernel is made for."""
        call, order = binding.value, None
        if calls(call, "relax.permute_dims") and self._once(call.args[0], binding.var):
            call, order = self.bindings.values[call.args[0]], permutation(call)
        made = self.attention_kernel(binding.var, call, order) if calls(call, "relax.matmul") else None
        if made is None:
            super().visit_var_binding_(binding)
            return
        leaves = self.builder_.current_block_is_dataflow() and not isinstance(binding.var, relax.DataflowVar)
        emitted = self.builder_.emit_output(made) if leaves else self.builder_.emit(made)
        self.set_var_remap(binding.var, emitted)

    def _once(self, expr: relax.Expr, user: relax.Var) -> bool:
        """Whether a value is used once, and where ``user`` is bound."""
        return expr in self.bindings.values and self.bindings.uses[expr] == 1 and self.bindings.is_visible(expr, user)
