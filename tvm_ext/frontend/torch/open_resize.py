"""Resize pictures where only a run tells the extents, before or after: places and weights are computed by the model.

The arithmetic is PyTorch's, in float32 (float64 for doubles between their elements), as the nearest element depends on
it: ``place = (i + 0.5) * step - 0.5``, with ``step`` the quotient of the extents or the inverse of a given scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import floor
from typing import Any

import numpy as np
import tvm
from torch.fx import Node
from tvm import relax, tirx

from tvm_ext.frontend.torch.arguments import argument, extent_of, number_tensor

Emit = Callable[[Any], Any]

_LONGEST = 2**17
"""Elements of an axis up to which a whole scale has to repeat elements in float32, too."""

_LARGEST_FACTOR = 8

_LARGEST_DENOMINATOR = 1000


@dataclass(frozen=True)
class Axis:
    """How one axis is resized.

    Attributes
    ----------
    number : int
    before, after : tvm.tirx.Expr
        Extents.
    scale : float or None
        As it was given; None: the quotient of the extents.
    """

    number: int
    before: Any
    after: Any
    scale: float | None


def open_axes(importer: Any, node: Node, scales_at: int) -> list[Axis] | None:
    """Find the extents of an ``aten.upsample`` node.

    Parameters
    ----------
    scales_at : int
        Place of the argument that holds the scales.

    Returns
    -------
    list of Axis or None
        None where all extents are numbers.

    Raises
    ------
    NotImplementedError
        If an extent is computed in a way that is no integer arithmetic.
    """
    dims = list(importer.env[node.args[0]].ty.shape)[2:]
    scales = argument(node, scales_at, "scale_factors") or [None] * len(dims)
    sizes = argument(node, 1, "output_size")
    if sizes is None:
        sizes = [_scaled(dim, scale) for dim, scale in zip(dims, scales, strict=True)]
    # Spelled as Relax does: FuseTIR compares by spelling.
    after = [tvm.sym.Analyzer().simplify(extent_of(importer, size)) for size in sizes]
    if all(isinstance(extent, tirx.IntImm) for extent in (*dims, *after)):
        return None
    return [Axis(place + 2, *item) for place, item in enumerate(zip(dims, after, scales, strict=True))]


def resize_open(emit: Emit, data: Any, axes: Sequence[Axis], method: str, corners: bool = False) -> Any:
    """Resize a tensor axis by axis.

    Parameters
    ----------
    method : {"nearest", "linear", "cubic"}
    corners : bool
        Whether the middles of the first and of the last elements stay where they are.
    """
    dtype = str(data.ty.dtype)
    real = "float64" if dtype == "float64" and method != "nearest" else "float32"
    for axis in axes:
        factor = _factor(axis)
        if factor == 1:
            continue
        if method == "nearest" and factor is not None:
            data = emit(relax.op.repeat(data, factor, axis.number))
            continue
        place = _places(emit, axis, real, method, corners)
        if method == "nearest":
            data = _taken(emit, data, axis, emit(relax.op.floor(place)))
            continue
        low = emit(relax.op.floor(place))
        share = emit(relax.op.subtract(place, low))
        weights = _linear(emit, share, real) if method == "linear" else _cubic(emit, share, real)
        data = _weighted(emit, data, axis, low, weights, dtype)
    return data


def _scaled(dim: Any, scale: float) -> Any:
    """Extent of a scaled axis, rounded down."""
    if isinstance(dim, tirx.IntImm):
        return floor(int(dim) * scale)
    if float(scale).is_integer():
        return dim * int(scale)
    ratio = Fraction(scale).limit_denominator(_LARGEST_DENOMINATOR)
    extents = np.arange(_LONGEST)
    if np.any(np.floor(extents * scale) != extents * ratio.numerator // ratio.denominator):
        raise NotImplementedError(f"it scales an open extent by {scale}, which is no simple fraction; give the size")
    return tirx.floordiv(dim * ratio.numerator, tirx.const(ratio.denominator, "int64"))


def _factor(axis: Axis) -> int | None:
    """By how much all elements are repeated, whatever the extents are."""
    analyzer = tvm.sym.Analyzer()
    for factor in range(1, _LARGEST_FACTOR + 1):
        if analyzer.can_prove_equal(axis.after, axis.before * factor):
            repeats = axis.scale in (None, factor) and _repeats(factor)
            return factor if repeats else None
    return None


@lru_cache(maxsize=_LARGEST_FACTOR)
def _repeats(factor: int) -> bool:
    """Whether places in float32 are those of integers: 41 times ``1 / 41`` is less than 1."""
    places = np.arange(_LONGEST)
    step = np.float32(1) / np.float32(factor)
    return bool(np.array_equal(np.floor(places.astype("float32") * step), places // factor))


def _places(emit: Emit, axis: Axis, real: str, method: str, corners: bool) -> Any:
    """Coordinates in the input of the elements of the result, a vector."""
    at = emit(relax.op.astype(emit(relax.op.arange(0, axis.after, 1, "int64")), real))
    before, after = number_tensor(emit, axis.before, real), number_tensor(emit, axis.after, real)
    if corners:
        one = relax.const(1, real)
        steps = emit(relax.op.maximum(emit(relax.op.subtract(after, one)), one))
        return emit(relax.op.multiply(at, emit(relax.op.divide(emit(relax.op.subtract(before, one)), steps))))
    if axis.scale is not None:
        step = relax.const(np.dtype(real).type(1 / axis.scale), real)
    else:
        step = emit(relax.op.divide(before, after))
    if method == "nearest":
        return emit(relax.op.multiply(at, step))
    half = relax.const(0.5, real)
    place = emit(relax.op.subtract(emit(relax.op.multiply(emit(relax.op.add(at, half)), step)), half))
    return place if method == "cubic" else emit(relax.op.maximum(place, relax.const(0, real)))


def _linear(emit: Emit, share: Any, real: str) -> list[tuple[int, Any]]:
    """List which elements count, as distances from the one below, and how much."""
    return [(0, emit(relax.op.subtract(relax.const(1, real), share))), (1, share)]


def _cubic(emit: Emit, share: Any, real: str) -> list[tuple[int, Any]]:
    """Keys' kernel of the four elements around, with PyTorch's parameter."""
    a = -0.75

    def polynomial(x: Any, *factors: float) -> Any:
        total: Any = relax.const(factors[0], real)
        for factor in factors[1:]:
            product = emit(relax.op.multiply(total, x))
            total = emit(relax.op.add(product, relax.const(factor, real))) if factor else product
        return total

    one = relax.const(1, real)
    rest = emit(relax.op.subtract(one, share))
    near, far = (a + 2, -(a + 3), 0, 1), (a, -5 * a, 8 * a, -4 * a)
    return [
        (-1, polynomial(emit(relax.op.add(share, one)), *far)),
        (0, polynomial(share, *near)),
        (1, polynomial(rest, *near)),
        (2, polynomial(emit(relax.op.add(rest, one)), *far)),
    ]


def _weighted(emit: Emit, data: Any, axis: Axis, low: Any, weights: Sequence[tuple[int, Any]], dtype: str) -> Any:
    """Sum up elements along an axis by their weights."""
    spread: list[Any] = [1] * len(data.ty.shape)
    spread[axis.number] = axis.after
    total = None
    for distance, weight in weights:
        place = low if not distance else emit(relax.op.add(low, relax.const(distance, str(low.ty.dtype))))
        factor = emit(relax.op.astype(emit(relax.op.reshape(weight, spread)), dtype))
        part = emit(relax.op.multiply(_taken(emit, data, axis, place), factor))
        total = part if total is None else emit(relax.op.add(total, part))
    return total


def _taken(emit: Emit, data: Any, axis: Axis, place: Any) -> Any:
    """Gather elements at whole coordinates; the one at the end in the place of what lies beyond it."""
    index = emit(relax.op.maximum(emit(relax.op.astype(place, "int64")), relax.const(0, "int64")))
    last = emit(relax.op.subtract(number_tensor(emit, axis.before, "int64"), relax.const(1, "int64")))
    return emit(relax.op.take(data, emit(relax.op.minimum(index, last)), axis.number, mode="clip"))
