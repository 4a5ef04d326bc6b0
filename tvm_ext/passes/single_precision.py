"""Compute convolutions and matrix products of 16-bit floats in single precision, on CPUs.

before: ``y = conv2d(x, w)`` with ``x``, ``w`` and ``y`` of ``float16`` or ``bfloat16``
after:  ``y = astype(conv2d(astype(x, "float32"), w'), "float16")`` with the constant ``w'`` converted here

Sums of 16-bit products would round at every step, and CPUs convert each operand anyway; in single precision the kernels
are those of float32 networks. A value is still rounded to 16 bits where the network has it so.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

HALVES = ("float16", "bfloat16")
OPERATORS = frozenset(
    f"relax.{name}"
    for name in ("matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv1d_transpose", "nn.conv2d_transpose")
)


def single_precision() -> tvm.transform.Pass:
    """Make the pass; only operators whose operands and result have one 16-bit type are taken."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.SinglePrecision")
    def _single_precision(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        rewriter = SinglePrecisionMutator(mod)
        for global_var, function in mod.functions.items():
            if isinstance(function, relax.Function) and not (function.attrs and "Primitive" in function.attrs):
                rewriter.builder_.update_func(global_var, rewriter.visit_expr(function))
        return rewriter.builder_.finalize()

    return _single_precision


@mutator
class SinglePrecisionMutator(PyExprMutator):
    """Rewrites one module."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replace an operator on 16-bit floats."""
        call = super().visit_call_(call)
        if not isinstance(call.op, tvm.ir.Op) or call.op.name not in OPERATORS:
            return call
        types = {str(argument.ty.dtype) for argument in (*call.args, call)}
        # With a type of its own for the sums, the operator says itself what it wants.
        if len(types) != 1 or not types <= set(HALVES) or call.attrs.out_dtype is not None:
            return call
        result = self.builder_.emit(relax.Call(call.op, [self._single(item) for item in call.args], call.attrs))
        return relax.op.astype(result, types.pop())

    def _single(self, argument: relax.Expr) -> relax.Expr:
        if isinstance(argument, tvm.ir.GenericConst):
            return relax.const(argument.value.numpy().astype("float32"), "float32")
        return self.builder_.emit(relax.op.astype(argument, "float32"))
