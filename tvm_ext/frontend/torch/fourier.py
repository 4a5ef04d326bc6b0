"""Fourier transforms on real and imaginary parts: products with matrices, constant ones where lengths are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

Parts = tuple[torch.Tensor, torch.Tensor]
Constant = Callable[[np.ndarray, torch.dtype], torch.Tensor]
"""Gives a constant of some type in the program that is written."""

LARGEST_MATRIX = 2**24
"""Elements of the largest matrix that a transform is made of: 64 MiB in single precision, twice (cosines and sines)."""

_SCALES: Mapping[int, Callable[[int], float]] = {0: lambda count: 1.0, 1: lambda count: count**-0.5, 2: lambda n: 1 / n}
"""By PyTorch's number for a normalisation: none, by the root of the length, by the length."""


def _waves(rows: int, columns: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines of shape (rows, columns).

    Raises
    ------
    NotImplementedError
        If there were too many.
    """
    if rows * columns > LARGEST_MATRIX:
        raise NotImplementedError(
            f"its length {length} asks for a matrix of {rows} x {columns} elements, more than {LARGEST_MATRIX}"
        )
    # Reduced as integers first: the angle of a large product would lose its fraction.
    turns = np.outer(np.arange(rows), np.arange(columns)) % length
    angles = 2 * np.pi * turns / length
    # Exactly zero where it is: the sign of what a rounding leaves would turn the angle of a real number to -pi.
    return np.cos(angles), np.where(2 * turns % length == 0, 0.0, np.sin(angles))


def _open_waves(rows: Any, columns: Any, length: Any, dtype: torch.dtype) -> Parts:
    """Cosines and sines as :func:`_waves` gives them, computed by the program."""
    turns = torch.arange(rows)[:, None] * torch.arange(columns)[None, :] % length
    angles = turns.double() * (2 * math.pi) / length
    sines = torch.where(2 * turns % length == 0, torch.zeros_like(angles), angles.sin())
    return angles.cos().to(dtype), sines.to(dtype)


def _times(data: torch.Tensor, axis: int, matrix: torch.Tensor) -> torch.Tensor:
    if data.dim() == 1:  # PyTorch decomposes the product of a vector into operators that work in place
        return torch.matmul(data[None], matrix)[0]
    return torch.matmul(data.transpose(axis, -1), matrix).transpose(axis, -1)


def _along(constant: Constant, re: torch.Tensor, im: torch.Tensor | None, axis: int, kept: int, inverse: bool) -> Parts:
    """Transform one axis to its first ``kept`` frequencies, unscaled."""
    if type(re.shape[axis]) is int and type(kept) is int:
        cosines, sines = _waves(re.shape[axis], kept, re.shape[axis])
        cosine = constant(cosines, re.dtype)
        sine = constant(sines if inverse else 0.0 - sines, re.dtype)
    else:
        cosine, sine = _open_waves(re.shape[axis], kept, re.shape[axis], re.dtype)
        sine = sine if inverse else 0.0 - sine
    if im is None:
        return _times(re, axis, cosine), _times(re, axis, sine)
    return (
        _times(re, axis, cosine) - _times(im, axis, sine),
        _times(re, axis, sine) + _times(im, axis, cosine),
    )


def _scale(data: torch.Tensor, axes: Sequence[int], normalization: int, last: int | None = None) -> float:
    sizes = [data.shape[axis] for axis in axes]
    if last is not None:
        sizes[-1] = last
    return _SCALES[normalization](math.prod(sizes))


def real_to_complex(
    constant: Constant, data: torch.Tensor, axes: Sequence[int], normalization: int, one_sided: bool
) -> Parts:
    """``aten._fft_r2c``: of real data, along the last of the axes one-sided if so asked."""
    scale = _scale(data, axes, normalization)
    length = data.shape[axes[-1]]
    re, im = _along(constant, data, None, axes[-1], length // 2 + 1 if one_sided else length, False)
    for axis in axes[:-1]:
        re, im = _along(constant, re, im, axis, re.shape[axis], False)
    return re * scale, im * scale


def complex_to_complex(
    constant: Constant, re: torch.Tensor, im: torch.Tensor, axes: Sequence[int], normalization: int, forward: bool
) -> Parts:
    """``aten._fft_c2c``."""
    scale = _scale(re, axes, normalization)
    for axis in axes:
        re, im = _along(constant, re, im, axis, re.shape[axis], not forward)
    return re * scale, im * scale


def complex_to_real(
    constant: Constant, re: torch.Tensor, im: torch.Tensor, axes: Sequence[int], normalization: int, length: int
) -> torch.Tensor:
    """``aten._fft_c2r``: back to ``length`` real samples along the last of the axes."""
    scale = _scale(re, axes, normalization, length)
    for axis in axes[:-1]:
        re, im = _along(constant, re, im, axis, re.shape[axis], True)
    last = axes[-1]
    if type(length) is not int or type(re.shape[last]) is not int:
        raise NotImplementedError(f"it goes back to {length} real samples, a length that is open; give it a size (n=)")
    kept = length // 2 + 1
    cosines, sines = _waves(kept, length, length)
    # Every frequency stands for its mirror image too, but the first, and the middle one of an even length.
    weights = np.full((kept, 1), 2.0)
    weights[0] = 1.0
    if length % 2 == 0:
        weights[-1] = 1.0
    re, im = re.narrow(last, 0, kept), im.narrow(last, 0, kept)
    result = _times(re, last, constant(weights * cosines, re.dtype))
    return (result - _times(im, last, constant(weights * sines, re.dtype))) * scale


TRANSFORMS: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten._fft_r2c.default: real_to_complex,
    torch.ops.aten._fft_c2c.default: complex_to_complex,
    torch.ops.aten._fft_c2r.default: complex_to_real,
}
"""By operator: functions of the parts of their data, and of the operator's other arguments."""
