"""Activations of recurrent layers as TIR expressions, in the form that vectorises.

LLVM calls ``expf`` once per lane for a vector ``exp``; in a recurrent step those calls cost as much as the matrix
product. In float32 the exponential is therefore written out as a polynomial (Cephes ``expf``: Cody-Waite reduction,
degree 6, within 2 ulp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

_LOG2_E = 1.44269504088896341
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_POLYNOMIAL = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
# Beyond these float32 has no normal result; sigmoid and tanh have long saturated.
_LOWEST, _HIGHEST = -87.0, 88.0


def _literal(value: float, like: Any) -> Any:
    return tirx.const(value, str(like.ty.dtype))


def exponential(x: Any) -> Any:
    """Exponential function; in float32 clamped to the normal range, NaN stays NaN."""
    if str(x.ty.dtype) != "float32":
        return T.exp(x)
    bounded, power, rest = (tirx.Var(name, "float32") for name in ("bounded", "power", "rest"))
    series = _literal(_POLYNOMIAL[0], x)
    for coefficient in _POLYNOMIAL[1:]:
        series = series * rest + _literal(coefficient, x)
    series = series * rest * rest + rest + _literal(1.0, x)
    value = series * T.reinterpret("float32", (T.cast(power, "int32") + T.int32(127)) << T.int32(23))
    value = tirx.Let(rest, bounded - power * _literal(_LN2_HIGH, x) - power * _literal(_LN2_LOW, x), value)
    value = tirx.Let(power, T.floor(bounded * _literal(_LOG2_E, x) + _literal(0.5, x)), value)
    # The order of operands matters: a comparison with NaN is false and then keeps the second one.
    return tirx.Let(bounded, T.min(_literal(_HIGHEST, x), T.max(_literal(_LOWEST, x), x)), value)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return _literal(1.0, x) / (_literal(1.0, x) + exponential(-x))


def tanh(x: Any) -> Any:
    """Hyperbolic tangent, as 2 sigmoid(2 x) - 1: absolute error below 2e-7."""
    return _literal(2.0, x) * sigmoid(_literal(2.0, x) * x) - _literal(1.0, x)


def relu(x: Any) -> Any:
    """max(x, 0)."""
    return T.max(x, _literal(0.0, x))


def softsign(x: Any) -> Any:
    """Quotient of x and 1 + abs(x)."""
    return x / (_literal(1.0, x) + T.abs(x))


def softplus(x: Any) -> Any:
    """log(1 + exp(x)), written so that it does not overflow."""
    return T.max(x, _literal(0.0, x)) + T.log(_literal(1.0, x) + T.exp(-T.abs(x)))


def affine(x: Any, alpha: float, beta: float) -> Any:
    """Alpha x + beta."""
    return _literal(alpha, x) * x + _literal(beta, x)


def leaky_relu(x: Any, alpha: float, beta: float) -> Any:
    """Give x where x is positive, alpha x elsewhere."""
    return T.Select(x >= _literal(0.0, x), x, _literal(alpha, x) * x)


def thresholded_relu(x: Any, alpha: float, beta: float) -> Any:
    """Give x where x exceeds alpha, 0 elsewhere."""
    return T.Select(x > _literal(alpha, x), x, _literal(0.0, x))


def scaled_tanh(x: Any, alpha: float, beta: float) -> Any:
    """Alpha tanh(beta x)."""
    return _literal(alpha, x) * tanh(_literal(beta, x) * x)


def hard_sigmoid(x: Any, alpha: float, beta: float) -> Any:
    """Alpha x + beta, clipped to 0 and 1."""
    return T.min(T.max(affine(x, alpha, beta), _literal(0.0, x)), _literal(1.0, x))


def elu(x: Any, alpha: float, beta: float) -> Any:
    """Give x where x is positive, alpha (exp(x) - 1) elsewhere."""
    return T.Select(
        x >= _literal(0.0, x),
        x,
        _literal(alpha, x) * (exponential(T.min(x, _literal(0.0, x))) - _literal(1.0, x)),
    )


@dataclass(frozen=True)
class Activation:
    """An activation with its parameters; call it on a TIR expression."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0
    function: Callable[..., Any] = field(default=tanh, compare=False, repr=False)

    def __call__(self, x: Any) -> Any:
        """Apply to a TIR expression."""
        return self.function(x, self.alpha, self.beta) if _ROWS[self.name].defaults else self.function(x)


@dataclass(frozen=True)
class _Row:
    function: Callable[..., Any]
    defaults: tuple[float, ...]  # of alpha, then of beta


# Names in lower case (the operator's names ignore case); defaults are those of the ONNX operator of the same name.
_ROWS = {
    "affine": _Row(affine, (1.0, 0.0)),
    "elu": _Row(elu, (1.0,)),
    "hardsigmoid": _Row(hard_sigmoid, (0.2, 0.5)),
    "leakyrelu": _Row(leaky_relu, (0.01,)),
    "relu": _Row(relu, ()),
    "scaledtanh": _Row(scaled_tanh, (1.0, 1.0)),
    "sigmoid": _Row(sigmoid, ()),
    "softplus": _Row(softplus, ()),
    "softsign": _Row(softsign, ()),
    "tanh": _Row(tanh, ()),
    "thresholdedrelu": _Row(thresholded_relu, (1.0,)),
}
NAMES = tuple(sorted(_ROWS))


def activations(names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]) -> list[Activation]:
    """Pair activation names with their parameters.

    ``alphas`` and ``betas`` hold values only for the activations that take them, in order; what is missing gets its
    default.

    Raises
    ------
    KeyError
        With the name, if there is no such activation; :data:`NAMES` lists them.
    """
    alpha_values, beta_values = iter(alphas), iter(betas)
    found = []
    for name in names:
        row = _ROWS[name.lower()]
        alpha = next(alpha_values, row.defaults[0]) if row.defaults else 0.0
        beta = next(beta_values, row.defaults[1]) if len(row.defaults) > 1 else 0.0
        found.append(Activation(name.lower(), alpha, beta, row.function))
    return found
