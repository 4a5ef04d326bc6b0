"""Inverse trigonometric functions of whole vectors, as arithmetic."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.simd.polynomial import horner, interpolate_odd
from tvm_ext.schedules.simd.vector import Bindings, constant_like, with_sign

_QUARTER = float(np.float32(math.pi / 2))
_QUARTER_LOW = math.pi / 2 - _QUARTER
_NEAR = 0.65  # of a larger number only half as much of what a root is rounded by is left in the result


def atan(value: Any) -> Any:
    """Compute ``atan``; beyond 1 as what is left of a quarter of the circle, which ``atan(1 / x)`` is."""
    names = Bindings()
    value = names.bind("value", value)
    one = constant_like(1.0, value)
    size = names.bind("size", tirx.abs(value))
    less, more = prim.Select(size < one, size, one), prim.Select(size <= one, one, size)
    ratio = names.bind("ratio", less / more)
    square = names.bind("square", ratio * ratio)
    near = names.bind("near", ratio * (square * horner(_atan(), square)) + ratio)
    return names.around(with_sign(prim.Select(size > one, _rest(near), near), value))


def asin(value: Any) -> Any:
    """Compute ``asin``; beyond :data:`_NEAR` by half the angle to 1, as ``sin(a / 2)**2`` is half of ``1 - cos(a)``."""
    names = Bindings()
    value = names.bind("value", value)
    size, angle = _angle(names, value)
    far = _rest(angle + angle)
    return names.around(with_sign(prim.Select(size <= constant_like(_NEAR, value), angle, far), value))


def acos(value: Any) -> Any:
    """Compute ``acos`` as what ``asin`` leaves of a quarter of the circle, but exactly where that is little."""
    names = Bindings()
    value = names.bind("value", value)
    size, angle = _angle(names, value)
    double = names.bind("double", angle + angle)
    is_negative = value < constant_like(0.0, value)
    far = prim.Select(is_negative, _rest(double, 2), double)
    near = _rest(prim.Select(is_negative, constant_like(0.0, value) - angle, angle))
    return names.around(prim.Select(size <= constant_like(_NEAR, value), near, far))


def _angle(names: Bindings, value: Any) -> tuple[Any, Any]:
    """Give ``|x|`` and ``asin(|x|)``, where that is above :data:`_NEAR` half of ``acos(|x|)``, by one polynomial."""
    half, one = constant_like(0.5, value), constant_like(1.0, value)
    size = names.bind("size", tirx.abs(value))
    is_near = size <= constant_like(_NEAR, value)
    square = names.bind("square", prim.Select(is_near, size * size, (one - size) * half))
    root = names.bind("root", prim.Select(is_near, size, tirx.sqrt(square)))
    return size, names.bind("angle", root * (square * horner(_asin(), square)) + root)


def _rest(angle: Any, quarters: int = 1) -> Any:
    """Subtract an angle from one or two quarters of a circle."""
    return constant_like(quarters * _QUARTER, angle) - (angle - constant_like(quarters * _QUARTER_LOW, angle))


@lru_cache(maxsize=1)
def _atan() -> tuple[float, ...]:
    """Fit the polynomial of ``atan`` for ``|r| <= 1``; relative error below 3e-8."""
    return interpolate_odd(math.atan, (-1 / 3, 1 / 5, -1 / 7, 1 / 9), 1.0, 8)


@lru_cache(maxsize=1)
def _asin() -> tuple[float, ...]:
    """Fit the polynomial of ``asin`` for ``|r| <= _NEAR``; relative error below 1e-8."""
    return interpolate_odd(math.asin, (1 / 6, 3 / 40, 15 / 336, 105 / 3456), _NEAR, 6)
