"""Turn quantised models into calls of HVX kernels: sums of products, rescaled without a float in between.

before: ``quantize(conv2d(dequantize(x), dequantize(w)) + dequantize(b))``
after:  panels of ``x``, gathered windows, a product whose sums are rescaled in fixed point, planes of its result

What can be computed from one quantised tensor alone, element by element, becomes a look-up in a table of 256 bytes.
Everything else stays what :mod:`tvm_ext.quantized` makes of it, and runs on the scalar core.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tvm_ext.backends.hexagon.model.fixed_values import FIXED_RULES, fixed_variables
from tvm_ext.backends.hexagon.model.functions import ELEMENTWISE
from tvm_ext.backends.hexagon.model.kernels import Calls
from tvm_ext.backends.hexagon.model.selection import Layouts, choose_layouts
from tvm_ext.graph.decisions import with_decisions
from tvm_ext.graph.origins import all_origins, variables_of
from tvm_ext.quantized.relax.mutator import SIGNED_OFFSET, IntegerMutator, Rule
from tvm_ext.quantized.relax.operators import OPERATOR_RULES
from tvm_ext.quantized.relax.rules import RULES, along_channels
from tvm_ext.quantized.relax.values import ACTIVATION_TYPES, IntegerSum, Quantized
from tvm_ext.relax_utils import constant, scalar, static_shape
from tvm_ext.schedules.hexagon.elementwise import WeightedSum
from tvm_ext.schedules.hexagon.fixed_point import MOST_RIGHT, Rescaling
from tvm_ext.schedules.hexagon.panels import FOUR, Panels
from tvm_ext.schedules.hexagon.window import Window

LARGEST = 1 << 31

FINE = 64
"""Steps of a sum in one of its result, from which on a bias of floats is rounded to them; few results are then off."""


def hvx_kernels(layout: Panels | None = None) -> tvm.transform.Pass:
    """Make the pass; functions without 8-bit tensors are left alone.

    Parameters
    ----------
    layout : Panels, optional
        Of all operators; by default the planner selects one for each.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.HvxKernels")
    def _hvx_kernels(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        if layout is not None:
            return _rewritten(mod, Layouts(layout))
        seen = Layouts()
        rewritten = _rewritten(mod, seen)
        if not seen.nodes:
            return rewritten
        chosen = choose_layouts(seen.nodes)
        if any(item != FOUR for item in chosen.layouts):
            rewritten = _rewritten(mod, Layouts(chosen.layouts))
        return with_decisions(rewritten, chosen.decisions)

    return _hvx_kernels


def _rewritten(mod: tvm.IRModule, layouts: Layouts) -> tvm.IRModule:
    rewriter = _HvxMutator(mod, layouts)
    for global_var, function in mod.functions_items():
        if isinstance(function, relax.Function):
            rewriter.origins, rewriter.fixed = all_origins(function), fixed_variables(function)
            rewriter.builder_.update_func(global_var, rewriter.visit_expr(function))
    return rewriter.builder_.finalize()


@dataclass(frozen=True)
class _Pair:
    """A float tensor that is the sum or the product of two quantised ones, clipped."""

    operator: Literal["add", "multiply"]
    first: Quantized
    second: Quantized
    low: float = -np.inf
    high: float = np.inf


_Base: Any = IntegerMutator._cls
"""What the decorator of mutators makes of a class cannot be derived from; this is the class."""


@mutator
class _HvxMutator(_Base):
    """The mutator of integer arithmetic, with kernels for what it would compute in floats.

    Attributes
    ----------
    pairs : dict
        Float tensors that are sums or products of two quantised ones.
    functions : dict
        Float tensors that are a function of the elements of a quantised one, and its values for all bytes.
    tables : dict
        Tensors of bytes that were looked up, of what, and in which table.
    maxima : dict
        Float tensors that are maxima over windows of such a function.
    biased : dict
        Sums and a bias of floats, which is rounded to their steps.
    fixed : set
        Variables that depend on no input.
    noted : dict
        Words for the nodes of all these and of sums: a kernel takes them when it is emitted for what they become.
    """

    def __init__(self, mod: tvm.IRModule, layouts: Layouts) -> None:
        super().__init__(mod, (FIXED_RULES, _HVX_RULES, OPERATOR_RULES, RULES))
        self.calls = Calls(self.builder_, layouts)
        self.pairs: dict[relax.Var, _Pair] = {}
        self.functions: dict[relax.Var, tuple[Quantized, np.ndarray]] = {}
        self.tables: dict[relax.Var, tuple[Quantized, np.ndarray]] = {}
        self.maxima: dict[relax.Var, tuple[tuple[Quantized, np.ndarray], Window]] = {}
        self.biased: dict[relax.Var, IntegerSum] = {}
        self.fixed: set[relax.Var] = set()
        self.noted: dict[relax.Var, tuple[str, ...]] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Rewrite a binding; where integers come of it, they come from all nodes since the last ones."""
        words = [word for operand in variables_of(binding.value) for word in self.noted.get(operand, ())]
        if getattr(getattr(binding.value, "op", None), "name", "") == "relax.quantize":
            self.waiting |= {used: self.noted[used] for used in variables_of(binding.value) if used in self.noted}
        super().visit_var_binding_(binding)
        if any(binding.var in table for table in (self.sums, self.pairs, self.functions, self.maxima, self.biased)):
            self.noted[binding.var] = tuple(dict.fromkeys((*words, *self.origins.get(binding.var, ()))))

    def requantize(self, value: IntegerSum, scale: float, zero_point: int) -> Quantized:
        """Emit a kernel that gives the bytes; where there is none, what the base class has."""
        step = np.float32(scale)
        with np.errstate(all="ignore"):
            factors = (value.scale / step).astype(np.float32)
            low, high = (float(np.rint(np.float32(bound) / step)) + zero_point for bound in (value.low, value.high))
        bounds = int(min(max(low, 0), 255)), int(min(max(high, 0), 255))
        data = None
        if np.isfinite(factors).all() and factors.max() < 1 << 20 and np.abs(value.shift).max() < LARGEST:
            rescaling = Rescaling.of(factors, zero_point, *bounds)
            data = self._convolution(value, rescaling)
            data = self._average(value, rescaling) if data is None else data
        if data is None:
            return super().requantize(value, scale, zero_point)
        return Quantized(self._reshaped(data, value), float(step), zero_point)

    def _convolution(self, value: IntegerSum, rescaling: Rescaling) -> Any | None:
        call = self._binding(value.total, "relax.nn.conv2d")
        pad = None if call is None else self._binding(call.args[0], "relax.nn.pad")
        if call is None or (pad is not None and pad.attrs.pad_mode != "constant"):
            return None
        data, weight = call.args[0], constant(call.args[1])
        padding, fill = (0, 0, 0, 0), 0
        if pad is not None:
            widths = [int(width) for width in pad.attrs.pad_width]
            data, padding = pad.args[0], (widths[4], widths[6], widths[5], widths[7])
            fill = int(getattr(pad.attrs, "pad_value", 0) if len(pad.args) < 2 else scalar(pad.args[1]) or 0)
        shape = static_shape(data)
        if weight is None or shape is None or len(shape) != 4 or shape[0] != 1 or 0 in shape:
            return None
        window = Window(
            shape[2], shape[3], _two(weight.shape[2:]), _two(call.attrs.strides), padding, _two(call.attrs.dilation)
        )
        if int(call.attrs.groups) == 1:
            return self.calls.convolution(data, window, fill, weight, value.shift, rescaling)
        if weight.shape[:2] == (shape[1], 1):
            return self.calls.depthwise(data, window, fill, weight.reshape(shape[1], -1), value.shift, rescaling)
        return None

    def _average(self, value: IntegerSum, rescaling: Rescaling) -> Any | None:
        call = self._binding(value.total, "relax.sum")
        cast = None if call is None else self._binding(call.args[0], "relax.astype")
        if cast is None:
            return None
        data = cast.args[0]
        shape = static_shape(data)
        if shape is None or len(shape) != 4 or shape[0] != 1 or 0 in shape or str(data.ty.dtype) != "uint8":
            return None
        return self.calls.average(data, value.shift, rescaling)

    def _binding(self, expr: Any, operator: str) -> relax.Call | None:
        """Give the call that a variable of the new function is bound to, if it is one of this operator."""
        call = self.builder_.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        return call if getattr(getattr(call, "op", None), "name", "") == operator else None


def _two(values: Any) -> tuple[int, int]:
    return int(values[0]), int(values[1])


def _is_picture(value: Quantized) -> bool:
    """Whether there is a way to lay a tensor out in panels: one image, channels first."""
    return value.shape is not None and len(value.shape) >= 2 and value.shape[0] == 1 and 0 not in value.shape


def _pair(rewriter: Any, var: relax.Var, call: relax.Call) -> bool:
    """Note the sum of two quantised pictures, or the product of two or of one with a number for each channel."""
    operator: Literal["add", "multiply"] = "add" if call.op.name == "relax.add" else "multiply"
    known = (rewriter.quantized.get(arg) if isinstance(arg, relax.Var) else None for arg in call.args)
    operands: list[Quantized] = [item for item in known if item is not None and _is_picture(item)]
    shape = static_shape(call)
    if len(operands) == 2 and shape is not None:
        first, second = sorted(operands, key=lambda item: item.shape != shape)
        row = (*shape[:2], *[1] * (len(shape) - 2))
        if first.shape == shape and (second.shape == shape or (operator == "multiply" and second.shape == row)):
            rewriter.pairs[var] = _Pair(operator, first, second)
    if operator == "add":
        _bias(rewriter, var, call)
    return _function(rewriter, var, call)


def _bias(rewriter: Any, var: relax.Var, call: relax.Call) -> None:
    """Note a sum with a bias of floats; one that is a whole number of steps is added to the sum by the other rules."""
    for total, other in (call.args, call.args[::-1]):
        value, bias = rewriter.sums.get(total), rewriter.constant_values(other)
        if value is None or bias is None or value.is_clipped or static_shape(call) != value.shape:
            continue
        per_channel = along_channels(bias, value)
        if per_channel is None:
            continue
        with np.errstate(all="ignore"):
            steps = np.rint(per_channel.astype(np.float64) / value.scale)
        if not np.abs(steps).max() < LARGEST:  # nor a number
            continue
        shift = value.shift + steps.astype(np.int64)
        if rewriter.fits(value.weights, shift):
            rewriter.biased[var] = replace(value, shift=shift)


def _clip(rewriter: Any, var: relax.Var, call: relax.Call) -> bool:
    found = rewriter.pairs.get(call.args[0])
    if found is not None:
        low, high = _bounds(call)
        rewriter.pairs[var] = replace(
            found, low=min(max(low, found.low), found.high), high=max(min(high, found.high), found.low)
        )
    total = rewriter.biased.get(call.args[0])
    if total is not None:
        rewriter.biased[var] = total.clipped(*_bounds(call))
    return _function(rewriter, var, call)


def _bounds(call: relax.Call) -> tuple[float, float]:
    if call.op.name != "relax.clip":
        return 0.0, np.inf
    low, high = (float(getattr(bound, "value", bound)) for bound in call.args[1:])
    return low, high


def _function(rewriter: Any, var: relax.Var, call: relax.Call) -> bool:
    """Note a function of one quantised tensor: its value for every byte."""
    source: Quantized | None = None
    operands: list[Any] = []
    for arg in call.args[: 1 if call.op.name == "relax.clip" else None]:
        number = rewriter.constant_values(arg)
        if number is not None and number.size == 1:
            operands.append(np.float32(number.item()))
            continue
        found = _as_function(rewriter, arg)
        if found is None or static_shape(arg) != static_shape(call):
            return False
        if source is not None and found[0].data is not source.data:
            return False
        source = found[0]
        operands.append(found[1])
    if source is None or not _is_picture(source):
        return False
    if call.op.name == "relax.clip":
        operands += [np.float32(bound) for bound in _bounds(call)]
    with np.errstate(all="ignore"):
        rewriter.functions[var] = source, np.asarray(ELEMENTWISE[call.op.name](*operands), np.float32)
    return False


def _as_function(rewriter: Any, arg: relax.Expr) -> tuple[Quantized, np.ndarray] | None:
    """Give a float tensor as a function of the elements of a quantised one, as far back as there is one."""
    if arg in rewriter.functions:
        return rewriter.functions[arg]
    value = rewriter.quantized.get(arg)
    if value is None:
        return None
    source, table = rewriter.tables.get(value.data, (value, np.arange(256)))
    integers = table.astype(np.int32) - value.zero_point
    return source, (integers.astype(np.float32) * np.float32(value.scale)).astype(np.float32)


def _quantize(rewriter: Any, var: relax.Var, call: relax.Call) -> bool:
    """Take a sum or a function that is known; everything else is left to the rules of other targets."""
    data = call.args[0]
    scale, zero_point, dtype = scalar(call.args[1]), scalar(call.args[2]), str(call.ty.dtype)
    if scale is None or zero_point is None or dtype not in ACTIVATION_TYPES or not scale > 0:
        return False
    zero_point = int(zero_point) + (SIGNED_OFFSET if dtype == "int8" else 0)
    step = np.float32(scale)
    known = rewriter.quantized.get(data)
    if known is not None and known.same_steps(Quantized(data, float(scale), zero_point)):
        return False
    total = rewriter.biased.get(data)
    if total is not None and total.scale.max() * FINE <= step:
        rewriter.integers[var] = rewriter.requantize(total, float(step), zero_point)
        return True
    result = None
    if data in rewriter.pairs and data not in rewriter.functions:
        result = _combined(rewriter, rewriter.pairs[data], step, zero_point)
    if result is None and _is_plain(rewriter, data):
        result = rewriter.calls.quantize(rewriter.visit_expr(data), float(step), zero_point)
    if result is None:
        found, window = rewriter.maxima.get(data) or (_as_function(rewriter, data), None)
        if found is None or not _is_picture(found[0]) or np.isnan(found[1]).any():
            return False
        with np.errstate(all="ignore"):
            table = np.clip(np.rint(found[1] / step).astype(np.float64) + zero_point, 0, 255).astype(np.uint8)
        result = rewriter.calls.look_up(found[0].data, table)
        if window is None:
            rewriter.tables[result] = found[0], table
        else:
            result = rewriter.calls.maximum(result, window)
    rewriter.integers[var] = Quantized(result, float(scale), zero_point)
    return True


def _is_plain(rewriter: Any, data: relax.Expr) -> bool:
    """Whether a tensor holds floats of which nothing is known, so that they are rounded as they are."""
    shape = static_shape(data)
    known = (rewriter.quantized, rewriter.sums, rewriter.joined, rewriter.rounded, rewriter.pairs, rewriter.functions,
             rewriter.maxima)  # fmt: skip
    return (
        isinstance(data, relax.Var)
        and shape is not None
        and 0 not in shape
        and str(data.ty.dtype) == "float32"
        and not any(data in table for table in known)
    )


def _combined(rewriter: Any, value: _Pair, step: np.float32, zero_point: int) -> Any | None:
    """Emit a sum or a product of two tensors; None if its factors are out of range."""
    scales = np.float32(value.first.scale), np.float32(value.second.scale)
    low, high = (float(np.rint(np.float32(bound) / step)) + zero_point for bound in (value.low, value.high))
    bounds = int(min(max(low, 0), 255)), int(min(max(high, 0), 255))
    points = (value.first.zero_point, value.second.zero_point)
    if value.operator == "multiply":
        with np.errstate(all="ignore"):
            factor = scales[0] * scales[1] / step
        if not 0 < factor < 1 << MOST_RIGHT:
            return None
        rescaling = Rescaling.of(np.array([factor]), zero_point, *bounds)
        return rewriter.calls.multiply(value.first.data, value.second.data, points, rescaling)
    factors = [float(scale / step) for scale in scales]
    if not all(0 < factor < 1 << 15 for factor in factors):
        return None
    plan = WeightedSum.of((factors[0], factors[1]), (*points, zero_point), *bounds)
    return rewriter.calls.weighted_sum(value.first.data, value.second.data, plan)


def _reshape(rewriter: Any, var: relax.Var, call: relax.Call) -> bool:
    """Take one row of sums for a row of a product: averages that are flattened before they are quantised."""
    value, shape = rewriter.sums.get(call.args[0]), static_shape(call)
    if value is None or value.matrix_shape is not None or value.shape is None or shape is None:
        return False
    if len(shape) != 2 or shape[0] != 1 or value.shape[0] != 1 or any(extent != 1 for extent in value.shape[2:]):
        return False
    rewriter.sums[var] = replace(value, matrix_shape=shape)
    return True


def _max_pool(rewriter: Any, var: relax.Var, call: relax.Call) -> bool:
    data, attributes = call.args[0], call.attrs
    shape = static_shape(data)
    if (str(attributes.layout), bool(attributes.ceil_mode)) != ("NCHW", False) or shape is None or len(shape) != 4:
        return False
    top, left, bottom, right = (int(width) for width in attributes.padding)
    window = Window(
        shape[2], shape[3], _two(attributes.pool_size), _two(attributes.strides), (top, left, bottom, right),
        _two(attributes.dilation),
    )  # fmt: skip
    for known in (rewriter.quantized, rewriter.integers):
        value = known.get(data)
        if value is not None and _is_picture(value):
            known[var] = Quantized(rewriter.calls.maximum(value.data, window), value.scale, value.zero_point)
            return True
    found = rewriter.functions.get(data)
    if found is not None:
        # Rounding keeps the order: the largest value, rounded, is the largest rounded value.
        rewriter.maxima[var] = found, window
    return False


_HVX_RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _function),
    "relax.add": _pair,
    "relax.multiply": _pair,
    "relax.nn.relu": _clip,
    "relax.clip": _clip,
    "relax.quantize": _quantize,
    "relax.nn.max_pool2d": _max_pool,
    **dict.fromkeys(("relax.reshape", "relax.flatten", "relax.squeeze"), _reshape),
}
