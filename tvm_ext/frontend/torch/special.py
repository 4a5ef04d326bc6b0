"""Converters of functions that few models use: angles, distances, inverse errors, a Bessel function, triangles."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import tvm
from torch.fx import Node
from tvm import relax, te, tirx

from tvm_ext.frontend.torch.arguments import argument
from tvm_ext.frontend.torch.near_zero import NEAR_ZERO
from tvm_ext.frontend.torch.promotion import relax_dtype

BITS = {"float16": "int16", "float32": "int32", "float64": "int64"}


def sign_bit(importer: Any, node: Node) -> Any:
    """``torch.signbit``, which tells -0.0 from 0.0."""
    emit, data = importer.block_builder.emit, importer.env[node.args[0]]
    dtype = str(data.ty.dtype)
    if dtype == "bool":
        return emit(relax.op.zeros(list(data.ty.shape), "bool"))
    if dtype == "bfloat16":
        dtype, data = "float32", emit(relax.op.astype(data, "float32"))
    if dtype not in BITS:
        return emit(relax.op.less(data, relax.const(0, dtype)))

    def compute(x: te.Tensor) -> te.Tensor:
        zero = tirx.const(0, BITS[dtype])
        return te.compute(x.shape, lambda *places: tirx.reinterpret(BITS[dtype], x(*places)) < zero, name="sign_bit")

    return importer.block_builder.emit_te(compute, data, primfunc_name_hint="sign_bit")


def angle(importer: Any, node: Node) -> Any:
    """``torch.angle`` of real numbers: pi of those below zero, zero of others, NaN of NaN."""
    emit, dtype = importer.block_builder.emit, relax_dtype(node.meta["val"].dtype)
    data = emit(relax.op.astype(importer.env[node.args[0]], "float64" if dtype == "float64" else "float32"))
    real = str(data.ty.dtype)
    turned = emit(relax.op.less(data, relax.const(0, real)))
    angles = emit(relax.op.where(turned, relax.const(math.pi, real), relax.const(0, real)))
    return emit(relax.op.astype(emit(relax.op.where(emit(relax.op.isnan(data)), data, angles)), dtype))


def distance(importer: Any, node: Node) -> Any:
    """``torch.dist``: the norm of a difference."""
    emit, dtype = importer.block_builder.emit, relax_dtype(node.meta["val"].dtype)
    order, real = float(argument(node, 2, "p", 2)), "float64" if dtype == "float64" else "float32"
    left, right = (emit(relax.op.astype(importer.env[operand], real)) for operand in node.args[:2])
    apart = emit(relax.op.abs(emit(relax.op.subtract(left, right))))
    if math.isinf(order):
        result = emit((relax.op.max if order > 0 else relax.op.min)(apart))
    elif order == 0:
        result = emit(relax.op.sum(emit(relax.op.astype(emit(relax.op.not_equal(apart, relax.const(0, real))), real))))
    elif order == 2:
        result = emit(relax.op.sqrt(emit(relax.op.sum(emit(relax.op.multiply(apart, apart))))))
    else:
        powers = emit(relax.op.sum(emit(relax.op.power(apart, relax.const(order, real)))))
        result = emit(relax.op.power(powers, relax.const(1 / order, real)))
    return result if dtype == real else emit(relax.op.astype(result, dtype))


SERIES_UP_TO, TERMS = 12.0, 32
"""The power series of the Bessel function ends so early that what is left is less than a rounding of float32."""

EXPANSION = 8
"""Terms of its asymptotic expansion, of which the next is less than a rounding of float32 from there on."""


def bessel(importer: Any, node: Node) -> Any:
    """``torch.i0``, the modified Bessel function of order 0: a power series, and for large numbers its expansion.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 9.6.12 and 9.7.1.
    """
    emit, dtype = importer.block_builder.emit, relax_dtype(node.meta["val"].dtype)
    if dtype == "float64":
        raise NotImplementedError("in double precision it has no converter")
    data = emit(relax.op.astype(importer.env[node.args[0]], "float32"))
    size = emit(relax.op.abs(data))
    small = emit(relax.op.minimum(size, relax.const(SERIES_UP_TO, "float32")))
    quarter = emit(relax.op.multiply(emit(relax.op.multiply(small, small)), relax.const(0.25, "float32")))
    series = _polynomial(emit, quarter, [1 / math.factorial(k) ** 2 for k in range(TERMS)])
    large = emit(relax.op.maximum(size, relax.const(SERIES_UP_TO, "float32")))
    inverse = emit(relax.op.divide(relax.const(1, "float32"), large))
    factors = [math.prod((2 * j - 1) ** 2 / (8 * j) for j in range(1, k + 1)) for k in range(EXPANSION)]
    factor = _polynomial(emit, inverse, [value / math.sqrt(2 * math.pi) for value in factors])
    factor = emit(relax.op.multiply(factor, emit(relax.op.sqrt(inverse))))
    expansion = emit(relax.op.multiply(emit(relax.op.exp(large)), factor))
    is_small = emit(relax.op.less_equal(size, relax.const(SERIES_UP_TO, "float32")))
    chosen = emit(relax.op.where(is_small, series, expansion))
    chosen = emit(relax.op.where(emit(relax.op.isnan(data)), data, chosen))
    return chosen if dtype == "float32" else emit(relax.op.astype(chosen, dtype))


def _polynomial(emit: Callable[[Any], Any], x: Any, coefficients: list[float]) -> Any:
    value = relax.const(coefficients[-1], "float32")
    for coefficient in reversed(coefficients[:-1]):
        value = emit(relax.op.add(emit(relax.op.multiply(value, x)), relax.const(coefficient, "float32")))
    return value


CENTRAL = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip
"""Coefficients of the inverse error function in single precision, highest power first (Giles, table 5)."""


def inverse_error(importer: Any, node: Node) -> Any:
    """``torch.erfinv``: two polynomials of ``w = -log(1 - x²)``; infinite at -1 and 1, NaN beyond.

    M. Giles, Approximating the erfinv function, GPU Computing Gems, volume 2, 2011.
    """
    emit, dtype = importer.block_builder.emit, relax_dtype(node.meta["val"].dtype)
    if dtype == "float64":
        raise NotImplementedError("in double precision it has no converter")
    data = emit(relax.op.astype(importer.env[node.args[0]], "float32"))
    one = relax.const(1, "float32")
    inside = emit(relax.op.multiply(emit(relax.op.subtract(one, data)), emit(relax.op.add(one, data))))
    depth = emit(relax.op.negative(emit(relax.op.log(inside))))  # NaN where x is beyond 1
    near = emit(
        relax.op.subtract(emit(relax.op.minimum(depth, relax.const(5, "float32"))), relax.const(2.5, "float32"))
    )
    far = emit(relax.op.sqrt(emit(relax.op.maximum(depth, relax.const(5, "float32")))))
    far = emit(relax.op.subtract(far, relax.const(3, "float32")))
    is_central = emit(relax.op.less(depth, relax.const(5, "float32")))
    factor = emit(
        relax.op.where(
            is_central,
            _polynomial(emit, near, list(reversed(CENTRAL))),
            _polynomial(emit, far, list(reversed(TAIL))),
        )
    )
    result = emit(relax.op.multiply(factor, data))
    at_end = emit(relax.op.equal(emit(relax.op.abs(data)), one))
    result = emit(relax.op.where(at_end, emit(relax.op.multiply(data, relax.const(math.inf, "float32"))), result))
    is_defined = emit(relax.op.less_equal(emit(relax.op.abs(data)), one))
    result = emit(relax.op.where(is_defined, result, relax.const(math.nan, "float32")))
    return result if dtype == "float32" else emit(relax.op.astype(result, dtype))


def places_of_triangle(function: Callable[..., Any], importer: Any, node: Node) -> Any:
    """``torch.tril_indices`` and ``triu_indices``, which are known now."""
    if not all(isinstance(value, int) for value in node.args):
        raise NotImplementedError("its extents have to be known")
    places = function(*node.args, dtype=node.meta["val"].dtype)
    return importer.block_builder.emit(relax.const(places.numpy(), relax_dtype(places.dtype)))


def whole_steps(stock: Callable[[Node], Any], importer: Any, node: Node) -> Any:
    """``torch.arange`` where Relax counts otherwise: steps downwards, and integers from a number that is none.

    Relax takes one step too many where steps of less than -1 end at ``end``, and two where they are -1. PyTorch cuts
    the numbers for integers to integers first.
    """
    value = node.meta["val"]
    start, step = (argument(node, place, name, default) for place, name, default in ((0, "start", 0), (2, "step", 1)))
    is_cut = not value.is_floating_point() and any(isinstance(number, float) for number in (start, step, node.args[1]))
    if not (is_cut or (isinstance(step, int | float) and step < 0)):
        return stock(node)
    if not isinstance(value.shape[0], int) or not isinstance(start, int | float):
        if is_cut or value.is_floating_point() or not isinstance(step, int):
            raise NotImplementedError("its extent has to be known; count in integers, and multiply them")
        return _open_steps(importer, node, step)
    if is_cut:
        start, step = int(start), int(step)
    places = torch.tensor(start + step * np.arange(int(value.shape[0])), dtype=value.dtype)
    return importer.block_builder.emit(relax.const(tvm.runtime.from_dlpack(places)))


def _open_steps(importer: Any, node: Node, step: int) -> Any:
    """Count downwards between integers that are only known at run time."""
    emit = importer.block_builder.emit
    start, end = (
        tvm.tirx.IntImm("int64", item) if isinstance(item, int) else item for item in importer.retrieve_args(node)[:2]
    )
    zero = tvm.tirx.IntImm("int64", 0)
    apart = tvm.tirx.floordiv(start - end + (-step - 1), tvm.tirx.IntImm("int64", -step))
    count = tvm.sym.Analyzer().simplify(tvm.tirx.max(apart, zero))
    first = emit(relax.op.reshape(emit(relax.op.shape_to_tensor(relax.ShapeExpr([start]))), relax.ShapeExpr([])))
    places = emit(relax.op.multiply(emit(relax.op.arange(0, count, 1, "int64")), relax.const(step, "int64")))
    dtype = relax_dtype(node.meta["val"].dtype)
    numbers = emit(relax.op.add(places, first))
    return numbers if dtype == "int64" else emit(relax.op.astype(numbers, dtype))


SPECIAL: Mapping[str, Callable[[Any, Node], Any]] = {
    **NEAR_ZERO,
    "angle.default": angle,
    "dist.default": distance,
    "erfinv.default": inverse_error,
    "i0.default": bessel,
    "signbit.default": sign_bit,
    "tril_indices.default": partial(places_of_triangle, torch.tril_indices),
    "triu_indices.default": partial(places_of_triangle, torch.triu_indices),
}
"""By name of operator and overload."""

REFINED_SPECIAL: Mapping[str, Callable[[Callable[[Node], Any], Any, Node], Any]] = {
    "arange.start_step": whole_steps,
}
"""Those that leave to TVM's converter what it does right."""
