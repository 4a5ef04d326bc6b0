"""Converters of ``log1p``, ``expm1`` and ``softplus``, which are exact where their value is near zero.

TVM's importer computes ``log(1 + x)`` and ``exp(x) - 1``: of the numbers below 1e-7, of which float32 has as many as of
others, nothing is left, and the logarithm of a probability near one (``logsigmoid``, losses) is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import factorial
from typing import Any

from torch.fx import Node
from tvm import relax, te, tirx
from tvm.ir.prim import expr as prim

from tvm_ext.frontend.torch.arguments import argument
from tvm_ext.frontend.torch.promotion import relax_dtype

Function = Callable[[Any], Any]


def _log1p(x: Any) -> Any:
    """Near zero twice the inverse hyperbolic tangent of ``x / (2 + x)``, whose series ends soon.

    What the sum with one rounds off cannot be asked for: TVM takes ``(1 + x) - 1`` for ``x``.
    """
    dtype = x.ty.dtype
    tangent = x / (tirx.const(2.0, dtype) + x)
    square = tangent * tangent
    series = tirx.const(0.0, dtype)
    for power in range(2 * _TERMS[str(dtype)] - 1, 0, -2):
        series = series * square + tirx.const(2.0 / power, dtype)
    # From -1/4 to 1/2: the tangent is at most a fifth, and beyond the sum with one rounds off little.
    near = tirx.abs(x - tirx.const(0.125, dtype)) < tirx.const(0.375, dtype)
    return prim.Select(near, tangent * series, tirx.log(tirx.const(1.0, dtype) + x))


_TERMS = {"float32": 5, "float64": 11}
"""Of the series: what is left out is below the rounding, a fifth to the power of twice as many."""


def _expm1(x: Any) -> Any:
    """Near zero the exponential series without its first term."""
    dtype = x.ty.dtype
    one, half = tirx.const(1.0, dtype), tirx.const(0.5, dtype)
    series = tirx.const(0.0, dtype)
    for power in range(_POWERS[str(dtype)], 0, -1):
        series = series * x + tirx.const(1.0 / factorial(power), dtype)
    return prim.Select(tirx.abs(x) < half, series * x, tirx.exp(x) - one)


_POWERS = {"float32": 9, "float64": 16}
"""Of the series: a half to the power, divided by the factorial, is below the rounding."""


def elementwise(function: Function, name: str, importer: Any, node: Node) -> Any:
    """Compute a function of each element, in float32 at least; of integers in float32."""
    emit, data = importer.block_builder.emit, importer.env[node.args[0]]
    dtype = relax_dtype(node.meta["val"].dtype)
    wide = dtype if dtype == "float64" else "float32"
    if str(data.ty.dtype) != wide:
        data = emit(relax.op.astype(data, wide))

    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *places: function(x(*places)), name=name)

    result = importer.block_builder.emit_te(compute, data, primfunc_name_hint=name)
    return result if dtype == wide else emit(relax.op.astype(result, dtype))


def softplus(importer: Any, node: Node) -> Any:
    """``log(1 + exp(beta x)) / beta``, and ``x`` itself where ``beta x`` is above the threshold."""
    beta, threshold = (float(argument(node, place, name, default)) for place, name, default in _SOFTPLUS)

    def function(x: Any) -> Any:
        scaled = x * tirx.const(beta, x.ty.dtype)
        smooth = _log1p(tirx.exp(scaled)) / tirx.const(beta, x.ty.dtype)
        return prim.Select(scaled > tirx.const(threshold, x.ty.dtype), x, smooth)

    return elementwise(function, "softplus", importer, node)


_SOFTPLUS = ((1, "beta", 1.0), (2, "threshold", 20.0))

NEAR_ZERO: Mapping[str, Callable[[Any, Node], Any]] = {
    "expm1.default": partial(elementwise, _expm1, "expm1"),
    "log1p.default": partial(elementwise, _log1p, "log1p"),
    "softplus.default": softplus,
}
"""By name of operator and overload."""
