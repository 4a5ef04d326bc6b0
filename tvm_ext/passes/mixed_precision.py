"""Products and convolutions get operands of 16 bits, and add up in float32.

before: ``y = conv2d(x, w)``                      float32
after:  ``y = conv2d(astype(x, "float16"), astype(w, "float16"), out_dtype="float32")``

What is between them stays float32; a conversion becomes part of the kernel that makes the value, and that of a weight
is done when compiling. Values beyond the range of the type (65504 for float16) become infinite, as in any inference in
float16; a product with such a weight stays in float32. Products whose operands have 16 bits already add up in float32
and are rounded once.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.passes.bindings import calls
from tvm_ext.passes.single_precision import HALVES
from tvm_ext.relax_utils import rewriting_pass

_CONVOLUTIONS = {f"relax.nn.{name}": getattr(relax.op.nn, name) for name in ("conv1d", "conv2d", "conv3d")}
_FIELDS = ("strides", "padding", "dilation", "groups", "data_layout", "kernel_layout", "out_layout")


def mixed_precision(dtype: str = "float32") -> tvm.transform.Pass:
    """Make the pass.

    Parameters
    ----------
    dtype : str
        Of the operands that are float32: ``"float16"`` or ``"bfloat16"``; ``"float32"`` leaves them as they are.
    """
    return rewriting_pass("tvm_ext.MixedPrecision", lambda mod: MixedPrecisionMutator(mod, dtype))


@mutator
class MixedPrecisionMutator(PyExprMutator):
    """Rewrites the products and convolutions of a module."""

    def __init__(self, mod: tvm.IRModule, dtype: str) -> None:
        super().__init__(mod)
        self._dtype = dtype
        self._converted: dict[relax.Var, relax.Expr] = {}

    def visit_binding_block_(self, block: relax.BindingBlock) -> relax.BindingBlock:
        """Forget what was converted in another block, where it may not be seen."""
        self._converted = {}
        return super().visit_binding_block_(block)

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.DataflowBlock:
        """Forget what was converted in another block."""
        self._converted = {}
        return super().visit_dataflow_block_(block)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Convert the operands of a product; any other call stays as it is."""
        call = super().visit_call_(call)
        name = call.op.name if isinstance(call.op, tvm.ir.Op) else ""
        if name != "relax.matmul" and name not in _CONVOLUTIONS:
            return call
        dtypes = {str(operand.ty.dtype) for operand in call.args if isinstance(operand.ty, relax.TensorType)}
        if dtypes == {"float32"} and self._dtype != "float32" and not any(map(self._exceeds, call.args)):
            left, right = (self._half(operand) for operand in call.args)
            return _product(call, left, right)
        half = next(iter(dtypes)) if len(dtypes) == 1 else ""
        if half in HALVES and str(call.attrs.out_dtype or half) == half:
            product = self.builder_.emit(_product(call, *call.args))
            return relax.op.astype(product, half)
        return call

    def _exceeds(self, operand: relax.Expr) -> bool:
        """Whether a constant has finite numbers that would become infinite."""
        if self._dtype != "float16" or not isinstance(operand, tvm.ir.GenericConst):
            return False
        numbers = operand.value.numpy()
        return bool(np.any(np.isfinite(numbers) & (np.abs(numbers) > np.finfo("float16").max)))

    def _half(self, operand: relax.Expr) -> relax.Expr:
        """Convert an operand, unless that has been done."""
        if not isinstance(operand, relax.Var):
            return self.builder_.emit(relax.op.astype(operand, self._dtype))
        if operand not in self._converted:
            value = self.builder_.lookup_binding(operand)
            made = self._before_widening(operand, value)
            if made is None and calls(value, "relax.reshape") and isinstance(value.args[0], relax.Var):
                # What makes the numbers converts them: a reshape between the two would keep it from that.
                source = value.args[0]
                if isinstance(operand, relax.DataflowVar) or not isinstance(source, relax.DataflowVar):
                    made = self.builder_.emit(relax.op.reshape(self._half(source), value.args[1]))
            self._converted[operand] = (
                self.builder_.emit(relax.op.astype(operand, self._dtype)) if made is None else made
            )
        return self._converted[operand]

    def _before_widening(self, operand: relax.Var, value: relax.Expr | None) -> relax.Expr | None:
        """Give what a variable was before it was made float32; None when it had no 16 bits, or is not seen here."""
        if not calls(value, "relax.astype") or str(value.args[0].ty.dtype) != self._dtype:  # type: ignore[union-attr]
            return None
        source = value.args[0]  # type: ignore[union-attr]
        return source if isinstance(operand, relax.DataflowVar) or not isinstance(source, relax.DataflowVar) else None


def _product(call: relax.Call, left: relax.Expr, right: relax.Expr) -> relax.Expr:
    """Write the same product of other operands, which adds up in float32."""
    if call.op.name == "relax.matmul":
        return relax.op.matmul(left, right, out_dtype="float32")
    fields = {name: getattr(call.attrs, name) for name in _FIELDS}
    return _CONVOLUTIONS[call.op.name](left, right, **fields, out_dtype="float32")
