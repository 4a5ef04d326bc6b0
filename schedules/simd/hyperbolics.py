"""Hyperbolic functions of whole vectors and their inverses, as arithmetic."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.simd.exponentials import half_exp
from tvm_ext.schedules.simd.logarithms import log
from tvm_ext.schedules.simd.polynomial import horner, interpolate, interpolate_odd
from tvm_ext.schedules.simd.vector import Bindings, constant_like, with_sign

_LARGE = 2.0**14
"""From here on, one is nothing beside the square of a number."""


def sinh(value: Any) -> Any:
    """Compute ``sinh``: a polynomial up to 1; beyond, half the difference of two exponentials."""
    names = Bindings()
    value = names.bind("value", value)
    size = names.bind("size", tirx.abs(value))
    power = names.bind("power", half_exp(size))
    far = power - constant_like(0.25, value) / power
    return names.around(with_sign(_or_polynomial(names, size, 1.0, _sinh(), far), value))


def cosh(value: Any) -> Any:
    """Compute ``cosh``, half the sum of two exponentials."""
    names = Bindings()
    power = names.bind("power", half_exp(tirx.abs(value)))
    return names.around(power + constant_like(0.25, value) / power)


def asinh(value: Any) -> Any:
    """Compute ``asinh``: a polynomial up to 1; beyond, the logarithm of ``|x| + sqrt(x * x + 1)``."""
    names = Bindings()
    value = names.bind("value", value)
    size = names.bind("size", tirx.abs(value))
    far = _log_of_sum(names, size, tirx.sqrt(size * size + constant_like(1.0, value)))
    return names.around(with_sign(_or_polynomial(names, size, 1.0, _asinh(), far), value))


def acosh(value: Any) -> Any:
    """Compute ``acosh``: a root with a polynomial up to 2; beyond, the logarithm of ``x + sqrt(x * x - 1)``."""
    names = Bindings()
    value = names.bind("value", value)
    one = constant_like(1.0, value)
    more = names.bind("more", value - one)
    root = names.bind("root", tirx.sqrt(more + more))
    near = root * (more * horner(_acosh(), more)) + root
    far = _log_of_sum(names, value, tirx.sqrt(value * value - one))
    return names.around(prim.Select(value > constant_like(2.0, value), far, near))


def atanh(value: Any) -> Any:
    """Compute ``atanh``: a polynomial up to 1/2; beyond, half the logarithm of ``(1 + |x|) / (1 - |x|)``."""
    names = Bindings()
    value = names.bind("value", value)
    one = constant_like(1.0, value)
    size = names.bind("size", tirx.abs(value))
    far = log((one + size) / (one - size)) * constant_like(0.5, value)
    return names.around(with_sign(_or_polynomial(names, size, 0.5, _atanh(), far), value))


def _or_polynomial(names: Bindings, size: Any, limit: float, coefficients: tuple[float, ...], far: Any) -> Any:
    """Take the polynomial of an odd function where ``|x|`` is at most ``limit``."""
    far = names.bind("far", far)
    square = names.bind("square", size * size)
    near = size * (square * horner(coefficients, square)) + size
    return prim.Select(size > constant_like(limit, size), far, near)


def _log_of_sum(names: Bindings, size: Any, root: Any) -> Any:
    """Compute the logarithm of ``|x| + root``, which is that of ``2 |x|`` where the square of ``x`` may overflow."""
    is_large = size > constant_like(_LARGE, size)
    total = names.bind("total", prim.Select(is_large, size, size + root))
    added = prim.Select(is_large, constant_like(math.log(2), size), constant_like(0.0, size))
    return names.bind("logarithm", log(total)) + added


@lru_cache(maxsize=1)
def _sinh() -> tuple[float, ...]:
    """Fit the polynomial of ``sinh`` for ``|r| <= 1``; relative error below 5e-9."""
    return interpolate_odd(math.sinh, (1 / 6, 1 / 120, 1 / 5040), 1.0, 3)


@lru_cache(maxsize=1)
def _asinh() -> tuple[float, ...]:
    """Fit the polynomial of ``asinh`` for ``|r| <= 1``; relative error below 2e-8."""
    return interpolate_odd(math.asinh, (-1 / 6, 3 / 40, -15 / 336, 105 / 3456), 1.0, 7)


@lru_cache(maxsize=1)
def _atanh() -> tuple[float, ...]:
    """Fit the polynomial of ``atanh`` for ``|r| <= 1/2``; relative error below 6e-9."""
    return interpolate_odd(math.atanh, (1 / 3, 1 / 5, 1 / 7, 1 / 9), 0.5, 5)


@lru_cache(maxsize=1)
def _acosh() -> tuple[float, ...]:
    """``(acosh(1 + t) / sqrt(2 t) - 1) / t`` for ``0 <= t <= 1``; relative error of ``acosh`` below 2e-8."""

    def excess(t: float) -> float:
        if t < 1e-3:
            return -1 / 12 + 3 * t / 160 - 5 * t * t / 896
        return (math.acosh(1 + t) / math.sqrt(2 * t) - 1) / t

    return interpolate(excess, 0.0, 1.0, 5)
