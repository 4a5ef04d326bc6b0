"""Normalisation by mean and variance that is written out becomes one operator, which is one kernel.

before: ``m = mean(x, -1); d = x - m; y = d / sqrt(mean(d * d, -1) + 1e-5) * w + b``, reductions that keep their axes
after:  ``y = nn.layer_norm(x, w, b, -1, 1e-5)``

Exporters without the operator have it in several forms: the square as a power or the variance as an operator, the root
as a divisor, or inverted, multiplied by the weight and then with ``x`` and with the mean apart. Over the channels of an
image it is a layer norm of axis 1, over the pixels of each channel an instance norm, over both a norm of one group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from tvm_ext.passes.bindings import calls
from tvm_ext.passes.norm_mutator import NormMutator
from tvm_ext.relax_utils import constant, open_shape, rewriting_pass, same_extents, scalar


def layer_norms() -> tvm.transform.Pass:
    """Make the pass, for float32 and known extents of the axes that weights have."""
    return rewriting_pass("tvm_ext.LayerNorms", _Rewriter)


@dataclass(frozen=True)
class _Norm:
    """A normalisation without weights: of what, over which axes, and epsilon."""

    source: relax.Expr
    axes: tuple[int, ...]
    epsilon: float


@mutator
class _Rewriter(NormMutator):
    def operator(self, user: relax.Var, value: Any) -> relax.Call | None:
        """Find a normalisation, with weights or without, and with a bias or without."""
        if calls(value, "relax.add"):
            for inner, bias in (value.args, reversed(value.args)):
                shifted = self._weighted(self.bindings.step(inner))
                made = None if shifted is None else self._of_axes(user, value, *shifted, [bias])
                made = self._from_parts(user, value, inner, bias) if made is None else made
                if made is not None:
                    return made
            return None
        found = self._weighted(value)
        return None if found is None else self._of_axes(user, value, *found, [])

    def _from_parts(self, user: relax.Var, value: relax.Call, inner: Any, rest: Any) -> relax.Call | None:
        """Find ``x * s + (bias - mean(x) * s)``, where ``s`` is the inverse root times a weight."""
        product, difference = self.bindings.step(inner), self.bindings.step(rest)
        if not calls(product, "relax.multiply") or not calls(difference, "relax.subtract"):
            return None
        taken = self.bindings.step(difference.args[1])
        if not calls(taken, "relax.multiply"):
            return None
        for source, scale in (product.args, reversed(product.args)):
            for mean, same in (taken.args, reversed(taken.args)):
                axes = self._mean_of(mean, source)
                if axes is None or not same.same_as(scale):
                    continue
                above, below = self._factors(scale, self.bindings.values.get(scale))
                found = self._normalised(source, axes, above, below)
                if found is not None:
                    norm, weights = found
                    return self._of_axes(user, value, norm, weights, [difference.args[0]])
        return None

    def _weighted(self, value: Any) -> tuple[_Norm, list[Any]] | None:
        """Find a product of what is left of ``x`` without its mean, the inverse root, and weights in any order."""
        if not calls(value, "relax.multiply") and not calls(value, "relax.divide"):
            return None
        above, below = self._factors(None, value)
        for place, factor in enumerate(above):
            centred = self._centred(factor)
            if centred is not None:
                found = self._normalised(*centred, above[:place] + above[place + 1 :], below)
                if found is not None:
                    return found
        return None

    def _factors(self, expr: Any, value: Any) -> tuple[list[Any], list[Any]]:
        """List the factors of a product, and what it is divided by; inner products that nothing else uses are opened.

        ``expr`` is what stands for ``value``, which may be used elsewhere, too.
        """
        if calls(value, "relax.multiply"):
            parts = [self._factors(arg, self.bindings.step(arg)) for arg in value.args]
            return parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]
        if calls(value, "relax.divide"):
            dividend = self._factors(value.args[0], self.bindings.step(value.args[0]))
            divisor = self._factors(value.args[1], self.bindings.step(value.args[1]))
            return dividend[0] + divisor[1], dividend[1] + divisor[0]
        return [expr], []

    def _normalised(
        self, source: relax.Expr, axes: tuple[int, ...], above: list[Any], below: list[Any]
    ) -> tuple[_Norm, list[Any]] | None:
        """Find the root of the variance among the factors of a tensor without its mean; the others are weights."""
        roots = [(factor, "relax.rsqrt") for factor in above] + [(factor, "relax.sqrt") for factor in below]
        for factor, operator in roots:
            epsilon = self._epsilon(factor, operator, source, axes)
            if epsilon is None:
                continue
            weights, divisors = ([other for other in part if not other.same_as(factor)] for part in (above, below))
            is_one = len(weights) + len(divisors) + 1 == len(above) + len(below)
            if is_one and all(scalar(divisor) == 1 for divisor in divisors):
                return _Norm(source, axes, epsilon), weights
        return None

    def _epsilon(self, expr: Any, operator: str, source: relax.Expr, axes: tuple[int, ...]) -> float | None:
        """Give what is added to the variance of a tensor below a root; None where it is no such root."""
        value: Any = self.bindings.step(expr)
        inner: Any = self.bindings.step(value.args[0]) if calls(value, operator) else None
        if not calls(inner, "relax.add"):
            return None
        for variance, epsilon in (inner.args, reversed(inner.args)):
            number = scalar(epsilon)
            if number is not None and self._variance_of(variance, source) == axes:
                return float(number)
        return None

    def _variance_of(self, expr: Any, source: relax.Expr) -> tuple[int, ...] | None:
        """Give the axes over which an expression is the variance of a tensor."""
        value: Any = self.bindings.step(expr)
        if calls(value, "relax.variance") and value.args[0].same_as(source):
            return _axes(value)
        axes = _axes(value) if calls(value, "relax.mean") else None
        square: Any = None if axes is None else self.bindings.step(value.args[0])
        if calls(square, "relax.power") and scalar(square.args[1]) == 2:
            factors = [square.args[0]]
        elif calls(square, "relax.multiply"):
            factors = list(square.args)  # the same, or the same difference computed twice
        else:
            return None
        centred = [self._centred(factor) for factor in factors]
        same = all(found is not None and found[0].same_as(source) and found[1] == axes for found in centred)
        return axes if same else None

    def _centred(self, expr: Any) -> tuple[relax.Expr, tuple[int, ...]] | None:
        """Give the tensor that an expression is without its mean, and the axes of the mean."""
        value: Any = self.bindings.values.get(expr) if isinstance(expr, relax.Var) else None
        if not calls(value, "relax.subtract"):
            return None
        axes = self._mean_of(value.args[1], value.args[0])
        return None if axes is None else (value.args[0], axes)

    def _mean_of(self, expr: Any, source: relax.Expr) -> tuple[int, ...] | None:
        """Give the axes over which an expression is the mean of a tensor."""
        value: Any = self.bindings.values.get(expr) if isinstance(expr, relax.Var) else None
        return _axes(value) if calls(value, "relax.mean") and value.args[0].same_as(source) else None

    def _of_axes(
        self, user: relax.Var, value: relax.Call, norm: _Norm, weights: list[Any], biases: list[Any]
    ) -> relax.Call | None:
        """Make the operator; weights and biases are constants of one axis."""
        x, axes, op = norm.source, list(norm.axes), relax.op.nn
        shape = open_shape(x)
        if shape is None or str(x.ty.dtype) != "float32" or not self.bindings.is_visible(x, user):
            return None
        if not same_extents(shape, open_shape(value) or ()):
            return None
        last, is_known = len(shape) - 1, all(isinstance(extent, int) for extent in shape)
        forms: list[tuple[bool, int, Callable[..., relax.Call]]] = [
            (axes == [last], last, lambda *given: op.layer_norm(*given, axes, norm.epsilon)),
            # Of open extents no rule takes a kernel of all that, but each of its reductions.
            (axes == [1] and is_known, 1, lambda *given: op.layer_norm(*given, axes, norm.epsilon)),
            (axes == list(range(2, last + 1)), 1, lambda *given: op.instance_norm(*given, 1, axes, norm.epsilon)),
            (axes == list(range(1, last + 1)), 1, lambda *given: op.group_norm(*given, 1, 1, axes[1:], norm.epsilon)),
        ]
        for applies, axis, make in forms:
            if not applies or not isinstance(shape[axis], int):
                continue
            factors = [_along(part, last + 1, axis, shape[axis]) for part in (np.float32(1), *weights)]
            terms = [_along(part, last + 1, axis, shape[axis]) for part in (np.float32(0), *biases)]
            if any(numbers is None for numbers in (*factors, *terms)):
                continue
            weight, bias = np.prod(factors, axis=0), np.sum(terms, axis=0)  # type: ignore[arg-type]
            return make(x, relax.const(weight), relax.const(bias))
        return None


def _axes(reduction: Any) -> tuple[int, ...] | None:
    """Give the axes of a reduction that keeps them; None where it does not."""
    rank = int(reduction.args[0].ty.ndim)
    if not reduction.attrs.keepdims or reduction.attrs.axis is None:
        return None
    return tuple(sorted(int(axis) % rank for axis in reduction.attrs.axis))


def _along(part: Any, rank: int, axis: int, extent: int) -> np.ndarray | None:
    """Give the numbers of a constant that differs along one axis of a tensor only."""
    numbers = part if isinstance(part, np.float32) else constant(part)
    if numbers is None or numbers.ndim > rank or str(numbers.dtype) != "float32":
        return None
    aligned = [1] * (rank - numbers.ndim) + list(numbers.shape)
    if aligned[axis] not in (1, extent) or numbers.size != aligned[axis]:
        return None
    return np.broadcast_to(numbers.reshape(-1), (extent,))
