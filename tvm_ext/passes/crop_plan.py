"""Decides which results need not be computed whole, as only slices of them are read.

A slice of a convolution or pooling is one of fewer windows, over a part of its input and with other padding; rows of a
product are products of rows; a slice of an element-wise operator is that operator on slices. Parts that several readers
need are joined into one box.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal, TypeAlias

from tvm_ext.errors import GraphError

Region: TypeAlias = tuple[tuple[int, int], ...]
"""Of each axis, the first element and the one behind the last."""

SMALL = 4
"""An operator on a copy of a part of what it reads must compute this many times less than without."""

WORTH_A_COPY = 8
"""Steps of a sum for whose sake an element is copied."""


@dataclass(frozen=True)
class Windows:
    """How a window slides along one axis.

    Attributes
    ----------
    extent : int
        Of the input.
    kernel, stride, dilation : int
    padding : tuple of (int, int)
        Before and behind the input.
    """

    extent: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    padding: tuple[int, int] = (0, 0)

    def part(self, begin: int, end: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Find the part of the input that windows ``begin`` to ``end`` meet, and the padding that is left around it.

        None where they meet nothing but padding, or what is beyond the padding.
        """
        first = begin * self.stride - self.padding[0]
        last = (end - 1) * self.stride - self.padding[0] + (self.kernel - 1) * self.dilation
        part = max(first, 0), min(last + 1, self.extent)
        if part[0] >= part[1] or last >= self.extent + self.padding[1]:
            return None
        return part, (max(-first, 0), max(last + 1 - self.extent, 0))


@dataclass(frozen=True)
class Follows:
    """An axis of an operand along which is read what is computed along an axis of the result, so many elements on."""

    axis: int
    offset: int = 0


Reading: TypeAlias = tuple[Follows | tuple[int, int] | None, ...]
"""What is read along each axis of an operand: what the result follows, always the same part, or (None) everything."""


@dataclass(frozen=True)
class Operator:
    """An operator, or an input of the graph.

    Attributes
    ----------
    kind : str
        ``window``: slides windows along the axes from the third on, over its first operand; ``mapped``: each element of
        the result is of elements that its readings tell; ``other``: reads its operands whole.
    shape : tuple of int
        Of the result; empty for what is no tensor of known extents.
    operands : tuple of (int or None)
        Earlier operators whose results it reads; None where it is a constant.
    windows : tuple of Windows
        Of a ``window``, one for each axis from the third on.
    cuts_channels : bool
        Of a ``window``, whether it can compute some of its channels: from all channels of its input if ``mixes``, and
        from the same ones otherwise.
    mixes : bool
        Of a ``window``, whether a channel of its result is of all channels of its input.
    readings : tuple of Reading
        Of a ``mapped``, for each operand.
    whole_axes : tuple of int
        Of a ``mapped``, axes of the result that are computed whole or not at all.
    work : int
        Of a ``mapped``, the steps for an element; 0 where elements are only moved.
    slices : bool
        Of a ``mapped``, whether it does nothing but read a part of its operand.
    returned : bool
        Whether the result is a result of the graph.
    """

    kind: Literal["window", "mapped", "other"]
    shape: tuple[int, ...]
    operands: tuple[int | None, ...] = ()
    windows: tuple[Windows, ...] = ()
    cuts_channels: bool = False
    mixes: bool = False
    readings: tuple[Reading, ...] = ()
    whole_axes: tuple[int, ...] = ()
    work: int = 0
    slices: bool = False
    returned: bool = False


@dataclass(frozen=True)
class Crops:
    """Parts of results that are computed.

    Attributes
    ----------
    regions : dict of int to Region
        By number of an operator, where it is less than the whole.
    """

    regions: dict[int, Region] = field(default_factory=dict)


def whole(shape: Sequence[int]) -> Region:
    """Give the region of all elements."""
    return tuple((0, extent) for extent in shape)


def size(region: Region) -> int:
    """Count the elements of a region."""
    return prod(end - begin for begin, end in region)


def read_region(operator: Operator, index: int, operand: Sequence[int], region: Region) -> Region | None:
    """Find what an operator reads of an operand to compute a region; None: it cannot compute that alone.

    Parameters
    ----------
    operator : Operator
    index : int
        Which of its operands.
    operand : sequence of int
        The operand's extents.
    region : Region
        Of the operator's result.
    """
    if operator.kind == "mapped":
        if any(region[axis] != (0, operator.shape[axis]) for axis in operator.whole_axes):
            return None
        return tuple(
            (0, extent) if read is None
            else (region[read.axis][0] + read.offset, region[read.axis][1] + read.offset) if isinstance(read, Follows)
            else read
            for read, extent in zip(operator.readings[index], operand, strict=True)
        )  # fmt: skip
    if operator.kind == "window" and region != whole(operator.shape):
        parts = [axis.part(*along) for axis, along in zip(operator.windows, region[2:], strict=True)]
        if any(part is None for part in parts):
            return None
        if region[1] != (0, operator.shape[1]) and not operator.cuts_channels:
            return None
        channels = (0, operand[1]) if operator.mixes or not operator.cuts_channels else region[1]
        return (region[0], channels, *(part[0] for part in parts if part is not None))
    return whole(operand)


def plan_crops(operators: Sequence[Operator]) -> Crops:
    """Decide which operators compute a part of their results.

    A part of an input that is computed whole has to be copied: that is done for windows whose results are as many
    elements, and for other operators where that is little beside what they need not compute.

    Parameters
    ----------
    operators : sequence of Operator
        In an order in which they can run.
    """
    kept: set[int] = set()
    while True:
        needed = _needed(operators, kept)
        refused = {number for number in needed if not _pays(operators, needed, number)}
        if not refused:
            return Crops(needed)
        kept |= refused


def _needed(operators: Sequence[Operator], kept: set[int]) -> dict[int, Region]:
    """Join what is read of each result, from the last one on; those that are read whole are left out."""
    found: dict[int, Region] = {}
    for number in reversed(range(len(operators))):
        operator = operators[number]
        region = found.get(number)
        if region is None or operator.returned or number in kept or not _can_crop(operator, region):
            region = whole(operator.shape)
        if operator.shape:
            found[number] = region
        for index, place in enumerate(operator.operands):
            if place is None:
                continue
            operand = operators[place].shape
            read = read_region(operator, index, operand, region) if operator.shape else whole(operand)
            assert read is not None
            known = found.get(place, read)
            found[place] = tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(known, read, strict=True))
    return {number: region for number, region in found.items() if region != whole(operators[number].shape)}


def _can_crop(operator: Operator, region: Region) -> bool:
    if operator.kind == "other" or size(region) == 0:
        return False
    if operator.kind == "mapped":
        return all(region[axis] == (0, operator.shape[axis]) for axis in operator.whole_axes)
    return read_region(operator, 0, (0,) * len(operator.shape), region) is not None


def _pays(operators: Sequence[Operator], needed: dict[int, Region], number: int) -> bool:
    operator, region = operators[number], needed[number]
    copied = 0
    for index, place in enumerate(operator.operands):
        if place is None:
            continue
        shape = operators[place].shape
        read = read_region(operator, index, shape, region)
        if read is None:
            return False
        if needed.get(place, whole(shape)) != read:
            copied += size(read)
    if not copied or operator.slices:
        return True
    if operator.kind == "window":
        return copied <= size(region)
    if size(region) * SMALL > size(whole(operator.shape)):
        return False
    saved = size(whole(operator.shape)) - size(region)
    return operator.work <= 1 or copied * WORTH_A_COPY <= saved * operator.work


def verify_crops(crops: Crops, operators: Sequence[Operator]) -> None:
    """Check a plan, going forward: whatever an operator reads has been computed.

    Raises
    ------
    GraphError
        If something is read that is not computed.
    """
    for number, operator in enumerate(operators):
        region = crops.regions.get(number, whole(operator.shape))
        if operator.returned and number in crops.regions:
            raise GraphError(f"crops: result {number} is returned, and must be computed whole")
        for index, place in enumerate(operator.operands):
            if place is None:
                continue
            shape = operators[place].shape
            read = read_region(operator, index, shape, region) if operator.shape else whole(shape)
            has = crops.regions.get(place, whole(shape))
            inside = read is not None and all(a <= c and d <= b for (a, b), (c, d) in zip(has, read, strict=True))
            if not inside:
                raise GraphError(f"crops: operator {number} reads {read} of operator {place}, which computes {has}")
