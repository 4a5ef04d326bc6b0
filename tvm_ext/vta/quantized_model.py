"""Takes quantize and dequantize nodes out of a model, and keeps what they say about scales."""

from __future__ import annotations

from math import floor, log2

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.passes.quantized_values import QuantizedConstant, constant, scalar


@mutator
class QuantizationRemover(PyExprMutator):
    """Rewrites ``dequantize(quantize(x))`` to ``x``, and quantised constants to floats.

    A quantisation that has no negative values is a ReLU as well: tools leave the ReLU itself out then. Where values
    are larger than the quantisation has room for, they are not clipped.

    Attributes
    ----------
    fractions : dict
        Variable of the new module to the bits after the binary point that int8 needs for the range of the quantisation:
        its own where its scale is a power of two and it is symmetric.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.fractions: dict[relax.Var, int] = {}
        self.originals: dict[relax.Var, relax.Expr] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Rewrite one binding."""
        call = binding.value
        name = getattr(getattr(call, "op", None), "name", "") if isinstance(call, relax.Call) else ""
        if isinstance(binding.var, relax.DataflowVar) and name == "relax.quantize":
            limits = _limits(call)
            if limits is not None:
                self.originals[binding.var] = self._quantized(self.visit_expr(call.args[0]), *limits)
                # What reads the integers themselves still can; dead code otherwise.
        elif isinstance(binding.var, relax.DataflowVar) and name == "relax.dequantize":
            source = call.args[0]
            if isinstance(source, relax.Var) and source in self.originals:
                self.set_var_remap(binding.var, self.originals[source])
                return
            folded = QuantizedConstant.from_call(call)
            if folded is not None:
                self.set_var_remap(binding.var, self.builder_.emit(relax.const(folded.floats)))
                return
        super().visit_var_binding_(binding)

    def _quantized(self, value: relax.Expr, low: float, high: float) -> relax.Expr:
        if low >= 0:
            value = self.builder_.emit(relax.op.nn.relu(value))
        elif not isinstance(value, relax.Var):
            value = self.builder_.emit(value)
        largest = max(-low * 127 / 128, high)
        self.fractions[value] = floor(log2(127.5 / largest)) if largest else 7
        return value


def _limits(call: relax.Call) -> tuple[float, float] | None:
    """Return the smallest and the largest value that a quantisation to 8 bits with one scale has."""
    scale, zero_point = scalar(call.args[1]), scalar(call.args[2])
    dtype = str(call.ty.dtype)
    if scale is None or zero_point is None or dtype not in ("int8", "uint8") or constant(call.args[0]) is not None:
        return None
    limits = np.iinfo(dtype)
    low, high = ((float(limit) - zero_point) * scale for limit in (limits.min, limits.max))
    return (low, high) if np.isfinite([low, high]).all() else None


def remove_quantization(mod: tvm.IRModule) -> tuple[tvm.IRModule, dict[str, int]]:
    """Rewrite ``main`` to floats.

    Returns
    -------
    IRModule
    dict
        Name of a variable to the bits after the binary point; empty if the model is not quantised.
    """
    remover = QuantizationRemover(mod)
    main = mod.get_global_var("main")
    remover.builder_.update_func(main, remover.visit_expr(mod[main]))
    cleaned = relax.transform.DeadCodeElimination()(remover.builder_.finalize())
    return cleaned, {variable.name: fraction for variable, fraction in remover.fractions.items()}
