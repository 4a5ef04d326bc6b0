"""Evaluate operators whose operands are all constants, with numpy.

TVM's ``FoldConstant`` compiles a kernel for each such call: up to half a minute for a network whose weights are only
reshaped and transposed. What has no row here is left for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.passes.fold_batch_norm import constant

LARGEST_GROWTH = 1 << 20
"""Bytes by which a folded result may exceed its operands: a broadcast is cheaper to repeat than to store."""


def _reshape(call: relax.Call, data: np.ndarray) -> np.ndarray | None:
    shape = call.ty.shape
    if not isinstance(shape, relax.ShapeExpr):
        return None
    return data.reshape([int(extent) for extent in shape])


def _permute(call: relax.Call, data: np.ndarray) -> np.ndarray:
    axes = call.attrs.axes
    return np.ascontiguousarray(data.transpose(None if axes is None else [int(axis) for axis in axes]))


# Operator -> its value, given the call and the values of its tensor operands.
ROWS: dict[str, Callable[..., np.ndarray | None]] = {
    "relax.reshape": _reshape,
    "relax.expand_dims": _reshape,
    "relax.squeeze": _reshape,
    "relax.flatten": _reshape,
    "relax.permute_dims": _permute,
    "relax.astype": lambda call, data: data.astype(str(call.ty.dtype)),
    "relax.add": lambda call, a, b: a + b,
    "relax.subtract": lambda call, a, b: a - b,
    "relax.multiply": lambda call, a, b: a * b,
    "relax.divide": lambda call, a, b: a / b if a.dtype.kind == "f" else None,
    "relax.sqrt": lambda call, a: np.sqrt(a) if a.dtype.kind == "f" else None,
    "relax.negative": lambda call, a: -a,
}


def fold_constants() -> tvm.transform.Pass:
    """Make the pass."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.FoldConstants")
    def _fold_constants(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        rewriter = _Rewriter(mod)
        for global_var, function in mod.functions.items():
            if isinstance(function, relax.Function) and not (function.attrs and "Primitive" in function.attrs):
                rewriter.builder_.update_func(global_var, rewriter.visit_expr(function))
        return rewriter.builder_.finalize()

    return _fold_constants


@mutator
class _Rewriter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.known: dict[relax.Var, Any] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Note variables that are bound to constants; their uses become the constants."""
        folded = self._fold(binding.value)
        if folded is None:
            super().visit_var_binding_(binding)
        elif isinstance(binding.var, relax.DataflowVar):
            self.known[binding.var] = folded
        else:
            super().visit_var_binding_(relax.VarBinding(binding.var, folded))

    def visit_dataflow_var_(self, op: relax.DataflowVar) -> relax.Expr:
        """Replace a variable by the constant it is bound to."""
        value = self.known.get(op)
        return super().visit_dataflow_var_(op) if value is None else value

    def _fold(self, value: relax.Expr) -> relax.Expr | None:
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op) or value.op.name not in ROWS:
            return None
        operands = [self.known.get(arg, arg) for arg in value.args if not isinstance(arg, relax.ShapeExpr)]
        arrays = [array for array in map(constant, operands) if array is not None]
        if len(arrays) < len(operands):
            return None
        dtype = str(value.ty.dtype)
        if any(array.dtype.name not in ("float32", "float64", "float16", "int32", "int64") for array in arrays):
            return None
        result = ROWS[value.op.name](value, *arrays)
        if result is None or result.nbytes > sum(array.nbytes for array in arrays) + LARGEST_GROWTH:
            return None
        return relax.const(result, dtype)
