"""The mutator that makes integer arithmetic of quantised models, and what it knows of their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.graph.decisions import Decision
from tvm_ext.graph.origins import OriginBuilder, span_of, variables_of
from tvm_ext.quantized.relax.values import ACTIVATION_TYPES, IntegerSum, Quantized, QuantizedConstant
from tvm_ext.quantized.sums import plan_sums, verify_sums
from tvm_ext.relax_utils import constant

SIGNED_OFFSET = 128
"""What is added to int8 activations to keep them as uint8."""


Rule = Callable[["IntegerMutator", relax.Var, relax.Call], bool]
"""Notes what is known of a variable; True when its binding needs no other code."""


@mutator
class IntegerMutator(PyExprMutator):
    """Rewrites one module; the tables say what is known of the old function's variables.

    Attributes
    ----------
    origins, waiting : dict
        Words for the nodes of variables, and those of what nothing was emitted for yet.
    constants, arrays : dict
        Constants that stand quantised in the model, and other values that are known now.
    integers : dict
        Quantised tensors of type int8 or uint8 that this pass keeps as uint8, by their integer variable.
    quantized : dict
        The same and others, by the variable of their float values.
    sums : dict
        Float tensors that are a scaled int32 tensor.
    parts : dict
        Quantised tensors that a quantised tensor is split into, by the variable of the tuple.
    joined : dict
        Concatenations of quantised tensors of different steps, and their axis.
    centred, moved, totals, rounded : dict
        Of models with integer operators: int32 tensors that are uint8 less a zero point; the same less another int32
        that is known at run time (a variable of the old function); int32 sums; scaled sums that are rounded, with the
        zero point added and the bounds they are clipped to.
    """

    def __init__(self, mod: tvm.IRModule, rules: Sequence[Mapping[str, Rule]]) -> None:
        super().__init__(mod)
        self.builder_ = OriginBuilder(mod)
        self.origins: dict[relax.Var, tuple[str, ...]] = {}
        self.waiting: dict[relax.Var, tuple[str, ...]] = {}
        self.rules = rules
        self.constants: dict[relax.Var, QuantizedConstant] = {}
        self.arrays: dict[relax.Var, np.ndarray] = {}
        self.integers: dict[relax.Var, Quantized] = {}
        self.quantized: dict[relax.Var, Quantized] = {}
        self.sums: dict[relax.Var, IntegerSum] = {}
        self.parts: dict[relax.Var, list[Quantized]] = {}
        self.joined: dict[relax.Var, tuple[list[Quantized], int]] = {}
        self.centred: dict[relax.Var, Quantized] = {}
        self.moved: dict[relax.Var, tuple[Quantized, relax.Var]] = {}
        self.totals: dict[relax.Var, IntegerSum] = {}
        self.rounded: dict[relax.Var, tuple[IntegerSum, int, tuple[float, float] | None]] = {}
        self._decided: dict[relax.Expr, Decision] = {}
        self._words: tuple[str, ...] = ()

    @property
    def decisions(self) -> list[Decision]:
        """What was decided for each sum, by its last plan."""
        return list(self._decided.values())

    def fits(self, weights: np.ndarray, shift: np.ndarray) -> bool:
        """Whether sums with these weights, and ``shift`` added, stay within int32."""
        return plan_sums(weights, shift) is not None

    def decide(self, operator: str, value: IntegerSum) -> IntegerSum:
        """Note the plan of a sum, and check it; the sum with a bias, added later, takes its place."""
        plan = plan_sums(value.weights, value.shift)
        assert plan is not None
        verify_sums(plan, value.weights, value.shift)
        known = self._decided.get(value.total)
        words = (*(known.nodes if known else ()), *self._words)
        name = known.operator if known else operator
        self._decided[value.total] = Decision.of(name, "int32 sums", plan, tuple(dict.fromkeys(words)))
        return value

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Rewrite a binding if a rule takes it; one that leaves the dataflow block, too."""
        inherited = [word for operand in variables_of(binding.value) for word in self.waiting.get(operand, ())]
        words = (*inherited, *self.origins.get(binding.var, ()))
        before, self._words = self.builder_.emitted, words
        with self.builder_.coming_from(span_of(words)):
            self._rewrite(binding)
        if self.builder_.emitted == before:  # it becomes part of what reads it
            self.waiting[binding.var] = words

    def _rewrite(self, binding: relax.VarBinding) -> None:
        var, value = binding.var, binding.value
        if isinstance(value, relax.TupleGetItem) and isinstance(var, relax.DataflowVar):
            if value.tuple_value in self.parts:
                self.quantized[var] = self.parts[value.tuple_value][value.index]
                return
        if isinstance(value, relax.Call):
            name = getattr(value.op, "name", "")
            # What leaves the block is known by another variable, whose value it then gets.
            known = var if isinstance(var, relax.DataflowVar) else relax.DataflowVar(var.name, var.ty)
            for rule in filter(None, (table.get(name) for table in self.rules)):
                if rule(self, known, value):
                    if known is not var:
                        self.builder_.emitted += 1
                        super().visit_var_binding_(relax.VarBinding(var, known))
                    return
        self.builder_.emitted += 1
        super().visit_var_binding_(binding)

    def visit_var_(self, op: relax.Var) -> relax.Expr:
        """Give an operator that stays as it is what it expects."""
        expected = self._expected(op)
        return super().visit_var_(op) if expected is None else expected

    def visit_dataflow_var_(self, op: relax.DataflowVar) -> relax.Expr:
        """Give an operator that stays as it is what it expects."""
        expected = self._expected(op)
        return super().visit_dataflow_var_(op) if expected is None else expected

    def _expected(self, var: relax.Var) -> relax.Expr | None:
        if var in self.quantized:
            return self.dequantize(self.quantized[var])
        if var in self.sums:
            return self.to_float(self.sums[var])
        if var in self.integers:
            data = self.integers[var].data
            return data if str(var.ty.dtype) == "uint8" else self.emit(_to_signed(self, data))
        if var in self.centred:
            return self._centre(self.centred[var])
        if var in self.moved:
            value, shift = self.moved[var]
            return self.emit(relax.op.subtract(self._centre(value), self.visit_expr(shift)))
        if var in self.totals:
            return self._reshaped(self._shifted(self.totals[var]), self.totals[var])
        return None

    def _centre(self, value: Quantized) -> relax.Var:
        wide = self.emit(relax.op.astype(value.data, "int32"))
        return self.emit(relax.op.subtract(wide, relax.const(value.zero_point, "int32")))

    def emit(self, expr: relax.Expr) -> relax.Var:
        """Bind an expression in the new function."""
        return self.builder_.emit(expr)

    def dequantize(self, value: Quantized) -> relax.Var:
        """Emit the float values of a quantised tensor; not shared, so that it becomes part of what uses it."""
        scale, zero_point = relax.const(value.scale, "float32"), relax.const(value.zero_point, "uint8")
        return self.emit(relax.op.dequantize(value.data, scale, zero_point, axis=0, out_dtype="float32"))

    def to_float(self, value: IntegerSum) -> relax.Var:
        """Emit the float values of a scaled sum."""
        scaled = self.emit(relax.op.multiply(self._as_float(value), _per_channel(value.scale, value)))
        return self._reshaped(self._clip(scaled, value.low, value.high), value)

    def requantize(self, value: IntegerSum, scale: float, zero_point: int) -> Quantized:
        """Emit the rounding of a scaled sum to uint8.

        The bounds are applied as the whole numbers they are rounded to, which gives the same as clipping before.
        """
        step = np.float32(scale)
        with np.errstate(over="ignore"):
            factor = (value.scale / step).astype(np.float32)
            low, high = (float(np.rint(np.float32(bound) / step)) for bound in (value.low, value.high))
        scaled = self.emit(relax.op.multiply(self._as_float(value), _per_channel(factor, value)))
        bounded = self._clip(scaled, low if low > -zero_point else -np.inf, high if high < 255 - zero_point else np.inf)
        data = self._reshaped(self.quantize(bounded, 1.0, zero_point), value)
        return Quantized(data, float(step), zero_point)

    def quantize(self, value: relax.Expr, scale: float, zero_point: int) -> relax.Var:
        """Emit the rounding of float values to uint8."""
        arguments = relax.const(scale, "float32"), relax.const(zero_point, "uint8")
        return self.emit(relax.op.quantize(value, *arguments, axis=0, out_dtype="uint8"))

    def activation(self, expr: relax.Expr, scale: float, zero_point: int) -> Quantized | None:
        """Give a quantised tensor of the old function as uint8 in the new one."""
        if isinstance(expr, relax.Var) and expr in self.integers:
            return self.integers[expr]
        dtype = str(getattr(expr.ty, "dtype", ""))
        if not isinstance(expr, relax.Var) or dtype not in ACTIVATION_TYPES:
            return None
        data = self.visit_expr(expr)
        if dtype == "uint8":
            return Quantized(data, scale, zero_point)
        raised = self.emit(relax.op.add(self.emit(relax.op.astype(data, "int16")), relax.const(SIGNED_OFFSET, "int16")))
        value = Quantized(self.emit(relax.op.astype(raised, "uint8")), scale, zero_point + SIGNED_OFFSET)
        self.integers[expr] = value
        return value

    def constant_values(self, expr: relax.Expr) -> np.ndarray | None:
        """Give the values of a constant operand of the old function."""
        if isinstance(expr, relax.Var):
            if expr in self.constants:
                return self.constants[expr].floats
            return self.arrays.get(expr)
        return constant(expr)

    def _reshaped(self, data: relax.Var, value: IntegerSum) -> relax.Var:
        """Turn images that stand for a product of matrices or for volumes into what the model has."""
        if value.planes is not None:
            images = [int(extent) for extent in data.ty.shape]
            apart = self.emit(relax.op.reshape(data, (*value.planes, *images[1:])))
            return self.emit(relax.op.permute_dims(apart, [0, 2, 1, 3, 4]))
        if value.matrix_shape is None:
            return data
        *rows, columns = value.matrix_shape
        count = prod(rows)
        if isinstance(count, int) and count > 1:
            data = self.emit(relax.op.permute_dims(self.emit(relax.op.reshape(data, (columns, count))), [1, 0]))
        return self.emit(relax.op.reshape(data, value.matrix_shape))

    def _shifted(self, value: IntegerSum) -> relax.Expr:
        if not value.shift.any():
            return value.total
        shift = relax.const(value.shift.astype(np.int32).reshape(value.per_channel))
        return self.emit(relax.op.add(value.total, shift))

    def _as_float(self, value: IntegerSum) -> relax.Var:
        return self.emit(relax.op.astype(self._shifted(value), "float32"))

    def _clip(self, value: relax.Var, low: float, high: float) -> relax.Var:
        if low == -np.inf and high == np.inf:
            return value
        if low == 0 and high == np.inf:
            return self.emit(relax.op.nn.relu(value))
        limits = np.finfo(np.float32)
        return self.emit(relax.op.clip(value, max(low, float(limits.min)), min(high, float(limits.max))))


def _to_signed(rewriter: IntegerMutator, data: relax.Expr) -> relax.Expr:
    lowered = rewriter.emit(
        relax.op.subtract(rewriter.emit(relax.op.astype(data, "int16")), relax.const(SIGNED_OFFSET, "int16"))
    )
    return relax.op.astype(lowered, "int8")


def _per_channel(factors: np.ndarray, value: IntegerSum) -> relax.Expr:
    """Make the operand that multiplies the channels of a sum; one number if they are all the same."""
    if (factors == factors[0]).all():
        return relax.const(factors[0], "float32")
    return relax.const(np.ascontiguousarray(factors, np.float32).reshape(value.per_channel))
