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


def _scaled(parts: Sequence[torch.Tensor], sizes: Sequence[Any], normalization: int) -> tuple[torch.Tensor, ...]:
    """Normalise what a transform of axes of these sizes gives."""
    count = math.prod(sizes)
    if type(count) is int:
        scale = _SCALES[normalization](count)
        return tuple(part * scale for part in parts)
    if normalization == 0:
        return tuple(parts)
    # As a tensor: a float made of an open extent would be fixed to the example's.
    divisor = torch.full((1,), count, dtype=parts[0].dtype)
    divisor = divisor.sqrt() if normalization == 1 else divisor
    return tuple(part / divisor for part in parts)


def real_to_complex(
    constant: Constant, data: torch.Tensor, axes: Sequence[int], normalization: int, one_sided: bool
) -> Parts:
    """``aten._fft_r2c``: of real data, along the last of the axes one-sided if so asked."""
    sizes = [data.shape[axis] for axis in axes]
    length = sizes[-1]
    re, im = _along(constant, data, None, axes[-1], length // 2 + 1 if one_sided else length, False)
    for axis in axes[:-1]:
        re, im = _along(constant, re, im, axis, re.shape[axis], False)
    re, im = _scaled((re, im), sizes, normalization)
    return re, im


def complex_to_complex(
    constant: Constant, re: torch.Tensor, im: torch.Tensor, axes: Sequence[int], normalization: int, forward: bool
) -> Parts:
    """``aten._fft_c2c``."""
    sizes = [re.shape[axis] for axis in axes]
    for axis in axes:
        re, im = _along(constant, re, im, axis, re.shape[axis], not forward)
    re, im = _scaled((re, im), sizes, normalization)
    return re, im


def complex_to_real(
    constant: Constant, re: torch.Tensor, im: torch.Tensor, axes: Sequence[int], normalization: int, length: int
) -> torch.Tensor:
    """``aten._fft_c2r``: back to ``length`` real samples along the last of the axes."""
    sizes = [*(re.shape[axis] for axis in axes[:-1]), length]
    for axis in axes[:-1]:
        re, im = _along(constant, re, im, axis, re.shape[axis], True)
    last = axes[-1]
    kept = length // 2 + 1
    # Every frequency stands for its mirror image too, but the first, and the middle one of an even length.
    if type(length) is int and type(re.shape[last]) is int:
        cosines, sines = _waves(kept, length, length)
        weights = np.full((kept, 1), 2.0)
        weights[0] = 1.0
        if length % 2 == 0:
            weights[-1] = 1.0
        cosine, sine = constant(weights * cosines, re.dtype), constant(weights * sines, re.dtype)
    else:
        cosine, sine = _open_waves(kept, length, length, re.dtype)
        alone = 2 * torch.arange(kept)[:, None] % length == 0
        twice = torch.where(alone, 1.0, 2.0).to(re.dtype)
        cosine, sine = twice * cosine, twice * sine
    re, im = re.narrow(last, 0, kept), im.narrow(last, 0, kept)
    (result,) = _scaled((_times(re, last, cosine) - _times(im, last, sine),), sizes, normalization)
    return result


TRANSFORMS: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten._fft_r2c.default: real_to_complex,
    torch.ops.aten._fft_c2c.default: complex_to_complex,
    torch.ops.aten._fft_c2r.default: complex_to_real,
}
"""By operator: functions of the parts of their data, and of the operator's other arguments."""
