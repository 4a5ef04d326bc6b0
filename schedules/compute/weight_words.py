"""Weights of a product in words of 32 bits: how they are stored, as plain data.

A word holds the weights of one column at 1 (float32), 2 (bfloat16), 4 (8 bits) or 8 (4 bits) consecutive places of the
reduction, where :meth:`WeightFormat.shift` says. Words of neighbouring columns lie side by side, as many as a tile has
columns, so that a vector load brings one word of each column, which masks and shifts take apart lane by lane: no
shuffles.

Integers are unsigned; ``weight = scale * (integer - zero)`` with a scale and a zero point for each column and group of
consecutive places of the reduction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

WORD_BITS = 32

TILE_VECTORS = 4
"""Vectors of columns in a tile."""


@dataclass(frozen=True)
class WeightFormat:
    """In what form the weights of a product are kept.

    Attributes
    ----------
    bits : int
        32 (float32), 16 (bfloat16), 8 or 4 (integers).
    group : int
        Consecutive places of the reduction that share a scale; 0 for floats, which have none.
    symmetric : bool
        The zero point is the middle of the range of integers, and is not stored.
    """

    bits: int = 32
    group: int = 0
    symmetric: bool = True

    @property
    def per_word(self) -> int:
        """Weights of a word."""
        return WORD_BITS // self.bits

    def shift(self, place: int) -> int:
        """Say at which bit of a word a place begins.

        Of four bits each, places 0 to 3 are the low halves of the four bytes, and places 4 to 7 the high ones: the
        bytes that a mask leaves are then places that lie side by side.
        """
        return 8 * (place % 4) + 4 * (place // 4) if self.bits == 4 else self.bits * place

    @property
    def is_integer(self) -> bool:
        """Whether there are scales."""
        return self.group > 0

    @property
    def middle(self) -> int:
        """The zero point of symmetric weights."""
        return 1 << (self.bits - 1)

    def __str__(self) -> str:
        if not self.is_integer:
            return "float32" if self.bits == WORD_BITS else "bfloat16"
        return f"int{self.bits}" + f"-{self.group}" + ("" if self.symmetric else "-asymmetric")


@dataclass(frozen=True)
class WeightShape:
    """A matrix of weights in a format, cut into tiles of columns.

    Attributes
    ----------
    reduction, columns : int
        Of the matrix.
    lanes : int
        Columns of a vector.
    format : WeightFormat
    """

    reduction: int
    columns: int
    lanes: int
    format: WeightFormat

    @property
    def tiles(self) -> int:
        """Tiles of columns; the last is filled up with zeros."""
        return -(-self.columns // self.tile_columns)

    @property
    def tile_columns(self) -> int:
        """Columns of a tile."""
        return TILE_VECTORS * self.lanes

    @property
    def words(self) -> int:
        """Words of a column; the last is filled up with zeros."""
        return -(-self.reduction // self.format.per_word)

    @property
    def groups(self) -> int:
        """Groups of a column, the last of which may be shorter."""
        return -(-self.reduction // self.format.group) if self.format.is_integer else 0

    @property
    def stored(self) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Shape and type of each array that is stored: words; for integers scales, and what zero points amount to."""
        words = ((self.tiles, self.words, self.tile_columns), "uint32")
        if not self.format.is_integer:
            return (words,)
        grouped = ((self.tiles, self.groups, self.tile_columns), "float32")
        return (words, grouped) if self.format.symmetric else (words, grouped, grouped)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is stored."""
        return sum(4 * int(np.prod(shape)) for shape, _ in self.stored)


def packed_floats(weight: np.ndarray, lanes: int, bits: int = WORD_BITS) -> tuple[np.ndarray, ...]:
    """Store a matrix of floats.

    Parameters
    ----------
    weight : numpy.ndarray
        ``[reduction, columns]``, float32; rounded to the nearest bfloat16 if there are 16 bits.
    lanes, bits : int
        See above.

    Returns
    -------
    tuple of numpy.ndarray
        As :attr:`WeightShape.stored` says.
    """
    shape = WeightShape(weight.shape[0], weight.shape[1], lanes, WeightFormat(bits))
    values = np.ascontiguousarray(weight, "float32").view("uint32")
    if bits == 16:
        values = rounded_to_bfloat16(values) >> np.uint32(16)
    return (_words(values, shape),)


def rounded_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round the bits of float32 numbers to those of the nearest bfloat16, to even in the middle; NaN stays NaN."""
    rounded = values + np.uint32(0x7FFF) + (values >> np.uint32(16) & np.uint32(1))
    is_nan = (values & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(is_nan, values | np.uint32(0x00400000), rounded) & np.uint32(0xFFFF0000)


def packed_integers(
    integers: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, lanes: int, weights: WeightFormat
) -> tuple[np.ndarray, ...]:
    """Store a matrix of quantised weights.

    Parameters
    ----------
    integers : numpy.ndarray
        ``[reduction, columns]``, uint8, below 16 if there are 4 bits.
    scales : numpy.ndarray
        ``[groups, columns]``, float32.
    zeros : numpy.ndarray or None
        Zero points ``[groups, columns]``; None if they are all the middle of the range.
    lanes : int
    weights : WeightFormat

    Returns
    -------
    tuple of numpy.ndarray
        As :attr:`WeightShape.stored` says; in place of a zero point its product with the scale is stored.
    """
    shape = WeightShape(integers.shape[0], integers.shape[1], lanes, weights)
    stored = [_words(integers.astype("uint32"), shape), _columns(scales.astype("float32"), shape)]
    if not weights.symmetric:
        assert zeros is not None
        stored.append(_columns(scales.astype("float32") * zeros.astype("float32"), shape))
    return tuple(stored)


def _words(values: np.ndarray, shape: WeightShape) -> np.ndarray:
    per_word = shape.format.per_word
    padded = np.zeros((shape.words * per_word, shape.columns), "uint32")
    padded[: shape.reduction] = values
    words = np.zeros((shape.words, shape.columns), "uint32")
    for place in range(per_word):
        words |= padded[place::per_word] << np.uint32(shape.format.shift(place))
    return _columns(words, shape)


def _columns(values: np.ndarray, shape: WeightShape) -> np.ndarray:
    """Cut the columns of a matrix into tiles, each contiguous."""
    padded = np.zeros((values.shape[0], shape.tiles * shape.tile_columns), values.dtype)
    padded[:, : shape.columns] = values
    return np.ascontiguousarray(padded.reshape(values.shape[0], shape.tiles, -1).transpose(1, 0, 2))
