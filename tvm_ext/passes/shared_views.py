"""Reshapes, transposes and conversions of the same tensor that are written several times are made once.

before: ``a, b = astype(reshape(x, (128, 768)), "float16"), astype(reshape(x, (128, 768)), "float16")``
after:  ``a = b = astype(reshape(x, (128, 768)), "float16")``

PyTorch's linear layers each reshape what they read, and each product with operands of 16 bits converts its own.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relax_utils import rewriting_pass

_SHARED = ("relax.astype", "relax.permute_dims", "relax.reshape")


def shared_views() -> tvm.transform.Pass:
    """Make the pass."""
    return rewriting_pass("tvm_ext.SharedViews", _SharedViews)


@mutator
class _SharedViews(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._made: dict[tuple[str, relax.Var], list[tuple[relax.Call, relax.Var]]] = {}

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        """Forget what was made in another block, where it may not be seen."""
        self._made = {}
        return super().visit_dataflow_block_(block)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Take what was made before in the place of the same again."""
        value = binding.value
        name = value.op.name if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) else ""
        if name not in _SHARED or not isinstance(binding.var, relax.DataflowVar):
            super().visit_var_binding_(binding)
            return
        call = self.visit_expr(value)
        known = self._made.setdefault((name, call.args[0]), []) if isinstance(call.args[0], relax.Var) else []
        for other, variable in known:
            if tvm_ffi.structural_equal(other, call):
                self.set_var_remap(binding.var, variable)
                return
        known.append((call, self.builder_.emit(call)))
        self.set_var_remap(binding.var, known[-1][1])
