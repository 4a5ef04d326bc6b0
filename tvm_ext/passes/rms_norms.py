"""Normalisation by the root mean square that is written out becomes one operator, which is one kernel.

before: ``v = mean(x * x, -1, keepdims=True); y = x * rsqrt(v + 1e-5) * w``
after:  ``y = nn.rms_norm(x, w, -1, 1e-5)``

Frameworks have it in several forms: the square as a power, the root as a divisor, the weight in front, or behind a
conversion; of 16-bit numbers between conversions. A mean is fused with what follows from it, and not with the square,
which would be a tensor in memory.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tvm_ext.passes.bindings import calls
from tvm_ext.passes.norm_mutator import NormMutator
from tvm_ext.passes.single_precision import HALVES
from tvm_ext.relax_utils import constant, open_shape, rewriting_pass, scalar, static_shape


def rms_norms() -> tvm.transform.Pass:
    """Make the pass, for rows of float32 of a known length."""
    return rewriting_pass("tvm_ext.RmsNorms", _Rewriter)


@mutator
class _Rewriter(NormMutator):
    def operator(self, user: relax.Var, value: Any) -> relax.Call | None:
        """Find a normalisation of numbers of 16 bits, or of float32."""
        made = self._of_halves(user, value)
        return self._written_out(user, value) if made is None else made

    def _of_halves(self, user: relax.Var, value: Any) -> relax.Call | None:
        """Find a normalisation of 16-bit numbers between conversions, which the operator makes itself."""
        if not calls(value, "relax.astype") or str(value.ty.dtype) not in HALVES:
            return None
        made = self._written_out(user, self.bindings.step(value.args[0]))
        if made is None:
            return None
        x, weight = (self._narrow(operand, str(value.ty.dtype)) for operand in made.args)
        if x is None or weight is None or not self._visible(x, user) or not self._visible(weight, user):
            return None
        return relax.op.nn.rms_norm(x, weight, [-1], float(made.attrs.epsilon))

    def _narrow(self, expr: Any, dtype: str) -> Any:
        """Give what float32 numbers were before they became that, or are without loss."""
        numbers = constant(expr)
        if numbers is None:
            value = self.bindings.values.get(expr)
            is_wider = calls(value, "relax.astype") and str(value.args[0].ty.dtype) == dtype  # type: ignore[union-attr]
            return value.args[0] if is_wider else None  # type: ignore[union-attr]
        short = numbers.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        return relax.const(short, dtype) if np.array_equal(short.astype("float32"), numbers) else None

    def _written_out(self, user: relax.Var, value: Any) -> relax.Call | None:
        made = self._weighted(user, value)
        return self._normalised(user, value, None) if made is None else made

    def _weighted(self, user: relax.Var, value: Any) -> relax.Call | None:
        """Find the product of a normalised tensor and weights of its last axis."""
        if not calls(value, "relax.multiply"):
            return None
        for normal, weight in (value.args, reversed(value.args)):
            shape, length = open_shape(value), static_shape(weight)
            if shape and length == (shape[-1],) and self._visible(weight, user):
                made = self._normalised(user, self.bindings.step(normal), weight)
                if made is not None:
                    return made
        return None

    def _normalised(self, user: relax.Var, value: Any, weight: Any) -> relax.Call | None:
        """Find ``x * rsqrt(mean(x * x) + epsilon)``, or the same with a quotient."""
        if calls(value, "relax.divide"):
            choices = [(value.args[0], self._root(value.args[1], "relax.sqrt"))]
        elif calls(value, "relax.multiply"):
            choices = [(x, self._inverse_root(other)) for x, other in (value.args, reversed(value.args))]
        else:
            return None
        for x, radicand in choices:
            shape = open_shape(x)
            if radicand is None or not shape or not isinstance(shape[-1], int) or str(x.ty.dtype) != "float32":
                continue
            if not self._visible(x, user) or not self._is_mean_of_squares(radicand[0], x):
                continue
            ones = relax.const(np.ones(shape[-1], "float32"))
            return relax.op.nn.rms_norm(x, ones if weight is None else weight, [-1], radicand[1])
        return None

    def _inverse_root(self, expr: Any) -> tuple[Any, float] | None:
        value = self.bindings.step(expr)
        if calls(value, "relax.divide") and scalar(value.args[0]) == 1:
            return self._root(value.args[1], "relax.sqrt")
        return self._root(expr, "relax.rsqrt")

    def _root(self, expr: Any, operator: str) -> tuple[Any, float] | None:
        """Give what epsilon is added to below a root, and epsilon."""
        value = self.bindings.step(expr)
        inner = self.bindings.step(value.args[0]) if calls(value, operator) else None
        if not calls(inner, "relax.add"):
            return None
        for mean, epsilon in (inner.args, reversed(inner.args)):  # type: ignore[union-attr]
            number = scalar(epsilon)
            if number is not None:
                return mean, float(number)
        return None

    def _is_mean_of_squares(self, expr: Any, x: Any) -> bool:
        mean = self.bindings.step(expr)
        if not calls(mean, "relax.mean") or not mean.attrs.keepdims:
            return False
        if [int(axis) % int(x.ty.ndim) for axis in mean.attrs.axis or ()] != [int(x.ty.ndim) - 1]:
            return False
        square = self.bindings.step(mean.args[0])
        if calls(square, "relax.power"):
            return square.args[0].same_as(x) and scalar(square.args[1]) == 2
        return calls(square, "relax.multiply") and all(factor.same_as(x) for factor in square.args)

    def _visible(self, expr: Any, user: relax.Var) -> bool:
        return self.bindings.is_visible(expr, user)
