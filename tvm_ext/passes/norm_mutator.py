"""Walks over a function and replaces the last steps of normalisations by operators."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator

from tvm_ext.passes.bindings import Bindings


class NormMutator(PyExprMutator):
    """Replaces the last step of a normalisation; what led to it is dead then.

    The class of a pass that derives from this is decorated as a mutator.

    Attributes
    ----------
    bindings : Bindings
        Of the function that is rewritten.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.bindings = Bindings()

    @abstractmethod
    def operator(self, user: relax.Var, value: Any) -> relax.Call | None:
        """Make the operator for a normalisation whose last step is ``value``, bound to ``user``; None: it is none."""

    def begin(self, function: relax.Function) -> bool:
        """Note what variables stand for."""
        self.bindings = Bindings()
        self.bindings.visit_expr(function)
        return True

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Bind the operator in the place of the last step."""
        made = self.operator(binding.var, binding.value)
        super().visit_var_binding_(binding if made is None else relax.VarBinding(binding.var, made))
