"""Fourier transforms along an axis of open extent: products with a matrix that each run makes.

A matrix of ``n`` samples holds ``n`` different cosines and as many sines, at places ``t * k mod n``: these are computed
in double precision, once a run, and copied to where they belong.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvm_ext.frontend.onnx.ops.base import constant, dtype_of, reshape
from tvm_ext.frontend.onnx.ops.extents import normal

_ZERO, _ONE = tirx.const(0.0, "float64"), tirx.const(1.0, "float64")


def fit_open_axis(bb: relax.BlockBuilder, x: Any, axis: int, length: Any) -> Any:
    """Cut an axis off, or go on with zeros, so that it has ``length`` elements."""

    def fitted(x: te.Tensor) -> te.Tensor:
        shape = [*x.shape[:axis], length, *x.shape[axis + 1 :]]
        zero = tirx.const(0, str(x.dtype))
        return te.compute(shape, lambda *at: tirx.if_then_else(at[axis] < x.shape[axis], x(*at), zero), name="fit_axis")

    return bb.emit_te(fitted, x, primfunc_name_hint="fit_axis")


def open_transform(
    bb: relax.BlockBuilder, x: Any, lead: tuple[Any, ...], length: Any, onesided: bool, parts: int, inverse: bool
) -> Any:
    """Transform the axis before the last; as :func:`tvm_ext.frontend.onnx.ops.spectral.fourier_transform`.

    Returns
    -------
    relax.Expr
        Shape (*lead, length, 2), or length // 2 + 1 frequencies.
    """
    dtype = dtype_of(x)
    sign = 1.0 if inverse else -1.0

    def matrix(table: te.Tensor) -> te.Tensor:
        count = table.shape[1]
        kept = tirx.floordiv(count, 2) + 1 if onesided else count

        def element(row: Any, column: Any) -> Any:
            sample, part = tirx.floordiv(row, parts), tirx.floormod(row, parts)
            frequency, wanted = tirx.floordiv(column, 2), tirx.floormod(column, 2)
            turn = tirx.floormod(sample * frequency, count)
            negative = tirx.const(-1.0, "float64")
            # Rows of the imaginary part: (-sine, cosine), of the real one: (cosine, sine).
            value = tirx.Select(part == wanted, table[0, turn], table[1, turn] * tirx.const(sign, "float64"))
            value = tirx.Select(tirx.all(part == 1, wanted == 0), value * negative, value)
            return (value / count.astype("float64") if inverse else value).astype(dtype)

        return te.compute((count * parts, kept * 2), element, name="fourier_matrix")

    waves = bb.emit_te(matrix, _table(bb, length), primfunc_name_hint="fourier_matrix")
    x = reshape(bb, x, (*lead, length * parts))
    kept = tirx.floordiv(length, 2) + 1 if onesided else length
    return reshape(bb, bb.emit(relax.op.matmul(x, waves)), (*lead, kept, 2))


def open_real_inverse(bb: relax.BlockBuilder, x: Any, lead: tuple[Any, ...], length: Any) -> Any:
    """Go back from ``length // 2 + 1`` frequencies to ``length`` real samples, shape (*lead, samples, 1)."""
    dtype = dtype_of(x)
    given = normal(tirx.floordiv(length, 2) + 1)

    def matrix(table: te.Tensor) -> te.Tensor:
        count = table.shape[1]
        rows = tirx.floordiv(count, 2) + 1

        def element(row: Any, sample: Any) -> Any:
            frequency, part = tirx.floordiv(row, 2), tirx.floormod(row, 2)
            turn = tirx.floormod(sample * frequency, count)
            wave = tirx.Select(part == 0, table[0, turn], table[1, turn] * tirx.const(-1.0, "float64"))
            # Every frequency stands for its mirror image too, but the first and the middle one.
            alone = tirx.any(frequency == 0, frequency * 2 == count)
            weight = tirx.Select(alone, tirx.const(1.0, "float64"), tirx.const(2.0, "float64"))
            return (weight * wave / count.astype("float64")).astype(dtype)

        return te.compute((rows * 2, count), element, name="fourier_matrix")

    waves = bb.emit_te(matrix, _table(bb, length), primfunc_name_hint="fourier_matrix")
    x = bb.emit(relax.op.matmul(reshape(bb, x, (*lead, given * 2)), waves))
    return reshape(bb, x, (*lead, length, 1))


def open_window(bb: relax.BlockBuilder, size: Any, periodic: bool, coefficients: tuple[float, ...], dtype: str) -> Any:
    """Make a window function of open size: a sum of cosines, computed in double precision."""

    def window(count: Any) -> te.Tensor:
        period = count if periodic else tirx.max(count - 1, tirx.const(1, "int64"))

        def sample(at: Any) -> Any:
            angle = at.astype("float64") * tirx.const(2 * math.pi, "float64") / period.astype("float64")
            total: Any = tirx.const(coefficients[0], "float64")
            for order, value in enumerate(coefficients[1:], start=1):
                total = total + tirx.const(value, "float64") * tirx.cos(angle * tirx.const(float(order), "float64"))
            return total.astype(dtype)

        return te.compute((count,), sample, name="window")

    return bb.emit_te(window, size, primfunc_name_hint="window")


def open_mel_weights(bb: relax.BlockBuilder, edges: np.ndarray, length: Any, rate: int, dtype: str) -> Any:
    """Weights from a spectrum of open length to mel bands, shape (length // 2 + 1, bands).

    Parameters
    ----------
    edges : numpy.ndarray
        In hertz; see :func:`tvm_ext.frontend.onnx.ops.spectral.mel_edges`.
    length : tvm.tirx.Expr
        Of the transform.
    """

    def matrix(hertz: te.Tensor, count: Any) -> te.Tensor:
        per_second = tirx.const(float(rate), "float64")

        def point(at: Any) -> Any:
            scaled = (count + 1).astype("float64") * hertz[at]
            whole = tirx.floor(scaled / per_second)  # which rounding may have lifted to the next number
            return (whole - tirx.Select(whole * per_second > scaled, _ONE, _ZERO)).astype("int64")

        points = te.compute((len(edges),), point, name="mel_points")

        def weight(frequency: Any, band: Any) -> Any:
            low, centre, high = points[band], points[band + 1], points[band + 2]
            one = tirx.const(1, "int64")
            rising = (frequency - low).astype("float64") / tirx.max(centre - low, one).astype("float64")
            falling = (high - frequency).astype("float64") / tirx.max(high - centre, one).astype("float64")
            value = tirx.Select(tirx.all(frequency >= low, frequency <= centre), rising, _ZERO)
            value = tirx.Select(tirx.all(frequency >= centre, frequency < high), falling, value)
            return tirx.Select(tirx.all(frequency == centre, high <= centre), _ONE, value).astype(dtype)

        return te.compute((tirx.floordiv(count, 2) + 1, len(edges) - 2), weight, name="mel_weights")

    return bb.emit_te(matrix, constant(edges, "float64"), length, primfunc_name_hint="mel_weights")


def _table(bb: relax.BlockBuilder, length: Any) -> Any:
    """Cosines and sines of all multiples of a turn's ``length``-th part, float64 of shape (2, length)."""

    def table(count: Any) -> te.Tensor:
        def wave(which: Any, turn: Any) -> Any:
            angle = turn.astype("float64") * tirx.const(2 * math.pi, "float64") / count.astype("float64")
            return tirx.Select(which == 0, tirx.cos(angle), tirx.sin(angle))

        return te.compute((2, count), wave, name="waves")

    return bb.emit_te(table, length, primfunc_name_hint="waves")
