"""Polynomials that stand for smooth functions on an interval, found by interpolation at Chebyshev's points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial

from tvm_ext.schedules.simd.vector import constant_like


def interpolate(
    function: Callable[[float], float], low: float, high: float, degree: int, dtype: type[np.floating] = np.float32
) -> tuple[float, ...]:
    """Coefficients, constant term first, of the polynomial that meets ``function`` at Chebyshev's points.

    Its largest error on ``[low, high]`` is within a small factor of the best polynomial's (Trefethen, Approximation
    Theory and Approximation Practice, chapter 16). Coefficients are rounded to ``dtype``.
    """
    fitted = Chebyshev.interpolate(np.vectorize(function, otypes=[float]), degree, [low, high])
    return tuple(float(dtype(coefficient)) for coefficient in fitted.convert(kind=Polynomial).coef)


def interpolate_odd(
    function: Callable[[float], float],
    series: Sequence[float],
    high: float,
    degree: int,
    dtype: type[np.floating] = np.float32,
) -> tuple[float, ...]:
    """``(f(r) / r - 1) / r**2`` of an odd function as a polynomial in ``r**2``, for ``|r| <= high``.

    Parameters
    ----------
    function : callable
        With ``f(r) / r`` of 1 at zero.
    series : sequence of float
        The first coefficients of what is fitted, as powers of ``r**2``; they stand for it next to zero.
    high : float
    degree : int
    dtype : type
        What coefficients are rounded to.
    """

    def excess(square: float) -> float:
        root = math.sqrt(square)
        return _series(square, series) if square < 1e-3 else (function(root) / root - 1) / square

    return interpolate(excess, 0.0, high**2, degree, dtype)


def horner(coefficients: Sequence[float], value: Any) -> Any:
    """Evaluate a polynomial at a scalar or vector expression; every step is one multiply-add."""
    result = constant_like(coefficients[-1], value)
    for coefficient in coefficients[-2::-1]:
        result = result * value + constant_like(coefficient, value)
    return result


def _series(value: float, terms: Sequence[float]) -> float:
    return sum(term * value**power for power, term in enumerate(terms))


@lru_cache(maxsize=1)
def exp_remainder() -> tuple[float, ...]:
    """``(exp(r) - 1 - r) / r**2`` for ``|r| <= ln(2) / 2``; relative error of ``exp(r)`` below 1e-8."""
    near_zero = (1 / 2, 1 / 6, 1 / 24, 1 / 120)
    half = math.log(2) / 2

    def remainder(r: float) -> float:
        return _series(r, near_zero) if abs(r) < 1e-3 else (math.expm1(r) - r) / r**2

    return interpolate(remainder, -half, half, 4)


@lru_cache(maxsize=4)
def exp_growth(low: float, high: float, degree: int) -> tuple[float, ...]:
    """``(exp(r) - 1) / r`` for ``low <= r <= high``.

    The relative error of ``exp(r)`` is below 5e-9 on ``[-ln(2) / 16, ln(2) / 8]`` for degree 3.
    """
    near_zero = (1, 1 / 2, 1 / 6, 1 / 24)

    def growth(r: float) -> float:
        return _series(r, near_zero) if abs(r) < 1e-4 else math.expm1(r) / r

    return interpolate(growth, low, high, degree)


@lru_cache(maxsize=1)
def exp_slope(half: float) -> tuple[float, float]:
    """``(exp(r) - 1) / r`` as a straight line for ``|r| <= half``.

    It is exact where ``exp(r) - 1`` meets a parabola in Chebyshev's three points, of which zero is one, so that the
    error of ``exp(r)`` is ``half**3 / 24``: 5.3e-8 for ``ln(2) / 64``.
    """
    point = half * math.sqrt(3) / 2
    above, below = math.expm1(point) / point, math.expm1(-point) / -point
    return float(np.float32((above + below) / 2)), float(np.float32((above - below) / (2 * point)))


@lru_cache(maxsize=1)
def log_remainder() -> tuple[float, ...]:
    """``(log(1 + t) - t + t**2 / 2) / t**3`` for ``sqrt(1/2) <= 1 + t <= sqrt(2)``; relative error of the log 2e-8."""
    near_zero = (1 / 3, -1 / 4, 1 / 5, -1 / 6)

    def remainder(t: float) -> float:
        return _series(t, near_zero) if abs(t) < 1e-3 else (math.log1p(t) - t + t * t / 2) / t**3

    return interpolate(remainder, math.sqrt(0.5) - 1, math.sqrt(2) - 1, 7)


@lru_cache(maxsize=1)
def sine() -> tuple[float, ...]:
    """``(sin(r) / r - 1) / r**2`` as a polynomial in ``r**2``, for ``|r| <= pi / 4``."""
    return interpolate_odd(math.sin, (-1 / 6, 1 / 120, -1 / 5040), math.pi / 4, 3)


@lru_cache(maxsize=1)
def cosine() -> tuple[float, ...]:
    """``(cos(r) - 1 + r**2 / 2) / r**4`` as a polynomial in ``r**2``, for ``|r| <= pi / 4``."""
    near_zero = (1 / 24, -1 / 720, 1 / 40320)

    def rest(square: float) -> float:
        if square < 1e-1:
            return _series(square, near_zero)
        return (math.cos(math.sqrt(square)) - 1 + square / 2) / square**2

    return interpolate(rest, 0.0, (math.pi / 4) ** 2, 2)


@lru_cache(maxsize=1)
def erf_near() -> tuple[float, ...]:
    """``erf(x) / x - 1`` as a polynomial in ``x**2``, for ``|x| <= 1``; relative error of ``erf`` below 1e-8."""

    def excess(square: float) -> float:
        root = math.sqrt(square)
        return math.erf(root) / root - 1 if root > 1e-4 else 2 / math.sqrt(math.pi) * (1 - square / 3) - 1

    return interpolate(excess, 0.0, 1.0, 6)


@lru_cache(maxsize=1)
def erf_far() -> tuple[float, ...]:
    """``-log(1 - erf(x))`` for ``1 <= x <= 4``; relative error of ``erf`` below 6e-8. Beyond, ``erf`` rounds to 1."""
    return interpolate(lambda x: -math.log(math.erfc(x)), 1.0, 4.0, 7)
