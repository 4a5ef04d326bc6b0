"""Takes quantize and dequantize nodes out of a model, and keeps what they say about scales."""

from __future__ import annotations

from math import floor, inf, log2
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.quantized.relax.values import QuantizedConstant
from tvm_ext.relax_utils import constant, scalar


@mutator
class _ConstantDequantizer(PyExprMutator):
    """Writes quantised constants as floats."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.floats: dict[relax.Var, relax.Expr] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Note variables that are bound to quantised constants; their uses become the floats."""
        if isinstance(binding.var, relax.DataflowVar) and _operator(binding.value) == "relax.dequantize":
            folded = QuantizedConstant.from_call(binding.value)
            if folded is not None:
                self.floats[binding.var] = relax.const(folded.floats)
                return
        super().visit_var_binding_(binding)

    def visit_dataflow_var_(self, op: relax.DataflowVar) -> relax.Expr:
        """Replace a variable by the constant it is bound to."""
        value = self.floats.get(op)
        return super().visit_dataflow_var_(op) if value is None else value


_KEEP_RANGE = frozenset(
    ["relax.nn.max_pool2d", "relax.nn.avg_pool2d", "relax.mean", "relax.reshape", "relax.flatten", "relax.permute_dims"]
)
"""Operators whose results lie between the smallest and the largest value of their operand, or are 0."""


@mutator
class _QuantizationRemover(PyExprMutator):
    """Rewrites ``dequantize(quantize(x))`` to ``x``.

    A quantisation that has no negative values is a ReLU or a ReLU6 as well: tools leave these out then. Any other
    does not clip the values that it has no room for.

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
        self._largest: dict[relax.Var, float] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Rewrite one binding."""
        call, operator = binding.value, _operator(binding.value)
        if isinstance(binding.var, relax.DataflowVar) and operator == "relax.quantize":
            limits = _limits(call)
            if limits is not None:
                self.originals[binding.var] = self._quantized(self.visit_expr(call.args[0]), *limits)
                # What reads the integers themselves still can; dead code otherwise.
        elif isinstance(binding.var, relax.DataflowVar) and operator == "relax.dequantize":
            source = call.args[0]
            if isinstance(source, relax.Var) and source in self.originals:
                self.set_var_remap(binding.var, self.originals[source])
                return
        super().visit_var_binding_(binding)

    def _quantized(self, value: relax.Expr, low: float, high: float) -> relax.Expr:
        if low >= 0:
            value = self._bounded(value, high)
        elif not isinstance(value, relax.Var):
            value = self.builder_.emit(value)
        largest = max(-low * 127 / 128, high)
        self.fractions.setdefault(value, floor(log2(127.5 / largest)) if largest else 7)
        return value

    def _bounded(self, value: relax.Expr, high: float) -> relax.Expr:
        """Clip to 0 and ``high``, together with a bound that is there; not what is within already."""
        source = self._binding(value)
        at = value
        while _operator(source) in _KEEP_RANGE:
            at = source.args[0]
            source = self._binding(at)
        if self._largest.get(at, inf) <= high:
            return value
        source, low = self._binding(value), 0.0
        if _operator(source) == "relax.nn.relu":
            value = source.args[0]
        elif _operator(source) == "relax.clip":
            bounds = [float(bound.value) for bound in source.args[1:3]]
            if bounds[0] <= high and bounds[1] >= 0:
                value, low, high = source.args[0], max(low, bounds[0]), min(high, bounds[1])
        result = self.builder_.emit(relax.op.clip(value, low, high))
        self._largest[result] = high
        return result

    def _binding(self, value: relax.Expr) -> Any:
        return self.builder_.lookup_binding(value) if isinstance(value, relax.Var) else value


def _limits(call: relax.Call) -> tuple[float, float] | None:
    """Return the smallest and the largest value that a quantisation to 8 bits with one scale has."""
    scale, zero_point = scalar(call.args[1]), scalar(call.args[2])
    dtype = str(call.ty.dtype)
    if scale is None or zero_point is None or dtype not in ("int8", "uint8") or constant(call.args[0]) is not None:
        return None
    limits = np.iinfo(dtype)
    low, high = ((float(limit) - zero_point) * scale for limit in (limits.min, limits.max))
    return (low, high) if np.isfinite([low, high]).all() else None


def _operator(value: relax.Expr) -> str:
    return str(getattr(value.op, "name", "")) if isinstance(value, relax.Call) else ""


def dequantize_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite the quantised constants of ``main`` to floats."""
    return _rewritten(mod, _ConstantDequantizer(mod))


def remove_quantization(mod: tvm.IRModule) -> tuple[tvm.IRModule, dict[relax.Var, int]]:
    """Rewrite ``main`` to floats.

    Returns
    -------
    IRModule
    dict
        Variable of the new ``main`` to the bits after the binary point; empty if the model is not quantised.
    """
    mod = dequantize_constants(mod)
    remover = _QuantizationRemover(mod)
    return relax.transform.DeadCodeElimination()(_rewritten(mod, remover)), remover.fractions


def _rewritten(mod: tvm.IRModule, rewriter: _ConstantDequantizer | _QuantizationRemover) -> tvm.IRModule:
    main = mod.get_global_var("main")
    rewriter.builder_.update_func(main, rewriter.visit_expr(mod[main]))
    return rewriter.builder_.finalize()
