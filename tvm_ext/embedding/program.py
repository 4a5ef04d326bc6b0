"""The constraint program in axis form: one variable for each axis of the instruction, and what it may be.

The source has one variable for each scalar of the instruction. With the origin fixed and the points of an operand on an
axis-aligned box, what such an assignment can be is a list of (axis, size, stride) for each axis of the instruction;
these lists are the values here, and tests compare both programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product
from math import inf, lcm, perm, prod
from typing import Literal

from tvm_ext.embedding.budget import Budget
from tvm_ext.embedding.dataflow import Dataflow
from tvm_ext.embedding.embedding import Digit, Fused

Strides = Literal["unit", "blocks", "all"]
"""``unit``: neighbours, or so many apart as another axis of the instruction fills. ``blocks``: outputs of a stencil
also as far apart as the axis has room for. ``all``: any."""


@dataclass(frozen=True)
class Setting:
    """What an embedding may be (section 4.4.3 of the source).

    Attributes
    ----------
    strides : str
    dimensions : int
        How many axes of the operator may be fused on one axis of the instruction.
    memory : bool
        Whether outputs that share no element of a factor in the instruction must not share one in the operator.
    overlapping : bool
        Whether factors may be stored with elements repeated (stencils unrolled): their points need be no box then.
    ordered : bool
        Whether the points of an operand must run through their box in the order of the instruction's elements. If not,
        axes are fused in one order only, that of the search.
    pad_to : tuple of int
        An axis may be padded to multiples of its size and of one of these; empty: no padding.
    waste : float
        Largest ratio of extents after padding to those before, over the axes that lie on one of the instruction.
    swap : bool
        Whether the factors may change places.
    tiles : bool
        Whether repeating the instruction must cover the operator.
    order : tuple of str, optional
        Order of the operator's axes, which is the order that values are tried in (an asset of a portfolio).
    bound : int, optional
        Largest number of points of an axis (equation 4.39, read as a minimum).
    """

    strides: Strides = "unit"
    dimensions: int = 1
    memory: bool = True
    overlapping: bool = False
    ordered: bool = False
    pad_to: tuple[int, ...] = ()
    waste: float = inf
    swap: bool = True
    tiles: bool = True
    order: tuple[str, ...] | None = None
    bound: int | None = None


STRICT = Setting(swap=False)
"""Neighbours on one axis each, nothing padded, factors in their places: what hand-written layouts do."""


def relaxed(
    pad_to: tuple[int, ...] = (1,), waste: float = inf, dimensions: int = 4, swap: bool = False
) -> tuple[Setting, Setting]:
    """Return settings to search side by side: with the memory constraint, and without it, stencils unrolled."""
    return (
        Setting("blocks", dimensions, pad_to=pad_to, waste=waste, swap=swap),
        Setting("blocks", dimensions, memory=False, overlapping=True, pad_to=pad_to, waste=waste, swap=swap),
    )


def assets(operator: Dataflow, instruction: Dataflow) -> Iterator[tuple[str, ...]]:
    """Orders of the operator's axes of which one is ideal for the search: equation 4.40 counts them."""
    groups = []
    for reduces in (False, True):
        names = [axis.name for axis in operator.axes if axis.reduces == reduces]
        wanted = sum(axis.reduces == reduces for axis in instruction.axes)
        first = permutations(names, min(wanted, len(names)))
        groups.append([(*front, *(name for name in names if name not in front)) for front in first])
    for spatial, reduction in product(*groups):
        yield (*spatial, *reduction)


def asset_count(operator: Dataflow, instruction: Dataflow) -> int:
    """Equation 4.40."""
    count = 1
    for reduces in (False, True):
        have, wanted = (sum(axis.reduces == reduces for axis in flow.axes) for flow in (operator, instruction))
        count *= perm(have, min(wanted, have))
    return count


def values(
    operator: Dataflow, instruction: Dataflow, axis: int, swapped: bool, setting: Setting, budget: Budget | None = None
) -> Iterator[Fused]:
    """List what may lie on an axis of the instruction: the domain of its variable, in the order of the search.

    Raises
    ------
    SearchEnd
        If the budget, where there is one, is spent before.
    """
    pattern, extent = instruction.pattern(axis, swapped), instruction.axes[axis].extent
    fitting = [at for at in range(len(operator.axes)) if operator.pattern(at) == pattern]
    if setting.order is not None:
        place = {name: number for number, name in enumerate(setting.order)}
        fitting.sort(key=lambda at: place[operator.axes[at].name])
    if extent == 1:
        yield _unit(operator, fitting)
        return
    apart = _between(instruction, axis)
    known: dict[tuple[int, int], list[Digit]] = {}
    found: set[Fused] = set()
    for count in range(1, min(setting.dimensions, len(fitting)) + 1):
        for axes in permutations(fitting, count) if setting.ordered else combinations(fitting, count):
            for sizes in factorizations(extent, count):
                parts = list(zip(axes, sizes, strict=True))
                for at, size in parts:
                    if (at, size) not in known:
                        known[at, size] = _digits(operator, at, size, apart, setting)
                for fused in product(*(known[part] for part in parts)):
                    if budget is not None:
                        budget.spend()
                    if fused not in found and _waste(operator, fused) <= setting.waste:
                        found.add(fused)
                        yield fused


def _waste(operator: Dataflow, fused: Fused) -> float:
    return prod(digit.padded / operator.axes[digit.axis].extent for digit in fused)


def _unit(operator: Dataflow, fitting: Sequence[int]) -> Fused:
    """Choose where an axis of extent 1 lies: on an axis in no stencil, where larger instructions of its kind fit too.

    Among those, on the shortest: what is left of the others is loops.
    """
    if not fitting:
        return ()
    best = min(fitting, key=lambda at: (operator.shares_dimension(at), operator.axes[at].extent))
    return (Digit(best, 1, 1, operator.axes[best].extent),)


def factorizations(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Write a number as so many factors above 1, in all orders."""
    if count == 1:
        if number > 1:
            yield (number,)
        return
    for first in range(2, number // 2 + 1):
        if number % first == 0:
            for rest in factorizations(number // first, count - 1):
                yield (first, *rest)


def _between(instruction: Dataflow, axis: int) -> set[int]:
    """Strides that leave room for other axes of the instruction of the same kind on the same axis of the operator."""
    others = [
        other.extent
        for at, other in enumerate(instruction.axes)
        if at != axis and other.extent > 1 and instruction.pattern(at) == instruction.pattern(axis)
    ]
    return {prod(part) for count in range(1, len(others) + 1) for part in combinations(others, count)}


def _digits(operator: Dataflow, at: int, size: int, apart: set[int], setting: Setting) -> list[Digit]:
    axis = operator.axes[at]
    if setting.bound is not None and size > setting.bound:
        return []
    if setting.pad_to:
        # Other axes of the instruction on the same axis need it to be a multiple of them, too.
        steps = {lcm(size * beside, multiple) for multiple in setting.pad_to for beside in (1, *apart)}
        extents = sorted({-(-axis.extent // step) * step for step in steps})
    else:
        extents = [axis.extent] if axis.extent % size == 0 or not setting.tiles else []
    found = []
    for padded in extents:
        room = (padded - 1) // (size - 1) if setting.strides == "all" else padded // size
        if setting.strides == "all":
            strides = [step for step in range(1, room + 1) if not setting.tiles or padded % (step * size) == 0]
        elif setting.strides == "blocks" and not axis.reduces and operator.in_stencil(at) and room > 1:
            strides = sorted({1, room, *apart})
        else:
            strides = sorted({1, *apart})
        if axis.extent and padded / axis.extent > setting.waste:
            continue  # no other axis makes good for it
        strides = [stride for stride in strides if (size - 1) * stride < padded]
        found += [Digit(at, size, stride, padded) for stride in strides]
    return found
