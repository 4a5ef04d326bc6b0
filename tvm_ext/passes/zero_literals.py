"""Keeps a zero that tensors are multiplied with or divided by in memory, where TVM computes with it as IEEE 754 has it.

before: ``y = multiply(x, const(0.0))``, ``z = divide(x, const(0.0))``
after:  ``y = multiply(x, const([0.0]))``, ``z = divide(x, const([0.0]))``

A scalar constant becomes a literal of the kernel. TVM makes 0 of ``x * 0.0``, also where x is NaN or infinite, and
refuses to divide by it.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

OPERATORS = frozenset(["relax.multiply", "relax.divide", "relax.mod", "relax.floor_mod", "relax.floor_divide"])


def zero_literals() -> tvm.transform.Pass:
    """Make the pass; only constants of floating-point types are changed."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.ZeroLiterals")
    def _zero_literals(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        rewriter = _ZeroMutator(mod)
        for global_var, function in mod.functions_items():
            if isinstance(function, relax.Function) and not (function.attrs and "Primitive" in function.attrs):
                rewriter.builder_.update_func(global_var, rewriter.visit_expr(function))
        return rewriter.builder_.finalize()

    return _zero_literals


@mutator
class _ZeroMutator(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Give a zero scalar an axis."""
        call = self.visit_expr_post_order(call)
        if not isinstance(call.op, tvm.ir.Op) or call.op.name not in OPERATORS or not any(map(_is_zero, call.args)):
            return call
        arguments = [
            relax.const(argument.value.numpy().reshape(1), str(argument.ty.dtype)) if _is_zero(argument) else argument
            for argument in call.args
        ]
        result = relax.Call(call.op, arguments, call.attrs)
        if call.ty.ndim == 0:  # of scalars only
            return relax.op.reshape(self.builder_.emit(result), ())
        return result


def _is_zero(argument: relax.Expr) -> bool:
    if not isinstance(argument, tvm.ir.GenericConst) or not isinstance(argument.ty, relax.TensorType):
        return False
    return argument.ty.ndim == 0 and "float" in str(argument.ty.dtype) and not argument.value.numpy().any()
