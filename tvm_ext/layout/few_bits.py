"""Matrices that stand as integers in a model: what they are worth, and the few bits that a product can read them in.

A model says ``scale * (integers - zero)`` in many forms: one operator, or casts, differences, products and reshapes of
constants. :class:`FewBits` follows those on numbers; :func:`plan_words` decides how a product keeps the integers,
:func:`stored_words` makes what it reads, and :func:`verify_words` reads that back by other means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tvm_ext.errors import GraphError
from tvm_ext.schedules.compute.weight_words import WeightFormat, WeightShape, packed_integers

GROUPS = (256, 128, 64, 32, 16)
"""Places of the reduction that may share a scale, the longest first: fewer scales are fewer bytes to read."""

_SMALLEST = 1024
"""Weights that a matrix has at least; smaller ones are floats for the kernels that others fuse with."""

_GAIN = 0.75
"""Bytes that words may take at most, as a part of those of float32."""

_CHECKED = 64
"""Rows and columns that a plan is verified on."""


@dataclass(frozen=True)
class FewBits:
    """A constant ``scale * (integers - zero)``.

    Attributes
    ----------
    integers : np.ndarray
        Of any integer type.
    scale, zero : np.ndarray
        float32, of the rank of ``integers``, and broadcast to it; a zero point need not be whole.
    """

    integers: np.ndarray
    scale: np.ndarray
    zero: np.ndarray

    @classmethod
    def of(cls, integers: np.ndarray) -> FewBits:
        """Take integers for what they are."""
        one = [1] * integers.ndim
        return cls(integers, np.ones(one, "float32"), np.zeros(one, "float32"))

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return self.integers.shape

    @property
    def floats(self) -> np.ndarray:
        """The values, float32."""
        return (self.integers.astype("float32") - self.zero) * self.scale

    def added(self, value: np.ndarray) -> FewBits | None:
        """Add a constant that broadcasts to it; None where its steps are zero or the shape would grow."""
        aligned = self._aligned(value)
        if aligned is None or not self.scale.all():
            return None
        return replace(self, zero=self.zero - aligned / self.scale)

    def multiplied(self, value: np.ndarray) -> FewBits | None:
        """Multiply by a constant that broadcasts to it; None where the shape would grow."""
        aligned = self._aligned(value)
        return None if aligned is None else replace(self, scale=self.scale * aligned)

    def reshaped(self, shape: Sequence[int]) -> FewBits:
        """Give it other extents."""
        one = [1] * len(shape)
        parts = (
            array.reshape(one) if array.size == 1 else np.broadcast_to(array, self.shape).reshape(shape)
            for array in self._parts[1:]
        )
        return FewBits(self.integers.reshape(shape), *parts)

    def permuted(self, axes: Sequence[int]) -> FewBits:
        """Permute its axes."""
        return FewBits(*(array.transpose(axes) for array in self._parts))

    def cut(self, slices: Sequence[slice]) -> FewBits:
        """Take a part of it."""
        parts = (
            array[tuple(slice(None) if extent == 1 else part for extent, part in zip(array.shape, slices, strict=True))]
            for array in self._parts[1:]
        )
        return FewBits(self.integers[tuple(slices)], *parts)

    @property
    def _parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.integers, self.scale, self.zero

    def _aligned(self, value: np.ndarray) -> np.ndarray | None:
        if value.ndim > len(self.shape):
            return None
        aligned = value.astype("float32").reshape((1,) * (len(self.shape) - value.ndim) + value.shape)
        fits = all(extent in (1, own) for extent, own in zip(aligned.shape, self.shape, strict=True))
        return aligned if fits else None


@dataclass(frozen=True)
class WordPlan:
    """How a product keeps a matrix of few bits.

    Attributes
    ----------
    bits, group : int
        Of the format.
    symmetric : bool
        The zero point is the middle of the range.
    lowest : int
        Integer of the model that is stored as zero.
    nbytes : int
        All that is stored.
    """

    bits: int
    group: int
    symmetric: bool
    lowest: int
    nbytes: int

    @property
    def format(self) -> WeightFormat:
        """The format."""
        return WeightFormat(self.bits, self.group, self.symmetric)


def plan_words(matrix: FewBits, lanes: int) -> WordPlan | None:
    """Decide in which format a product keeps a matrix.

    Parameters
    ----------
    matrix : FewBits
        ``[reduction, columns]``.
    lanes : int
        Columns of a vector.

    Returns
    -------
    WordPlan or None
        None where floats are as good: of matrices that are small or narrow, and where no format has its scales.
    """
    integers = matrix.integers
    if integers.ndim != 2 or integers.size < _SMALLEST or not np.isfinite(matrix.scale).all():
        return None
    if not np.isfinite(matrix.zero).all():
        return None
    low, high = int(integers.min()), int(integers.max())
    if high - low < 16:
        bits, starts = 4, (-8, 0)
    elif high - low < 256:
        bits, starts = 8, (-128, 0)
    else:
        return None
    top = (1 << bits) - 1
    lowest = next((start for start in starts if start <= low and high <= start + top), low)
    group = next((size for size in GROUPS if _shared(matrix.scale, size) and _shared(matrix.zero, size)), None)
    if group is None:
        return None
    symmetric = bool((matrix.zero == lowest + (1 << (bits - 1))).all())
    shape = WeightShape(integers.shape[0], integers.shape[1], lanes, WeightFormat(bits, group, symmetric))
    if shape.nbytes > _GAIN * 4 * integers.size:
        return None
    return WordPlan(bits, group, symmetric, lowest, shape.nbytes)


def stored_words(matrix: FewBits, plan: WordPlan, lanes: int) -> tuple[np.ndarray, ...]:
    """Make the arrays that a product reads; see :func:`tvm_ext.schedules.compute.weight_words.packed_integers`."""
    integers = (matrix.integers.astype("int32") - plan.lowest).astype("uint8")
    scales = _by_group(matrix.scale, plan.group, integers.shape)
    zeros = None if plan.symmetric else _by_group(matrix.zero - np.float32(plan.lowest), plan.group, integers.shape)
    return packed_integers(integers, scales, zeros, lanes, plan.format)


def verify_words(matrix: FewBits, plan: WordPlan, lanes: int, stored: Sequence[np.ndarray]) -> None:
    """Read some weights back, bit by bit, and compare them with what they stand for.

    Raises
    ------
    GraphError
        If one differs by more than rounding.
    """
    reduction, columns = matrix.shape
    form = plan.format
    generator = np.random.default_rng(0)
    rows = np.unique(np.append(generator.integers(0, reduction, _CHECKED), reduction - 1))
    places = np.unique(np.append(generator.integers(0, columns, _CHECKED), columns - 1))
    k, n = (index.astype("int64") for index in np.meshgrid(rows, places, indexing="ij"))
    width = stored[0].shape[2]
    at = (n // width, k // form.per_word, n % width)
    grouped = (n // width, k // form.group, n % width)
    shift = k % form.per_word * 8 if form.bits == 8 else 8 * (k % 4) + 4 * (k % 8 // 4)
    levels = (stored[0][at].astype("int64") >> shift) & ((1 << form.bits) - 1)
    scale = stored[1][grouped].astype("float64")
    offset = scale * form.middle if form.symmetric else stored[2][grouped].astype("float64")
    wanted = matrix.cut((slice(None), slice(None))).floats[np.ix_(rows, places)].astype("float64")
    bound = 1e-5 * (np.abs(scale) * (1 << form.bits) + np.abs(offset))
    if not (np.abs(scale * levels - offset - wanted) <= bound).all():
        raise GraphError(
            f"the plan {plan} for weights of shape {matrix.shape} is not valid; this is a fault of tvm-ext"
        )


def _shared(values: np.ndarray, group: int) -> bool:
    """Whether consecutive places of the reduction, so many of them, have the same number."""
    if values.shape[0] == 1:
        return True
    first = values[::group]
    return bool((np.repeat(first, group, 0)[: values.shape[0]] == values).all())


def _by_group(values: np.ndarray, group: int, shape: tuple[int, ...]) -> np.ndarray:
    groups = -(-shape[0] // group)
    parts = values if values.shape[0] == 1 else values[::group]
    return np.ascontiguousarray(np.broadcast_to(parts, (groups, shape[1])), "float32")
