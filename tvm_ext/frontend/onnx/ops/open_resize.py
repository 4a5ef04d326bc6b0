"""Resize along axes whose extents are only known at run time: places and weights are computed by the model.

The arithmetic is onnxruntime's, in float32, as which element is nearest depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from tvm import relax, tirx

from tvm_ext.frontend.onnx.ops.base import Node, astype, constant, dtype_of, emit
from tvm_ext.frontend.onnx.ops.extents import (
    as_tensor,
    can_prove,
    extents_in,
    is_computed_shape,
    is_number,
    listed,
    normal,
    number,
)

FINEST_SCALE = 64
"""Denominator up to which a scale times a size is the same in float32 and in integers."""

_LONGEST = 2**17
"""Elements along an axis, before and after, up to which a fraction has to give the extents that float32 does."""

COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


@dataclass(frozen=True)
class OpenAxis:
    """How one axis is resized.

    Attributes
    ----------
    inputs, outputs : tvm.tirx.Expr
        Extents.
    scale : float or None
        None: the quotient of the extents.
    """

    inputs: Any
    outputs: Any
    scale: float | None


def open_axes(node: Node, bb: relax.BlockBuilder, inputs: Any, axes: Sequence[int]) -> dict[int, OpenAxis]:
    """Find the axes that change, and their extents.

    Parameters
    ----------
    inputs : sequence of relax.Expr or None
        X, roi, scales, sizes.
    axes : sequence of int
        That scales and sizes are for.

    Raises
    ------
    UnsupportedOperatorError
        If sizes are computed from values, or a scale does not give whole sizes.
    """
    dims = list(inputs[0].ty.shape)
    if inputs[3] is not None:
        given = extents_in(bb, inputs[3]) if is_computed_shape(inputs[3]) else inputs[3]
        sizes = listed(node, given)
        if sizes is None or (sizes and len(sizes) != len(axes)):
            node.refuse("its sizes are only known at run time")
        if sizes:
            if node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
                node.refuse("it keeps the aspect ratio of an image of open extents; bind the model's input shapes")
            pairs = zip(axes, sizes, strict=True)
            return {axis: OpenAxis(dims[axis], size, None) for axis, size in pairs if not can_prove(size == dims[axis])}
    if inputs[2] is None:
        node.damaged("neither input scales nor input sizes is given")
    scales = [float(scale) for scale in node.constant(inputs[2], "scales")]
    if len(scales) != len(axes):
        node.damaged(f"input scales has {len(scales)} elements, {len(axes)} were expected")
    found = {}
    for axis, scale in zip(axes, scales, strict=True):
        ratio = _ratio(scale)
        if ratio == 1:
            continue
        if ratio is None:
            node.refuse(f"it scales an open extent by {scale}; bind the model's input shapes, or scale by a fraction")
        outputs = tirx.floordiv(dims[axis] * number(ratio.numerator), number(ratio.denominator))
        found[axis] = OpenAxis(dims[axis], normal(outputs), scale)
    return found


def _ratio(scale: float) -> Fraction | None:
    """Fraction that scales extents as the product in float32 does, rounded down: 23/10 for the 2.3 of float32.

    None if none has a small enough denominator.
    """
    ratio = Fraction(scale)
    if ratio.denominator <= FINEST_SCALE:
        return ratio
    ratio = ratio.limit_denominator(FINEST_SCALE)
    extents = np.arange(int(_LONGEST / max(scale, 1.0)))
    same = np.floor(extents.astype("float32") * np.float32(scale)) == extents * ratio.numerator // ratio.denominator
    return ratio if same.all() else None


def resized(node: Node, bb: relax.BlockBuilder, x: Any, axes: dict[int, OpenAxis], rule: Any) -> Any:
    """Resize a tensor along axes of open extents.

    Parameters
    ----------
    rule : Rule
        How the node interpolates; see :mod:`tvm_ext.frontend.onnx.ops.resize`.
    """
    if rule.antialias or rule.exclude_outside or rule.coordinates not in COORDINATES:
        node.refuse(
            f"mode {rule.mode} with coordinates {rule.coordinates} is only known for fixed sizes; bind the model's "
            "input shapes"
        )
    dtype, rank = dtype_of(x), int(x.ty.ndim)
    for axis, item in axes.items():
        if rule.mode == "nearest" and _repeats(rule, item):
            x = bb.emit(relax.op.repeat(x, int(item.scale or 1), axis))
            continue
        place = _coordinates(bb, rule.coordinates, item)
        if rule.mode == "nearest":
            x = bb.emit(relax.op.take(x, _inside(bb, _rounded(bb, rule.nearest, place, item), item), axis))
            continue
        x = astype(bb, x, "float32" if dtype != "float64" else dtype)
        low = bb.emit(relax.op.floor(place))
        share = astype(bb, bb.emit(relax.op.subtract(place, low)), dtype_of(x))
        if rule.mode == "cubic":
            x = _weighted(bb, x, axis, low, _cubic(bb, share, rule.cubic_a), item)
            continue
        spread = [1] * rank
        spread[axis] = item.outputs
        share = bb.emit(relax.op.reshape(share, relax.ShapeExpr([*spread])))
        first = bb.emit(relax.op.take(x, _inside(bb, low, item), axis))
        second = bb.emit(relax.op.add(low, constant(1.0, "float32")))
        second = bb.emit(relax.op.take(x, _inside(bb, second, item), axis))
        rest = bb.emit(relax.op.subtract(constant(1.0, dtype_of(x)), share))
        x = bb.emit(relax.op.add(relax.op.multiply(first, rest), relax.op.multiply(second, share)))
    return of_type(bb, x, dtype, drops=rule.mode == "linear")


def of_type(bb: relax.BlockBuilder, x: Any, dtype: str, drops: bool) -> Any:
    """Convert interpolated elements to the type of the image, inside of its limits.

    Parameters
    ----------
    drops : bool
        Whether whole numbers are what is left without the fraction, as onnxruntime has it for linear interpolation
        without antialiasing, and not the nearest ones.
    """
    if dtype_of(x) != dtype and np.issubdtype(np.dtype(dtype), np.integer):
        limits = np.iinfo(dtype)
        # A sum that is whole but for rounding keeps what it is.
        exact = relax.op.multiply(x, constant(np.asarray(1 + 2**-21), dtype_of(x)))
        x = bb.emit(relax.op.trunc(exact) if drops else relax.op.round(x))
        x = bb.emit(relax.op.clip(x, float(limits.min), float(limits.max)))
    return astype(bb, x, dtype)


def _cubic(bb: relax.BlockBuilder, share: Any, a: float) -> list[Any]:
    """Weights of the four elements around places that are ``share`` behind the second of them (Keys 1981)."""
    dtype = dtype_of(share)

    def polynomial(distance: Any, *factors: float) -> Any:
        total = constant(factors[0], dtype)
        for factor in factors[1:]:
            total = bb.emit(relax.op.multiply(total, distance))
            total = bb.emit(relax.op.add(total, constant(factor, dtype)))
        return total

    one, two = constant(1.0, dtype), constant(2.0, dtype)
    outer, inner = (a, -5 * a, 8 * a, -4 * a), (a + 2, -(a + 3), 0.0, 1.0)
    return [
        polynomial(bb.emit(relax.op.add(share, one)), *outer),
        polynomial(share, *inner),
        polynomial(bb.emit(relax.op.subtract(one, share)), *inner),
        polynomial(bb.emit(relax.op.subtract(two, share)), *outer),
    ]


def _weighted(bb: relax.BlockBuilder, x: Any, axis: int, low: Any, weights: Sequence[Any], item: OpenAxis) -> Any:
    """Sum of the elements from one before ``low`` on, each times its weight."""
    spread: list[Any] = [1] * int(x.ty.ndim)
    spread[axis] = item.outputs
    total = None
    for place, weight in enumerate(weights, start=-1):
        index = _inside(bb, bb.emit(relax.op.add(low, constant(float(place), "float32"))), item)
        weight = bb.emit(relax.op.reshape(weight, relax.ShapeExpr([*spread])))
        term = bb.emit(relax.op.multiply(bb.emit(relax.op.take(x, index, axis)), weight))
        total = term if total is None else bb.emit(relax.op.add(total, term))
    return total


def _repeats(rule: Any, item: OpenAxis) -> bool:
    """Whether every element is simply repeated: o // s for a whole scale s, by all ways of rounding but two."""
    if item.scale is None or not float(item.scale).is_integer() or item.scale < 1:
        return False
    if rule.coordinates == "asymmetric":
        return bool(rule.nearest == "floor" or (rule.nearest == "simple"))
    return rule.coordinates == "half_pixel" and rule.nearest in ("round_prefer_floor", "round_prefer_ceil")


def _coordinates(bb: relax.BlockBuilder, rule: str, item: OpenAxis) -> Any:
    """Coordinates of the outputs in the input, a vector of float32."""
    position = astype(bb, bb.emit(relax.op.arange(0, item.outputs, 1, "int64")), "float32")
    inputs, outputs = (astype(bb, emit(bb, as_tensor(bb, extent)), "float32") for extent in (item.inputs, item.outputs))
    one, half = constant(1.0, "float32"), constant(0.5, "float32")

    def compute(function: Callable[..., Any], *operands: Any) -> Any:
        return bb.emit(function(*operands))

    if rule == "align_corners":
        steps = compute(relax.op.maximum, compute(relax.op.subtract, outputs, one), one)
        whole = compute(relax.op.multiply, position, compute(relax.op.subtract, inputs, one))
        return compute(relax.op.divide, whole, steps)

    def scaled(place: Any) -> Any:
        if item.scale is None:
            return compute(relax.op.divide, place, compute(relax.op.divide, outputs, inputs))
        # TVM multiplies by the inverse of a number; that of float64 rounds to the quotient that float32 has.
        wide = compute(
            relax.op.divide, astype(bb, place, "float64"), constant(float(np.float32(item.scale)), "float64")
        )
        return astype(bb, wide, "float32")

    if rule == "asymmetric":
        return scaled(position)
    place = scaled(compute(relax.op.add, position, half))
    place = compute(relax.op.subtract, place, half)
    if rule == "pytorch_half_pixel":
        single = compute(relax.op.less_equal, outputs, one)
        place = compute(relax.op.where, single, constant(0.0, "float32"), place)
    return place


def _rounded(bb: relax.BlockBuilder, rule: str, place: Any, item: OpenAxis) -> Any:
    half = constant(0.5, "float32")
    if rule == "simple":  # down if the axis grows, up if it shrinks
        rule = "ceil" if item.scale is not None and item.scale < 1 else "floor"
    if rule == "floor":
        return bb.emit(relax.op.floor(place))
    if rule == "ceil":
        return bb.emit(relax.op.ceil(place))
    if rule == "round_prefer_floor":
        return bb.emit(relax.op.ceil(bb.emit(relax.op.subtract(place, half))))
    return bb.emit(relax.op.floor(bb.emit(relax.op.add(place, half))))


def _inside(bb: relax.BlockBuilder, place: Any, item: OpenAxis) -> Any:
    """Make indices of whole coordinates, kept inside the input."""
    index = astype(bb, place, "int64")
    index = bb.emit(relax.op.maximum(index, constant(0, "int64")))
    last = constant(int(item.inputs) - 1, "int64") if is_number(item.inputs) else as_tensor(
        bb, normal(item.inputs - number(1)))  # fmt: skip
    return bb.emit(relax.op.minimum(index, emit(bb, last)))
