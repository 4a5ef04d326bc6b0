"""Bring weights into the format that a decoder is compiled for: text to format, floats to integers."""

from __future__ import annotations

import re

import numpy as np

from tvm_ext.errors import ModelError, OptionError
from tvm_ext.schedules.compute.weight_words import WeightFormat, packed_floats, packed_integers

GROUPS = (32, 64, 128, 256)
"""Places of the reduction that may share a scale."""

_INTEGERS = re.compile(r"int([48])(?:-(\d+))?(-asymmetric)?")


def weight_format(text: str) -> WeightFormat:
    """Read the name of a format: ``float32``, ``bfloat16``, ``int8``, ``int4``, ``int4-128``, ``int4-32-asymmetric``.

    Raises
    ------
    OptionError
        If it is none.
    """
    if text == "float32":
        return WeightFormat()
    if text == "bfloat16":
        return WeightFormat(16)
    matched = _INTEGERS.fullmatch(text) if isinstance(text, str) else None
    if matched is None:
        raise OptionError(
            f"option weights: {text!r} is no format of weights; candidates are float32, bfloat16, int8, int4, and such "
            "as int4-128 (groups of 128 that share a scale, 32 by default) and int4-32-asymmetric"
        )
    group = int(matched[2] or GROUPS[0])
    if group not in GROUPS:
        raise OptionError(f"option weights: groups of {group} weights; candidates are {', '.join(map(str, GROUPS))}")
    return WeightFormat(int(matched[1]), group, matched[3] is None)


def quantized(weight: np.ndarray, form: WeightFormat) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Round a matrix to integers, group by group of the reduction.

    Symmetric: the largest magnitude of a group becomes the largest integer. Asymmetric: the range of a group, zero
    included, is the range of the integers.

    Parameters
    ----------
    weight : numpy.ndarray
        ``[reduction, columns]``.
    form : WeightFormat
        Of integers.

    Returns
    -------
    tuple
        Integers ``[reduction, columns]``, scales and zero points ``[groups, columns]``, None if symmetric.

    Raises
    ------
    ModelError
        If a weight is no finite number.
    """
    if not np.isfinite(weight).all():
        raise ModelError("a weight is infinite or NaN, for which there is no integer; keep weights='float32'")
    reduction, columns = weight.shape
    groups, highest = -(-reduction // form.group), (1 << form.bits) - 1
    padded = np.zeros((groups * form.group, columns), "float32")
    padded[:reduction] = weight
    parts = padded.reshape(groups, form.group, columns)
    if form.symmetric:
        scales = np.abs(parts).max(1) / np.float32(form.middle - 1)
        zeros = np.full_like(scales, form.middle)
    else:
        low, high = np.minimum(parts.min(1), 0), np.maximum(parts.max(1), 0)
        scales = (high - low) / np.float32(highest)
        zeros = np.round(-low / np.where(scales > 0, scales, 1))
    scales = np.where(scales > 0, scales, 1).astype("float32")
    integers = np.clip(np.round(parts / scales[:, None]) + zeros[:, None], 0, highest).astype("uint8")
    return integers.reshape(-1, columns)[:reduction], scales, None if form.symmetric else zeros


def dequantized(integers: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, form: WeightFormat) -> np.ndarray:
    """Give the float32 weights that integers stand for."""
    reduction = integers.shape[0]
    points = np.float32(form.middle) if zeros is None else np.repeat(zeros.astype("float32"), form.group, 0)[:reduction]
    return np.repeat(scales, form.group, 0)[:reduction] * (integers.astype("float32") - points)


def stored(weight: np.ndarray, form: WeightFormat, lanes: int) -> tuple[np.ndarray, ...]:
    """Bring a float32 matrix ``[reduction, columns]`` into the arrays that kernels read."""
    if not form.is_integer:
        return packed_floats(weight, lanes, form.bits)
    return packed_integers(*quantized(weight, form), lanes, form)
