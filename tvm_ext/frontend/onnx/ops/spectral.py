"""Fourier transforms as matrix products, window functions and mel weights.

A transform is linear, so for a known length it is a product with a constant matrix (for an open one see
:mod:`tvm_ext.frontend.onnx.ops.open_spectral`); real and imaginary parts are
interleaved in the contracted axis and in the result, which makes it one product for real and complex data alike.
Lengths whose matrix would be too large are split in two factors (Cooley and Tukey 1965).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvm_ext.frontend.onnx.ops.base import (
    Converter,
    Node,
    constant,
    dtype_of,
    element_type,
    emit,
    reshape,
    transpose,
)
from tvm_ext.frontend.onnx.ops.extents import can_prove, is_extent, is_number
from tvm_ext.frontend.onnx.ops.open_spectral import (
    fit_open_axis,
    open_mel_weights,
    open_real_inverse,
    open_transform,
    open_window,
)

# Elements of a transform's matrix: above the first a length is split, above the second it cannot be had.
_SPLIT_ABOVE = 2**23
_REFUSE_ABOVE = 2**26


def _phase(rows: int, columns: int, length: int) -> np.ndarray:
    # Reduced as integers first: the angle of a large product would lose its fraction.
    return 2.0 * np.pi * (np.outer(np.arange(rows), np.arange(columns)) % length) / length


def fourier_matrix(length: int, kept: int, parts: int, inverse: bool) -> np.ndarray:
    """Matrix of the transform of ``length`` samples to its first ``kept`` frequencies.

    Parameters
    ----------
    parts : int
        2 for complex samples, 1 for real ones.
    inverse : bool
        Of the inverse transform, scaled by 1 / length.

    Returns
    -------
    np.ndarray
        float64, shape (length · parts, kept · 2); parts are interleaved on both axes.
    """
    phase = _phase(length, kept, length)
    cosine, sine = np.cos(phase), np.sin(phase) * (1.0 if inverse else -1.0)
    matrix = np.empty((length, parts, kept, 2))
    matrix[:, 0, :, 0], matrix[:, 0, :, 1] = cosine, sine
    if parts == 2:
        matrix[:, 1, :, 0], matrix[:, 1, :, 1] = -sine, cosine
    return matrix.reshape(length * parts, kept * 2) / (length if inverse else 1)


def real_inverse_matrix(length: int, given: int) -> np.ndarray:
    """Matrix from the first ``given`` frequencies of a real signal to its ``length`` samples.

    Returns
    -------
    np.ndarray
        float64, shape (given · 2, length).
    """
    phase = _phase(given, length, length)
    # Every frequency stands for its mirror image too, but the first, and the middle one of an even length.
    weight = np.full((given, 1), 2.0)
    weight[0] = 1.0
    if length % 2 == 0 and given > length // 2:
        weight[length // 2] = 1.0
    return np.stack([weight * np.cos(phase), -weight * np.sin(phase)], 1).reshape(given * 2, length) / length


def _balanced_factor(length: int) -> int:
    return max(factor for factor in range(1, int(length**0.5) + 1) if length % factor == 0)


def _product(bb: relax.BlockBuilder, x: Any, lead: tuple[Any, ...], matrix: np.ndarray, dtype: str) -> Any:
    x = reshape(bb, x, (*lead, matrix.shape[0]))
    return bb.emit(relax.op.matmul(x, constant(matrix, dtype)))


def fourier_transform(
    node: Node, bb: relax.BlockBuilder, x: Any, lead: tuple[Any, ...], length: int, kept: int, parts: int, inverse: bool
) -> Any:
    """Transform the axis before the last.

    Parameters
    ----------
    x : relax.Expr
        Shape (*lead, length, parts); parts as in :func:`fourier_matrix`.

    Returns
    -------
    relax.Expr
        Shape (*lead, kept, 2).

    Raises
    ------
    UnsupportedOperatorError
        If the length is a large prime, or has a large prime factor.
    """
    dtype, elements = dtype_of(x), length * parts * kept * 2
    factor = _balanced_factor(length)
    if elements <= _SPLIT_ABOVE or (factor == 1 and elements <= _REFUSE_ABOVE):
        matrix = fourier_matrix(length, kept, parts, inverse)
        return reshape(bb, _product(bb, x, lead, matrix, dtype), (*lead, kept, 2))
    if factor == 1:
        node.refuse(f"a transform of the prime length {length} is too large; pad the signal to a length with factors")
    # Sample t = other·t1 + t2, frequency k = k1 + factor·k2: transform t1, turn by the twiddle factors, transform t2.
    other, rank = length // factor, len(lead)
    keep_lead = tuple(range(rank))
    x = transpose(bb, reshape(bb, x, (*lead, factor, other, parts)), (*keep_lead, rank + 1, rank, rank + 2))
    x = fourier_transform(node, bb, x, (*lead, other), factor, factor, parts, inverse)
    angle = _phase(other, factor, length)
    turn = np.sin(angle) * (1.0 if inverse else -1.0)
    cosine, sine = np.cos(angle)[..., None], np.stack([-turn, turn], -1)
    turned = relax.op.add(
        relax.op.multiply(x, constant(cosine, dtype)),
        relax.op.multiply(relax.op.flip(x, rank + 2), constant(sine, dtype)),
    )
    x = transpose(bb, bb.emit(turned), (*keep_lead, rank + 1, rank, rank + 2))
    x = fourier_transform(node, bb, x, (*lead, factor), other, other, 2, inverse)
    x = transpose(bb, x, (*keep_lead, rank + 1, rank, rank + 2))
    x = reshape(bb, x, (*lead, length, 2))
    return x if kept == length else bb.emit(relax.op.strided_slice(x, [rank], [0], [kept]))


def _fit_axis(bb: relax.BlockBuilder, x: Any, shape: tuple[Any, ...], axis: int, length: int) -> Any:
    if not isinstance(shape[axis], int):
        return fit_open_axis(bb, x, axis, length)
    if shape[axis] > length:
        return bb.emit(relax.op.strided_slice(x, [axis], [0], [length]))
    if shape[axis] < length:
        widths = [0] * (2 * len(shape))
        widths[2 * axis + 1] = length - shape[axis]
        return bb.emit(relax.op.nn.pad(x, widths))
    return x


class DFT(Converter):
    """Discrete Fourier transform along one axis: forward, inverse, one-sided, and back to a real signal."""

    @classmethod
    def _impl_v17(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        node = Node("DFT", attr, params)
        return cls._transform(node, bb, inputs, node.integer("axis", 1))

    @classmethod
    def _impl_v20(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict[str, Any], params: list[Any]) -> Any:
        node = Node("DFT", attr, params)
        axis = -2 if inputs[2] is None else int(node.scalar(inputs[2], "axis"))
        return cls._transform(node, bb, inputs, axis)

    @staticmethod
    def _transform(node: Node, bb: relax.BlockBuilder, inputs: Any, axis: int) -> Any:
        x = inputs[0]
        shape = node.dims(x, "input")
        inverse, onesided = bool(node.integer("inverse", 0)), bool(node.integer("onesided", 0))
        rank, parts = len(shape), shape[-1]
        axis = node.in_range(axis, rank)
        if not isinstance(parts, int) or parts not in (1, 2) or axis == rank - 1:
            node.damaged(
                f"input has shape {shape} and axis {axis}; the last dimension holds 1 or 2 parts and is not it"
            )
        if onesided and parts != (2 if inverse else 1):
            kind = "an inverse one-sided transform needs a complex" if inverse else "a one-sided transform needs a real"
            node.damaged(f"{kind} input, the last dimension is {parts}")
        if inputs[1] is not None:
            length = _length(node, inputs[1], "dft_length")
        else:
            length = 2 * (shape[axis] - 1) if onesided and inverse else shape[axis]
        if isinstance(length, int) and length < 1:
            node.damaged(f"the transform has length {length}, at least 1 was expected")
        order = (*(index for index in range(rank - 1) if index != axis), axis, rank - 1)
        back = tuple(np.argsort(order))
        lead = tuple(shape[index] for index in order[:-2])
        given = length // 2 + 1 if onesided and inverse else length
        if not isinstance(length, int):
            given = tirx.floordiv(length, 2) + 1 if onesided and inverse else length
            if not can_prove(given == shape[axis]):
                x = fit_open_axis(bb, emit(bb, x), axis, given)
            x = transpose(bb, emit(bb, x), order)
            if onesided and inverse:
                x = open_real_inverse(bb, x, lead, length)
            else:
                x = open_transform(bb, x, lead, length, onesided, parts, inverse)
            return transpose(bb, x, back)
        x = transpose(bb, _fit_axis(bb, x, shape, axis, given), order)
        if onesided and inverse:
            matrix = real_inverse_matrix(length, given)
            if matrix.size > _REFUSE_ABOVE:
                node.refuse(f"an inverse one-sided transform of length {length} is too large")
            x = reshape(bb, _product(bb, x, lead, matrix, dtype_of(x)), (*lead, length, 1))
        else:
            kept = length // 2 + 1 if onesided else length
            x = fourier_transform(node, bb, x, lead, length, kept, parts, inverse)
        return transpose(bb, x, back)


def _length(node: Node, value: Any, name: str) -> Any:
    """Length that an input holds: a number, or an extent."""
    if is_extent(value) and not is_number(value):
        return value
    if isinstance(value, relax.ShapeExpr) and len(value.values) == 1 and not is_number(value.values[0]):
        return value.values[0]
    return int(node.scalar(value, name))


class STFT(Converter):
    """Short-time Fourier transform: overlapping frames, a window, and one product for all frames."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the spectra, shape (batch, frames, frequencies, 2)."""
        signal, window = emit(bb, inputs[0]), inputs[2]
        shape = node.dims(signal, "signal")
        if len(shape) == 2:
            shape = (*shape, 1)
            signal = reshape(bb, signal, shape)
        if len(shape) != 3 or not isinstance(shape[2], int) or shape[2] not in (1, 2):
            node.damaged(f"input signal has shape {shape}, (batch, length, 1 or 2) was expected")
        batch, samples, parts = shape
        step = int(node.scalar(inputs[1], "frame_step"))
        if inputs[3] is not None:
            length = int(node.scalar(inputs[3], "frame_length"))
        else:
            length = samples if window is None else node.shape(window, "window")[0]
        if not isinstance(length, int):
            node.refuse(f"frames are as long as the signal, whose extent {length} is open; give a frame_length")
        if window is not None and node.shape(window, "window") != (length,):
            node.damaged(f"input window has shape {node.shape(window, 'window')}, ({length},) was expected")
        onesided = bool(node.integer("onesided", 1))
        if onesided and parts == 2:
            node.damaged("a one-sided transform needs a real signal")
        if length < 1 or step < 1 or (isinstance(samples, int) and length > samples):
            node.damaged(f"frames of {length} every {step} samples do not fit a signal of {samples}")
        if isinstance(samples, int):
            count: Any = 1 + (samples - length) // step
        else:  # of a signal that is shorter than a frame there is none
            count = tirx.max(tirx.floordiv(samples - length + step, step), tirx.const(0, "int64"))

        def frames(x: te.Tensor) -> te.Tensor:
            return te.compute((batch, count, length, parts), lambda b, f, t, p: x[b, f * step + t, p], name="frames")

        x = bb.emit_te(frames, signal, primfunc_name_hint="frames")
        if window is not None:
            x = bb.emit(relax.op.multiply(x, reshape(bb, window, (length, 1))))
        kept = length // 2 + 1 if onesided else length
        return fourier_transform(node, bb, x, (batch, count), length, kept, parts, inverse=False)


class _Window(Converter):
    """A window function, a constant where its size is known; no size that is computed from values."""

    coefficients: tuple[float, ...]

    @classmethod
    def samples(cls, size: int, periodic: bool) -> np.ndarray:
        """Make a window of a known size."""
        angle = 2.0 * np.pi * np.arange(size) / (size if periodic else max(size - 1, 1))
        return np.asarray(sum(value * np.cos(order * angle) for order, value in enumerate(cls.coefficients)))

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the window."""
        if is_extent(inputs[0]) and not is_number(inputs[0]):
            dtype = element_type(node.integer("output_datatype", 1))
            return open_window(bb, inputs[0], bool(node.integer("periodic", 1)), cls.coefficients, dtype)
        size = int(node.scalar(inputs[0], "size"))
        if size < 0:
            node.damaged(f"input size is {size}, at least 0 was expected")
        dtype = element_type(node.integer("output_datatype", 1))
        return constant(cls.samples(size, bool(node.integer("periodic", 1))), dtype)


class HannWindow(_Window):
    """Raised cosine."""

    coefficients = (0.5, -0.5)


class HammingWindow(_Window):
    """Raised cosine on a pedestal, with the coefficients 25/46 and 21/46."""

    coefficients = (25 / 46, -21 / 46)


class BlackmanWindow(_Window):
    """Sum of three cosines."""

    coefficients = (0.42, -0.5, 0.08)


def mel_edges(bins: int, lowest: float, highest: float) -> np.ndarray:
    """Edges and peaks of triangular filters in hertz, evenly spaced on the mel scale: ``bins + 2`` of them."""
    first, last = (2595.0 * np.log10(1.0 + hertz / 700.0) for hertz in (lowest, highest))
    # The operator spaces its points by 1 / (bins + 2), so that the last filter ends a little below the upper edge.
    edges = first + np.arange(bins + 2) * ((last - first) / (bins + 2))
    return np.asarray(700.0 * (10.0 ** (edges / 2595.0) - 1.0))


def mel_weights(bins: int, length: int, rate: int, lowest: float, highest: float) -> np.ndarray:
    """Triangular filters, evenly spaced on the mel scale.

    Parameters
    ----------
    bins : int
        Number of filters.
    length : int
        Length of the transform whose spectrum is filtered.
    rate : int
        Samples per second.
    lowest, highest : float
        Edges of the first and of the last filter, in hertz.

    Returns
    -------
    np.ndarray
        float64, shape (length // 2 + 1, bins).
    """
    points = ((length + 1) * mel_edges(bins, lowest, highest) // rate).astype(int)
    weights = np.zeros((length // 2 + 1, bins))
    for index in range(bins):
        low, centre, high = points[index : index + 3]
        if centre == low:
            weights[centre, index] = 1.0
        else:
            weights[low : centre + 1, index] = np.arange(centre - low + 1) / (centre - low)
        if high > centre:
            weights[centre:high, index] = np.arange(high - centre, 0, -1) / (high - centre)
    return weights


class MelWeightMatrix(Converter):
    """Weights from a spectrum to mel bands: a constant where the length of the transform is known."""

    @classmethod
    def convert(cls, node: Node, bb: relax.BlockBuilder, inputs: Any) -> Any:
        """Give the matrix."""
        names = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")
        length = _length(node, inputs[1], names[1])
        bins, rate, low, high = (node.scalar(inputs[index], names[index]) for index in (0, 2, 3, 4))
        if not 0 <= low <= high <= rate / 2:
            node.damaged(f"the edges {low} and {high} Hz are not within 0 and half the sample rate of {rate} Hz")
        dtype = element_type(node.integer("output_datatype", 1))
        if not isinstance(length, int):
            return open_mel_weights(bb, mel_edges(int(bins), float(low), float(high)), length, int(rate), dtype)
        weights = mel_weights(int(bins), length, int(rate), float(low), float(high))
        return constant(weights, dtype)


CONVERTERS = {
    ("", "DFT"): DFT,
    ("", "STFT"): STFT,
    ("", "HannWindow"): HannWindow,
    ("", "HammingWindow"): HammingWindow,
    ("", "BlackmanWindow"): BlackmanWindow,
    ("", "MelWeightMatrix"): MelWeightMatrix,
}
