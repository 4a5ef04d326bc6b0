"""Calls of the same operator or kernel with the same operands that are written several times are made once.

before: ``a, b = call_tir(layer_norm, x), call_tir(layer_norm, x)``
after:  ``a = b = call_tir(layer_norm, x)``

Modules compute a normalisation once for each product that reads it, PyTorch's linear layers each reshape what they
read, each product with operands of 16 bits converts its own, and each convolution brings a tensor into its layout.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relax_utils import rewriting_pass

VIEWS = ("relax.permute_dims", "relax.reshape")
"""Operators that leave elements as they are."""

_WRITTEN = ("relax.call_tir_inplace", "relax.call_inplace_packed")
"""What has written over its operands when it is called again."""


def repeated_calls(operators: Collection[str] | None = None) -> tvm.transform.Pass:
    """Make the pass.

    Parameters
    ----------
    operators : collection of str, optional
        The only ones whose calls are shared, such as ``"relax.reshape"``.
    """
    return rewriting_pass("tvm_ext.RepeatedCalls", lambda mod: _RepeatedCalls(mod, operators))


@mutator
class _RepeatedCalls(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, operators: Collection[str] | None) -> None:
        super().__init__(mod)
        self._operators = operators
        self._made: dict[tuple[Any, ...], list[tuple[relax.Call, relax.Var]]] = {}

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        """Forget what was made in another block, where it may not be seen."""
        self._made = {}
        return super().visit_dataflow_block_(block)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Take what was made before in the place of the same again."""
        if not isinstance(binding.var, relax.DataflowVar) or not self._is_shared(binding.value):
            super().visit_var_binding_(binding)
            return
        call = self.visit_expr(binding.value)
        # Not of constants, which would have to be hashed, however large they are.
        tensors = tuple(_variables(call.args))
        known = self._made.setdefault((call.op.name, *tensors), []) if tensors else []
        for other, variable in known:
            if tvm_ffi.structural_equal(other, call):
                self.set_var_remap(binding.var, variable)
                return
        super().visit_var_binding_(binding)  # keeps the words for the nodes that the variable comes from
        known.append((call, self.visit_expr(binding.var)))

    def _is_shared(self, value: relax.Expr) -> bool:
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
            return False
        name = value.op.name
        return name not in _WRITTEN if self._operators is None else name in self._operators


def _variables(operands: Any) -> Iterator[relax.Var]:
    for operand in operands:
        if isinstance(operand, relax.Tuple):
            yield from _variables(operand.fields)
        elif isinstance(operand, relax.Var):
            yield operand
