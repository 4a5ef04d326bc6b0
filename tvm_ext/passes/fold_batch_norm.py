"""Batch normalisation with known statistics becomes a scale and a shift, folded into the convolution before it.

before: ``y = batch_norm(conv2d(x, w) [+ b], gamma, beta, mean, variance)[0]``
after:  ``y = conv2d(x, w * s) + (b * s + t)`` with ``s = gamma / sqrt(variance + epsilon)``, ``t = beta - mean * s``

Without a convolution (or when others use its result too): ``y = x * s + t``. The new constants are computed in float64.
Statistics that are not constants give the same arithmetic as Relax operators. A batch normalisation in training mode
keeps the statistics of its batch, and is left alone. (TVM's ``FoldBatchnormToConv2D`` knows float32, two dimensions and
no bias only, and ``DecomposeOpsForInference`` takes training mode for inference.)
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.graph.origins import emit_from
from tvm_ext.relax_utils import constant, rewriting_pass, static_shape

# Convolutions whose weight has the output channels first, by operator name and layout of the weight.
OUTPUT_CHANNELS_FIRST = {
    ("relax.nn.conv1d", "OIW"),
    ("relax.nn.conv2d", "OIHW"),
    ("relax.nn.conv3d", "OIDHW"),
}


def fold_batch_norm() -> tvm.transform.Pass:
    """Make the pass."""
    return rewriting_pass("tvm_ext.FoldBatchNorm", _Rewriter)


@mutator
class _Rewriter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.uses: Counter[relax.Var] = Counter()
        self.definitions: dict[relax.Var, relax.Expr] = {}

    def begin(self, function: relax.Function) -> bool:
        """Note what every variable of a function is bound to and how often it is used."""
        self.uses.clear()
        self.definitions.clear()

        def visit(node: relax.Expr) -> None:
            if isinstance(node, relax.Call):
                self.uses.update(arg for arg in node.args if isinstance(arg, relax.Var))
            elif isinstance(node, relax.Tuple):
                self.uses.update(field for field in node.fields if isinstance(field, relax.Var))
            elif isinstance(node, relax.SeqExpr):
                if isinstance(node.body, relax.Var):
                    self.uses[node.body] += 1
                bindings = [binding for block in node.blocks for binding in block.bindings]
                self.definitions |= {b.var: b.value for b in bindings if isinstance(b, relax.VarBinding)}

        relax.analysis.post_order_visit(function, visit)
        return True

    @np.errstate(all="ignore")  # a negative variance gives NaN, as it does while a model runs
    def visit_tuple_getitem_(self, op: relax.TupleGetItem) -> relax.Expr:
        """Replace the result of a batch normalisation."""
        normalise = self._definition(op.tuple_value, "relax.nn.batch_norm")
        if op.index != 0 or normalise is None or normalise.attrs.training:
            return super().visit_tuple_getitem_(op)
        data, *statistics = normalise.args
        shape = data.ty.shape
        if not isinstance(shape, relax.ShapeExpr):
            return super().visit_tuple_getitem_(op)
        axis = int(normalise.attrs.axis) % len(shape)
        broadcast = [1] * len(shape)
        broadcast[axis] = -1
        values = [constant(arg) for arg in statistics]
        if any(value is None for value in values):
            if str(op.ty.dtype) != str(data.ty.dtype):
                return super().visit_tuple_getitem_(op)
            return self._arithmetic(normalise, broadcast)
        gamma, beta, mean, variance = (value.astype("float64") for value in values)  # type: ignore[union-attr]
        scale = 1.0 / np.sqrt(variance + float(normalise.attrs.epsilon))
        scale = gamma * scale if normalise.attrs.scale else scale
        shift = (beta if normalise.attrs.center else 0.0) - mean * scale
        dtype = str(data.ty.dtype)
        folded = self._fold(data, scale, shift, axis, broadcast)
        if folded is not None:
            scaled, shift = folded
        else:
            factor = relax.const(scale.reshape(broadcast), dtype)
            scaled = self.builder_.emit(relax.op.multiply(self.visit_expr(data), factor))
        result = relax.op.add(scaled, relax.const(shift.reshape(broadcast), dtype))
        # TVM gives the normalisation of a float16 tensor the type float32.
        return result if str(op.ty.dtype) == dtype else relax.op.astype(self.builder_.emit(result), op.ty.dtype)

    def _arithmetic(self, normalise: relax.Call, broadcast: list[int]) -> relax.Expr:
        """Write a batch normalisation with computed statistics as scale and shift."""
        emit = self.builder_.emit
        data, gamma, beta, mean, variance = (self.visit_expr(arg) for arg in normalise.args)
        channels = normalise.args[1].ty.shape[0]
        shape = [channels if extent == -1 else extent for extent in broadcast]
        epsilon = relax.const(float(normalise.attrs.epsilon), str(variance.ty.dtype))
        scale = emit(relax.op.rsqrt(emit(relax.op.add(variance, epsilon))))
        if normalise.attrs.scale:
            scale = emit(relax.op.multiply(gamma, scale))
        shift = emit(relax.op.negative(emit(relax.op.multiply(mean, scale))))
        if normalise.attrs.center:
            shift = emit(relax.op.add(beta, shift))
        scaled = emit(relax.op.multiply(data, emit(relax.op.reshape(scale, shape))))
        return relax.op.add(scaled, emit(relax.op.reshape(shift, shape)))

    def _definition(self, expr: relax.Expr, operator: str) -> relax.Call | None:
        """Find the call of ``operator`` that ``expr`` is bound to."""
        value = self.definitions.get(expr) if isinstance(expr, relax.Var) else expr
        if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) and value.op.name == operator:
            return value
        return None

    def _bias(self, expr: relax.Expr) -> np.ndarray | None:
        """Give a constant, which importers bring into the shape of channels."""
        reshape = self._definition(expr, "relax.reshape")
        bias = constant(expr if reshape is None else reshape.args[0])
        shape = static_shape(expr)
        return None if bias is None or shape is None else bias.reshape(shape)

    def _fold(
        self, data: relax.Expr, scale: np.ndarray, shift: np.ndarray, axis: int, broadcast: list[int]
    ) -> tuple[relax.Var, np.ndarray] | None:
        """Fold the scale into the convolution that makes ``data``; gives the new convolution and the new shift."""
        if axis != 1 or self.uses[data] != 1:
            return None
        addition = self._definition(data, "relax.add")
        if addition is not None:
            bias = self._bias(addition.args[1])
            if bias is None or bias.size != scale.size or self.uses[addition.args[0]] != 1:
                return None
            if list(bias.shape) != [scale.size if extent == -1 else extent for extent in broadcast][-bias.ndim :]:
                return None
            shift = shift + bias.astype("float64").reshape(-1) * scale
            data = addition.args[0]
        for operator, layout in OUTPUT_CHANNELS_FIRST:
            convolution = self._definition(data, operator)
            if convolution is None or convolution.attrs.kernel_layout != layout:
                continue
            weight = constant(convolution.args[1])
            if weight is None:
                return None
            scaled = weight.astype("float64") * scale.reshape(-1, *[1] * (weight.ndim - 1))
            call = relax.Call(
                convolution.op,
                [self.visit_expr(convolution.args[0]), relax.const(scaled, str(weight.dtype))],
                convolution.attrs,
            )
            return emit_from(self.builder_, call, data.span, data.name), shift  # people find it by its name
        return None
