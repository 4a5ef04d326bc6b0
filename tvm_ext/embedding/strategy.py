"""From an embedding to a strategy: the loops that remain, and how each operand is stored for the instruction.

An operand is stored anew as a strided gather: every dimension of the stored tensor steps through the original one.
The rules of table 4.1 of the source are cases of it: a stencil whose window lies on the instruction is unrolled, one
that is dilated or spread over the instruction becomes several smaller images, whole axes are padded, split, reordered
and fused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd, prod
from typing import Literal

from tvm_ext.embedding.dataflow import Access, overlap
from tvm_ext.embedding.embedding import Digit, Embedding
from tvm_ext.errors import EmbeddingError

Kind = Literal["loop", "stencil", "lane"]


@dataclass(frozen=True)
class Loop:
    """A loop around the instruction.

    Attributes
    ----------
    name : str
    axis : int
        Of the operator.
    extent : int
    step : int
        Points of the axis that one turn moves on by.
    reduces : bool
    span : int
        After how many points of the axis it begins anew; a loop that is a part of another begins with that.
    """

    name: str
    axis: int
    extent: int
    step: int
    reduces: bool
    span: int


@dataclass(frozen=True)
class Dimension:
    """A dimension of a stored operand.

    Attributes
    ----------
    kind : str
        ``loop``: as one loop goes. ``stencil``: a window slides along it. ``lane``: an axis of the instruction.
    extent : int
    steps : tuple of int
        How far one step goes in each dimension of the original tensor.
    loops : tuple of (int, int)
        Loops that move along it, by number, and how far a turn of each goes; for a lane the digit's part is its own.
    lane : (int, int), optional
        Axis of the instruction, and which of its digits, outermost first.
    """

    kind: Kind
    extent: int
    steps: tuple[int, ...]
    loops: tuple[tuple[int, int], ...] = ()
    lane: tuple[int, int] | None = None


@dataclass(frozen=True)
class Stored:
    """How an operand is stored: dimensions outermost first, those of the instruction last.

    Attributes
    ----------
    access : Access
        Of the operator's operand.
    dimensions : tuple of Dimension
    limits : tuple of (tuple of (dimension, factor), int)
        Sums of steps that must stay below a number: padding beyond the end of an axis holds zeros.
    """

    access: Access
    dimensions: tuple[Dimension, ...]
    limits: tuple[tuple[tuple[tuple[int, int], ...], int], ...]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Extents of the dimensions."""
        return tuple(dimension.extent for dimension in self.dimensions)

    @property
    def elements(self) -> int:
        """Elements that are stored, padding included."""
        return prod(self.shape)


@dataclass(frozen=True)
class Strategy:
    """What an embedding makes of an operator.

    Attributes
    ----------
    embedding : Embedding
    loops : tuple of Loop
        What remains around the instruction.
    operands : tuple of Stored
        Left factor, right factor and result of the operator, in its order.
    """

    embedding: Embedding
    loops: tuple[Loop, ...]
    operands: tuple[Stored, Stored, Stored]

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the rewrites, in the order of table 4.1."""
        return _features(self)


def strategy(embedding: Embedding, dense: bool = True) -> Strategy:
    """Derive how operands are stored and which loops remain.

    Parameters
    ----------
    embedding : Embedding
    dense : bool
        Whether the taps of every window must lie next to each other (dilate pack), as accelerators want them.

    Raises
    ------
    EmbeddingError
        If a window moves in a way that no layout makes dense, or padding of a summed axis cannot be held off.
    """
    remaining = _remaining(embedding)
    loops = tuple(_without_dilation(embedding, remaining) if dense else remaining)
    return _with_loops(embedding, loops)


def rounded(found: Strategy, extents: Mapping[int, int]) -> Strategy:
    """Give loops more turns, as whole tiles need them; operands are stored with zeros beyond their ends.

    Parameters
    ----------
    found : Strategy
    extents : mapping of int to int
        New extent by the number of the loop, which must be the outermost of its axis.
    """
    if not extents:
        return found
    loops = tuple(
        replace(loop, extent=extents.get(at, loop.extent), span=extents.get(at, loop.extent) * loop.step)
        for at, loop in enumerate(found.loops)
    )
    return _with_loops(found.embedding, loops)


def _with_loops(embedding: Embedding, loops: tuple[Loop, ...]) -> Strategy:
    operands = tuple(_store(embedding, number, loops) for number in range(3))
    found = Strategy(embedding, loops, operands)  # type: ignore[arg-type]
    for at, axis in enumerate(embedding.operator.axes):
        padded = embedding.padded[at] != axis.extent
        if padded and axis.reduces and not any(_holds_zeros(stored, axis.extent, at) for stored in operands[:2]):
            raise EmbeddingError(f"axis {axis.name} is padded, but no factor is stored with zeros beyond its end")
    return found


def _remaining(embedding: Embedding) -> list[Loop]:
    """List the loops around the instruction: what the digits leave of each axis, outermost first."""
    loops = []
    for at, axis in enumerate(embedding.operator.axes):
        digits = sorted((digit for _, digit in embedding.on_axis(at)), key=lambda digit: digit.stride)
        below, parts = 1, []
        for digit in digits:
            parts.append((digit.stride // below, below))
            below = digit.stride * digit.size
        parts.append((embedding.padded[at] // below, below))
        used = [part for part in reversed(parts) if part[0] > 1]
        loops += [
            Loop(axis.name if len(used) == 1 else f"{axis.name}{number}", at, extent, step, axis.reduces, extent * step)
            for number, (extent, step) in enumerate(used)
        ]
    return loops


def _window(loops: Sequence[Loop], row: Sequence[int]) -> tuple[list[int], list[int]]:
    """Loops over outputs, and summed ones, that make overlapping windows along a dimension; innermost first."""
    moving = sorted((at for at, loop in enumerate(loops) if row[loop.axis]), key=lambda at: loops[at].step)
    if not overlap((row[loops[at].axis] * loops[at].step, loops[at].extent) for at in moving):
        return [], []
    return [at for at in moving if not loops[at].reduces], [at for at in moving if loops[at].reduces]


def _without_dilation(embedding: Embedding, loops: list[Loop]) -> list[Loop]:
    """Split loops over outputs so that the taps of every window are next to each other (dilate pack)."""
    for access in embedding.operator.inputs:
        for row in access.index:
            outputs, taps = _window(loops, row)
            if len(taps) > 1 and outputs:
                raise EmbeddingError(f"several summed axes move along one dimension of {access.tensor}")
            at, dilation = _slide(loops, outputs, taps, row)
            if at is not None and dilation > 1:
                slide = loops[at]
                turns, step = -(-slide.extent // dilation), slide.step * dilation
                outer = replace(slide, name=f"{slide.name}_outer", extent=turns, step=step)
                loops[at : at + 1] = [outer, replace(slide, name=f"{slide.name}_part", extent=dilation)]
                return _without_dilation(embedding, loops)
    return loops


def _slide(
    loops: Sequence[Loop], outputs: Sequence[int], taps: Sequence[int], row: Sequence[int]
) -> tuple[int | None, int]:
    """Find the loop that a window slides along, and how many steps of it are between taps; None if there is none.

    Loops inside of it that are no longer than that are parts of an image, which lie beside each other.
    """
    for at in outputs if taps else ():
        step, between = (row[loops[loop].axis] * loops[loop].step for loop in (at, taps[0]))
        dilation = between // gcd(step, between)
        if dilation == 1 or loops[at].extent > dilation:
            return at, dilation
    return None, 1


def _store(embedding: Embedding, number: int, loops: Sequence[Loop]) -> Stored:
    operator = embedding.operator
    access = operator.operands[number]
    taken: dict[int, int] = {}  # loop -> dimension
    dimensions: list[Dimension] = []
    for at, row in enumerate(access.index):
        outputs, taps = _window(loops, row)
        slide, _ = _slide(loops, outputs, taps, row)
        if slide is None:
            continue
        steps = {loop: row[loops[loop].axis] * loops[loop].step for loop in (slide, *taps)}
        unit = gcd(*steps.values())
        extent = 1 + sum(step // unit * (loops[loop].extent - 1) for loop, step in steps.items())
        moves = tuple((loop, step // unit) for loop, step in steps.items())
        taken.update(dict.fromkeys(steps, len(dimensions)))
        dimensions.append(Dimension("stencil", extent, _unit(access, at, unit), moves))
    plain = [
        Dimension("loop", loop.extent, _times(access.column(loop.axis), loop.step), ((at, 1),))
        for at, loop in enumerate(loops)
        if at not in taken and access.uses(loop.axis)
    ]
    lanes = [
        Dimension("lane", digit.size, _times(access.column(digit.axis), digit.stride), (), (axis, place))
        for axis in _lanes(embedding, number)
        for place, digit in enumerate(embedding.digits[axis])
    ]
    order = (*plain, *dimensions, *lanes)
    return Stored(access, order, tuple(_limits(embedding, loops, order)))


def _lanes(embedding: Embedding, number: int) -> list[int]:
    """Axes of the instruction's operand that an operand of the operator becomes, in the order of its elements."""
    inner = embedding.operand(number)
    return [at for row in embedding.instruction.operands[inner].index for at, step in enumerate(row) if step]


def _times(column: Sequence[int], factor: int) -> tuple[int, ...]:
    return tuple(step * factor for step in column)


def _unit(access: Access, dimension: int, step: int) -> tuple[int, ...]:
    return tuple(step * (at == dimension) for at in range(len(access.shape)))


def _limits(embedding: Embedding, loops: Sequence[Loop], dimensions: Sequence[Dimension]) -> list:
    """Find the axes whose every part has a dimension of its own, and that must not run beyond their end."""
    limits = []
    for at, axis in enumerate(embedding.operator.axes):
        parts, reach, seen = [], 0, 0
        for place, dimension in enumerate(dimensions):
            if dimension.kind == "loop" and loops[dimension.loops[0][0]].axis == at:
                step = loops[dimension.loops[0][0]].step
            elif dimension.lane is not None and _digit(embedding, dimension.lane).axis == at:
                step = _digit(embedding, dimension.lane).stride
            else:
                continue
            parts.append((place, step))
            reach += step * (dimension.extent - 1)
            seen += 1
        whole = sum(loop.axis == at for loop in loops) + sum(
            digit.axis == at for fused in embedding.digits for digit in fused
        )
        if parts and seen == whole and reach >= axis.extent:
            limits.append((tuple(parts), axis.extent))
    return limits


def _digit(embedding: Embedding, lane: tuple[int, int]) -> Digit:
    return embedding.digits[lane[0]][lane[1]]


def _holds_zeros(stored: Stored, extent: int, axis: int) -> bool:
    column = stored.access.column(axis)
    alone = [
        at for at, step in enumerate(column) if step and sum(bool(other) for other in stored.access.index[at]) == 1
    ]
    return bool(alone)


def _features(found: Strategy) -> tuple[str, ...]:
    embedding, operator = found.embedding, found.embedding.operator
    digits = [digit for fused in embedding.digits for digit in fused if digit.size > 1]
    names = []
    if embedding.unrolled:
        names.append("stencil unroll")
    if any(loop.name.endswith("_part") for loop in found.loops):
        names.append("dilate pack")
    if any(not operator.axes[digit.axis].reduces and operator.in_stencil(digit.axis) for digit in digits):
        names.append("image pack")
    if any(padded != axis.extent for padded, axis in zip(embedding.padded, operator.axes, strict=True)):
        names.append("pad")
    if any(digit.size < digit.padded for digit in digits):
        names.append("split")
    names.append("reorder")
    if any(len(fused) > 1 for fused in embedding.digits):
        names.append("fuse")
    return tuple(names)
