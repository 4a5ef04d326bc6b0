"""What the lanes of a blocked tensor hold that belong to no channel, computed through the arithmetic of every operator.

A tensor of 30 channels in blocks of 16 has 2 lanes that stand for no channel. Convolutions read them and multiply them
with weights of zero, which is only harmless for finite numbers; divisions, logarithms and overflow make others. So the
bounds of what they hold are part of the tensor's description: ``exp`` of a lane that holds 0 holds 1, ``sqrt`` of one
that holds -1 holds NaN, and where no bounds can be told (:data:`ANYTHING`) the lanes are set to zero before anybody
reads them. Bounds are plain numbers; nothing here knows of TVM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from math import erf, pi, sqrt
from typing import Literal

import numpy as np

LARGEST = 1024.0
"""The largest magnitude of floats in unused lanes: far from what overflows, also squared and in half precision."""

FLOATS = ("float16", "bfloat16", "float32", "float64")
"""Types of floats whose lanes are computed with."""

SMALLEST = 1e-4
"""Computed bounds nearer to zero than this one are moved away from it, or to it: such numbers may vanish in half
precision."""

DENORMAL = 1e-30
"""Known numbers nearer to zero than this one may be flushed to zero."""

Rounding = Literal["exact", "rounded", "approximate"]
"""How an operator computes: exactly; rounding its result, zero from zeros; or by an approximation near the result."""


@dataclass(frozen=True)
class Lanes:
    """Bounds of every value in unused lanes.

    Attributes
    ----------
    low, high : float
        Finite; no value is below or above, and none is NaN.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not -float("inf") < self.low <= self.high < float("inf"):
            raise ValueError(f"no bounds of finite numbers: {self.low} to {self.high}")

    @property
    def has_zero(self) -> bool:
        """Whether a lane may hold zero."""
        return self.low <= 0.0 <= self.high

    def with_zero(self) -> Lanes:
        """Give bounds that hold zero, too."""
        return Lanes(min(self.low, 0.0), max(self.high, 0.0))


ZERO = Lanes(0.0, 0.0)
ANYTHING = None
"""In place of bounds: NaN, infinities, any number."""


def of_values(values: np.ndarray, dtype: str) -> Lanes | None:
    """Give the bounds of known values, as they stand in a tensor of type ``dtype``."""
    return _bounds(values.astype("float64").ravel(), dtype, "exact")


def unary(operator: str, lanes: Lanes | None, dtype: str, parameters: Mapping[str, float]) -> Lanes | None:
    """Give the bounds of an operator of one tensor.

    Parameters
    ----------
    operator : str
        A key of :data:`UNARY`.
    lanes : Lanes or None
        Of its operand.
    dtype : str
        Element type of its result.
    parameters : mapping of str to float
        Attributes and further arguments of the call, by name.
    """
    if lanes is None:
        return ANYTHING
    row = UNARY[operator]
    points = [lanes.low, lanes.high, *(point for point in row.turns if lanes.low < point < lanes.high)]
    with np.errstate(all="ignore"):
        values = np.asarray(row.function(np.array(points), parameters), "float64")
    return _bounds(values, dtype, row.rounding)


def binary(operator: str, left: Lanes | None, right: Lanes | None, dtype: str) -> Lanes | None:
    """Give the bounds of an operator of two tensors, a key of :data:`BINARY`; see :func:`unary`."""
    if left is None or right is None:
        return ANYTHING
    if operator == "relax.divide" and right.has_zero:
        return ANYTHING
    if operator == "relax.power" and left.low <= 0.0:
        return ANYTHING
    corners = np.array(list(product((left.low, left.high), (right.low, right.high))))
    with np.errstate(all="ignore"):
        values = BINARY[operator](corners[:, 0], corners[:, 1])
    return _bounds(values, dtype, _ROUNDING.get(operator, "rounded"))


def compared() -> Lanes:
    """Give the bounds of a comparison, of whatever: a truth value."""
    return Lanes(0.0, 1.0)


def either(first: Lanes | None, second: Lanes | None) -> Lanes | None:
    """Give the bounds of a choice between two."""
    if first is None or second is None:
        return ANYTHING
    return Lanes(min(first.low, second.low), max(first.high, second.high))


def cast(lanes: Lanes | None, dtype: str) -> Lanes | None:
    """Give the bounds after a conversion to ``dtype``; one to integers cuts off the fraction."""
    return None if lanes is None else _bounds(np.array([lanes.low, lanes.high]), dtype, "rounded")


def quantize(lanes: Lanes | None, scale: float, zero_point: float, dtype: str) -> Lanes | None:
    """Give the bounds of ``saturate(round(x / scale) + zero_point)``; saturation bounds everything."""
    limits = _limits(dtype)
    if lanes is None or limits is None or not scale > 0:
        return limits
    steps = np.array([np.floor(lanes.low / scale) - 1, np.ceil(lanes.high / scale) + 1]) + zero_point
    return of_values(np.clip(steps, limits.low, limits.high), dtype)


def dequantize(lanes: Lanes | None, scale: float, zero_point: float, dtype: str) -> Lanes | None:
    """Give the bounds of ``(q - zero_point) * scale``."""
    if lanes is None:
        return ANYTHING
    return _bounds((np.array([lanes.low, lanes.high]) - zero_point) * scale, dtype, "rounded")


def average(lanes: Lanes | None, dtype: str) -> Lanes | None:
    """Give the bounds of the mean of lanes, some of which may have been left out or replaced by zero."""
    if lanes is None or not is_float(dtype):
        return ANYTHING
    return _bounds(np.array([lanes.with_zero().low, lanes.with_zero().high]), dtype, "rounded")


def total(lanes: Lanes | None, count: int, dtype: str) -> Lanes | None:
    """Give the bounds of the sum of ``count`` lanes."""
    if lanes is None:
        return ANYTHING
    return _bounds(np.array([lanes.low * count, lanes.high * count]), dtype, "rounded")


def is_float(dtype: str) -> bool:
    """Whether values of a type can be NaN."""
    return "float" in dtype


def _limits(dtype: str) -> Lanes | None:
    """Give the bounds of a type of integers, or of truth values; None for any other."""
    name = dtype.rstrip("0123456789")
    if dtype == "bool":
        return Lanes(0.0, 1.0)
    if name not in ("int", "uint"):
        return ANYTHING
    bits = int(dtype.removeprefix(name))
    return Lanes(-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1) if name == "int" else Lanes(0.0, 2.0**bits - 1)


def _bounds(values: np.ndarray, dtype: str, rounding: Rounding) -> Lanes | None:
    """Enclose values that were computed in double precision and that the tensor's own type rounds."""
    if not values.size or not np.isfinite(values).all():
        return ANYTHING
    low, high = (
        _outward(value, direction, rounding) for value, direction in ((values.min(), -1.0), (values.max(), 1.0))
    )
    if dtype in FLOATS:
        return Lanes(low, high) if max(-low, high) <= LARGEST else ANYTHING
    low, high, limits = float(np.floor(low)), float(np.ceil(high)), _limits(dtype)
    # Integers beyond the limits wrap around; floats of 8 bits and less have limits that nobody should rely on.
    return Lanes(low, high) if limits is not None and limits.low <= low and high <= limits.high else limits


def _outward(value: float, direction: float, rounding: Rounding) -> float:
    """Move a bound by more than any type of float rounds by."""
    smallest = DENORMAL if rounding == "exact" else SMALLEST
    if rounding != "exact":
        value += direction * abs(value) / 64
    if abs(value) < smallest and (value != 0 or rounding == "approximate"):
        return direction * smallest if value * direction >= 0 else 0.0
    return float(value)


@dataclass(frozen=True)
class Row:
    """An operator of one tensor.

    Attributes
    ----------
    function : callable
        Of an array in double precision and the parameters of the call; monotone between the turns, and the operator
        gives finite values wherever it does at both ends and at the turns between them.
    rounding : str
    turns : tuple of float
        Where it stops rising or falling.
    """

    function: Callable[[np.ndarray, Mapping[str, float]], np.ndarray]
    rounding: Rounding
    turns: tuple[float, ...] = ()


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def _erf(x: np.ndarray) -> np.ndarray:
    return np.array([erf(value) for value in x])


def _softplus(x: np.ndarray, parameters: Mapping[str, float]) -> np.ndarray:
    beta = parameters["beta"]
    smooth = np.logaddexp(0.0, beta * x) / beta
    # Above the threshold the operator gives x itself; a low threshold makes a step.
    return smooth if parameters["threshold"] > 10 else np.concatenate([smooth, x])


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1.0 + np.tanh(sqrt(2.0 / pi) * (x + 0.044715 * x**3)))


UNARY: dict[str, Row] = {
    "relax.abs": Row(lambda x, _: np.abs(x), "exact", (0.0,)),
    "relax.clip": Row(lambda x, p: np.minimum(np.maximum(x, p["min"]), p["max"]), "exact"),
    "relax.erf": Row(lambda x, _: _erf(x), "approximate"),
    "relax.exp": Row(lambda x, _: np.exp(x), "approximate"),
    "relax.log": Row(lambda x, _: np.log(x), "approximate"),
    "relax.negative": Row(lambda x, _: -x, "exact"),
    "relax.nn.gelu": Row(lambda x, _: 0.5 * x * (1.0 + _erf(x / sqrt(2.0))), "approximate", (-0.75179,)),
    "relax.nn.gelu_tanh": Row(lambda x, _: _gelu_tanh(x), "approximate", (-0.75246,)),
    "relax.nn.leakyrelu": Row(lambda x, p: np.where(x > 0, x, x * p["alpha"]), "rounded", (0.0,)),
    "relax.nn.relu": Row(lambda x, _: np.maximum(x, 0.0), "exact"),
    "relax.nn.silu": Row(lambda x, _: x * _sigmoid(x), "approximate", (-1.27846,)),
    "relax.nn.softplus": Row(_softplus, "approximate"),
    "relax.round": Row(lambda x, _: np.rint(x), "rounded"),
    "relax.rsqrt": Row(lambda x, _: 1.0 / np.sqrt(x), "approximate"),
    "relax.sigmoid": Row(lambda x, _: _sigmoid(x), "approximate"),
    "relax.sqrt": Row(lambda x, _: np.sqrt(x), "rounded"),
    "relax.square": Row(lambda x, _: x * x, "rounded", (0.0,)),
    "relax.tanh": Row(lambda x, _: np.tanh(x), "approximate"),
}
"""Operators of one tensor that work on a blocked one: how they change what its unused lanes hold."""

BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.divide": np.divide,
    "relax.maximum": np.maximum,
    "relax.minimum": np.minimum,
    "relax.power": np.power,
}
"""Operators of two tensors that work on blocked ones; their extremes are at extremes of the operands."""

COMPARISONS = frozenset(
    f"relax.{name}" for name in ("equal", "greater", "greater_equal", "less", "less_equal", "not_equal")
)
"""Operators that compare two tensors and work on blocked ones."""

_ROUNDING: dict[str, Rounding] = {
    "relax.maximum": "exact",
    "relax.minimum": "exact",
    "relax.power": "approximate",
}
