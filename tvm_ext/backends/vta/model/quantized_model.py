"""Takes quantize and dequantize nodes out of a model, and keeps what they say about scales."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, inf, log2
from typing import Any, TypeAlias

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


Range: TypeAlias = tuple[float, float]

_ANYTHING: Range = (-inf, inf)
_KEEP_RANGE = frozenset(
    ["relax.nn.max_pool2d", "relax.nn.avg_pool2d", "relax.mean", "relax.reshape", "relax.flatten", "relax.permute_dims"]
)
"""Operators whose results lie between the smallest and the largest value of their operand, or are 0."""
_RANGES: dict[str, Range] = {"relax.nn.relu": (0.0, inf), "relax.sigmoid": (0.0, 1.0), "relax.tanh": (-1.0, 1.0)}


@mutator
class _QuantizationRemover(PyExprMutator):
    """Rewrites ``dequantize(quantize(x))`` to ``x``.

    What a quantisation has no room for it clips, and so does what is left of it: tools leave out a ReLU or a ReLU6
    where it ends as these do, and a model may count on any other end as well.

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
        self._clips: dict[tuple[relax.Var, float, float], relax.Var] = {}
        self._ranges: dict[relax.Var, Range] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Rewrite one binding."""
        call, operator = binding.value, _operator(binding.value)
        if operator == "relax.quantize":
            limits = _limits(call)
            if limits is not None:
                value = self._quantized(self.visit_expr(call.args[0]), *limits)
                self.originals[binding.var] = value
                # What reads the integers themselves still can; dead code otherwise.
                binding = relax.VarBinding(binding.var, relax.Call(call.op, [value, *call.args[1:]], call.attrs))
        elif isinstance(binding.var, relax.DataflowVar) and operator == "relax.dequantize":
            source = call.args[0]
            if isinstance(source, relax.Var) and source in self.originals:
                self.set_var_remap(binding.var, self.originals[source])
                return
        super().visit_var_binding_(binding)

    def _quantized(self, value: relax.Expr, low: float, high: float, scale: float) -> relax.Expr:
        value = self._bounded(value if isinstance(value, relax.Var) else self.builder_.emit(value), low, high, scale)
        largest = max(-low * 127 / 128, high)
        self.fractions.setdefault(value, floor(log2(127.5 / largest)) if largest else 7)
        return value

    def _bounded(self, value: relax.Var, low: float, high: float, scale: float) -> relax.Var:
        """Clip to a range, together with a bound that is there; not what is within already, but for rounding."""
        smallest, largest = self._range(value)
        if smallest >= low - scale / 2 and largest <= high + scale / 2:
            return value
        source = self._binding(value)
        if _operator(source) == "relax.nn.relu":
            value, low = source.args[0], max(low, 0.0)
        elif _operator(source) == "relax.clip":
            bounds = _bounds(source)
            if bounds[0] <= high and bounds[1] >= low:
                value, low, high = source.args[0], max(low, bounds[0]), min(high, bounds[1])
        known = self._clips.get((value, low, high))
        if known is None:
            known = self._clips[value, low, high] = self.builder_.emit(relax.op.clip(value, low, high))
            self._ranges[known] = low, high
        return known

    def _range(self, value: Any) -> Range:
        """Return between what the values of a variable are for certain."""
        if not isinstance(value, relax.Var):
            return _ANYTHING
        if value not in self._ranges:
            source = self._binding(value)
            operator = _operator(source)
            found = _RANGES.get(operator, _ANYTHING)
            if operator == "relax.clip":
                found = _bounds(source)
            elif operator in _KEEP_RANGE:
                found = _hull([self._range(source.args[0]), (0.0, 0.0)])
            elif operator == "relax.concat":
                found = _hull([self._range(field) for field in getattr(source.args[0], "fields", [None])])
            self._ranges[value] = found
        return self._ranges[value]

    def _binding(self, value: relax.Expr) -> Any:
        return self.builder_.lookup_binding(value) if isinstance(value, relax.Var) else value


def _bounds(clip: relax.Call) -> Range:
    low, high = (float(bound.value) for bound in clip.args[1:3])
    return low, high


def _hull(ranges: Sequence[Range]) -> Range:
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _limits(call: relax.Call) -> tuple[float, float, float] | None:
    """Return the smallest and the largest value that a quantisation to 8 bits with one scale has, and its step."""
    scale, zero_point = scalar(call.args[1]), scalar(call.args[2])
    dtype = str(call.ty.dtype)
    if scale is None or zero_point is None or dtype not in ("int8", "uint8") or constant(call.args[0]) is not None:
        return None
    limits = np.iinfo(dtype)
    low, high = ((float(limit) - zero_point) * scale for limit in (limits.min, limits.max))
    return (low, high, float(scale)) if np.isfinite([low, high]).all() else None


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
