"""From which element of DRAM goes to which element on the chip, to as few two-dimensional transfers as that takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tvm_ext.errors import VTAProgramError

ZERO = -1
"""In a table of DRAM elements: what is not read, but zero."""

ANYTHING = -2
"""In a table of DRAM elements: what nobody reads."""

LARGEST_PAD = 15
LARGEST_SIZE = (1 << 16) - 1


@dataclass(frozen=True)
class Transfer:
    """A load or store of rows, in elements.

    Attributes
    ----------
    sram : int
        Where it begins on the chip, padding included.
    dram : int
        First element in DRAM.
    columns, rows, stride : int
    pads : tuple of int
        Rows of zeros above and below, columns of zeros to the left and to the right.
    """

    sram: int
    dram: int
    columns: int
    rows: int = 1
    stride: int = 0
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def size(self) -> int:
        """Elements on the chip, padding included."""
        above, below, left, right = self.pads
        return (above + self.rows + below) * (left + self.columns + right)

    def moved(self, distance: int) -> Transfer:
        """Return the transfer of elements so much further in DRAM."""
        return Transfer(self.sram, self.dram + distance, self.columns, self.rows, self.stride, self.pads)

    def table(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """List the elements on the chip, and what each gets: an element of DRAM, or :data:`ZERO`."""
        above, below, left, right = self.pads
        rows = np.arange(self.rows)[:, None] * self.stride + np.arange(self.columns) + self.dram
        padded = np.pad(rows, ((above, below), (left, right)), constant_values=ZERO)
        return self.sram + np.arange(padded.size), padded.reshape(-1)


def find_transfers(
    sram: NDArray[np.int64], dram: NDArray[np.int64], plane: tuple[int, int], may_pad: bool
) -> list[Transfer]:
    """Cover a table of elements by transfers.

    Parameters
    ----------
    sram : NDArray[np.int64]
        Elements on the chip, each once, [elements].
    dram : NDArray[np.int64]
        For each, the element of DRAM, or :data:`ZERO` or :data:`ANYTHING`.
    plane : tuple of int
        Rows and columns that follow each other on the chip; padding is found around such planes.
    may_pad : bool
        Whether zeros can be had from padding.

    Returns
    -------
    list of Transfer
        Together they write every element that is not :data:`ANYTHING`, with what the table says.

    Raises
    ------
    VTAProgramError
        If zeros are not around a rectangle, are too many for the fields of an instruction, or may not be padded.
    """
    order = np.argsort(sram, kind="stable")
    sram, dram = sram[order], dram[order]
    if (dram == ZERO).any():
        if not may_pad:
            raise VTAProgramError("zeros are only loaded into the input memory; pad the tensor in DRAM instead")
        return _with_padding(sram, dram, plane)
    wanted = dram != ANYTHING
    return list(_rows(sram[wanted], dram[wanted]))


def _rows(sram: NDArray[np.int64], dram: NDArray[np.int64]) -> Iterator[Transfer]:
    """Join elements to rows, and rows of equal length at equal distances to transfers."""
    if not len(sram):
        return
    begins = np.flatnonzero((np.diff(dram, prepend=dram[0] - 2) != 1) | (np.diff(sram, prepend=sram[0] - 2) != 1))
    lengths = np.diff(begins, append=len(sram))
    rows = list(zip(sram[begins].tolist(), dram[begins].tolist(), lengths.tolist(), strict=True))
    at = 0
    while at < len(rows):
        first, source, length = rows[at]
        if length > LARGEST_SIZE:
            rows[at : at + 1] = [
                (first + cut, source + cut, min(LARGEST_SIZE, length - cut)) for cut in range(0, length, LARGEST_SIZE)
            ]
            continue
        count, stride = 1, length
        while at + count < len(rows) and count < LARGEST_SIZE:
            to, begin, size = rows[at + count]
            distance = begin - source if count == 1 else stride
            in_reach = 0 <= distance <= LARGEST_SIZE
            if size != length or to != first + count * length or begin != source + count * distance or not in_reach:
                break
            stride, count = distance, count + 1
        yield Transfer(first, source, length, count, stride)
        at += count


def _with_padding(sram: NDArray[np.int64], dram: NDArray[np.int64], plane: tuple[int, int]) -> list[Transfer]:
    rows, columns = plane
    found: list[Transfer] = []
    for number in np.unique(sram // (rows * columns)).tolist():
        inside = sram // (rows * columns) == number
        table = np.full(rows * columns, ANYTHING)
        table[sram[inside] - number * rows * columns] = dram[inside]
        found += _padded_plane(table.reshape(rows, columns), number * rows * columns)
    return found


def _padded_plane(table: NDArray[np.int64], base: int) -> list[Transfer]:
    """Cover one plane by a rectangle and the padding around it."""
    used = np.flatnonzero((table != ANYTHING).any(axis=1))
    if not len(used):
        return []
    top, bottom = int(used[0]), int(used[-1]) + 1
    table = table[top:bottom]
    base += top * table.shape[1]
    if not (table == ZERO).any() and not (table == ANYTHING).any():
        return list(_rows(base + np.arange(table.size), table.reshape(-1)))
    data = table >= 0
    if not data.any():
        raise VTAProgramError("a tile lies in the padding altogether; a load needs at least one element of DRAM")
    ys, xs = np.flatnonzero(data.any(axis=1)), np.flatnonzero(data.any(axis=0))
    y, x, height, width = int(ys[0]), int(xs[0]), int(ys[-1] - ys[0]) + 1, int(xs[-1] - xs[0]) + 1
    inner = table[y : y + height, x : x + width]
    stride = int(inner[1, 0] - inner[0, 0]) if height > 1 else width
    pads = (y, len(table) - y - height, x, table.shape[1] - x - width)
    regular = np.array_equal(inner, inner[0, 0] + np.arange(height)[:, None] * stride + np.arange(width))
    if not regular or not 0 <= stride <= LARGEST_SIZE:
        raise VTAProgramError("the zeros of a tile are not around a rectangle of elements; choose tiles that divide")
    if max(pads) > LARGEST_PAD:
        raise VTAProgramError(
            f"a tile is padded by {max(pads)} rows or columns; an instruction has room for {LARGEST_PAD}"
        )
    return [Transfer(base, int(inner[0, 0]), width, height, stride, pads)]
