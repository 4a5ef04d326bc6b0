"""What an assignment of axes must hold: predicates on what lies on the axes of one operand.

Subgraph isomorphism is in the domains (patterns of axes). The others are here: all different, the axis-aligned
hyper-rectangle, memory access, one padded extent an axis, tiles that cover the operator.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import product

from tvm_ext.embedding.dataflow import Access, Dataflow
from tvm_ext.embedding.embedding import Digit, Fused


def by_axis(fused: Iterable[Fused]) -> dict[int, list[Digit]]:
    """Collect digits by the axis of the operator that they are of."""
    found = defaultdict(list)
    for digits in fused:
        for digit in digits:
            found[digit.axis].append(digit)
    return found


def one_extent(fused: Iterable[Fused]) -> bool:
    """Whether each axis is padded to one extent; single points go with any."""
    return all(len({digit.padded for digit in digits if digit.size > 1}) <= 1 for digits in by_axis(fused).values())


def all_different(fused: Iterable[Fused]) -> bool:
    """Whether no point of the operator is met twice, and none lies beyond its extents."""
    for digits in by_axis(fused).values():
        reach = sum((digit.size - 1) * digit.stride for digit in digits)
        if reach >= max(digit.padded for digit in digits):
            return False
        if len(digits) > 1:
            points = [
                sum(at * digit.stride for at, digit in zip(place, digits, strict=True))
                for place in product(*(range(digit.size) for digit in digits))
            ]
            if len(set(points)) != len(points):
                return False
    return True


def covers(fused: Iterable[Fused]) -> bool:
    """Whether copies of the instruction can cover each axis: every digit begins where whole ones of those below end."""
    for digits in by_axis(fused).values():
        below = 1
        for digit in sorted((it for it in digits if it.size > 1), key=lambda digit: digit.stride):
            if digit.stride % below:
                return False
            below = digit.stride * digit.size
        if max(digit.padded for digit in digits) % below:
            return False
    return True


def is_box(access: Access, fused: Sequence[Fused], ordered: bool) -> bool:
    """Whether the points of an operand are an axis-aligned box of its tensor with regular strides (section 4.3.3).

    Parameters
    ----------
    access : Access
        Of the operator's operand.
    fused : sequence of Fused
        What lies on the operand's axes, in the order of its elements, outermost first.
    ordered : bool
        Whether the points must run through the box in that order: each dimension once, and whole.
    """
    runs: list[tuple[int, int, int]] = []  # (dimension, step, how many points), outermost first
    for digits in fused:
        for digit in digits:
            if digit.size == 1:
                continue
            moves = [(at, step * digit.stride) for at, step in enumerate(access.column(digit.axis)) if step]
            if len(moves) != 1:
                return False
            runs.append((*moves[0], digit.size))
    if not ordered:
        runs.sort(key=lambda run: (run[0], -abs(run[1])))
    merged: list[tuple[int, int, int]] = []
    for dimension, step, count in reversed(runs):
        if merged and merged[-1][0] == dimension and step == merged[-1][1] * merged[-1][2]:
            merged[-1] = (dimension, merged[-1][1], merged[-1][2] * count)
        else:
            merged.append((dimension, step, count))
    dimensions = [dimension for dimension, _, _ in merged]
    return len(set(dimensions)) == len(dimensions)


def no_overlap(operator: Dataflow, operand: int, fused: Iterable[Fused]) -> bool:
    """Whether outputs at different places of the instruction need no common element of a factor.

    Equations 4.35 and 4.36, with the indices corrected: for factors that differ between those outputs in the
    instruction. Where they are the same in it they are the same in the operator, as the patterns of axes say.
    """
    from tvm_ext.embedding.relations import shares

    steps = [(digit.axis, digit.size, digit.stride) for digits in fused for digit in digits if digit.size > 1]
    return not steps or not shares(operator, operand, steps)
