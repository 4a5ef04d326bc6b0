"""A good order when there are too many states for the best one: a beam over the same states, and windows of an order.

The beam keeps the most promising states of each level and widens as long as there is time. Where the problem is too
large for that, a window of consecutive nodes around the peak of an order is taken out and ordered as well as can be,
with all other nodes where they are; a window is a problem like any other.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from tvm_ext.memory.dynamic_program import search
from tvm_ext.memory.problem import MemoryProblem
from tvm_ext.memory.tables import tables

_WIDTHS = (16, 64, 256, 1024, 4096, 16384)


def beam(
    problem: MemoryProblem,
    order: Sequence[int],
    lower_bound: int,
    *,
    state_limit: int = 1_000_000,
    deadline: float = float("inf"),
) -> tuple[tuple[int, ...], int, int]:
    """Improve an order with beams of growing width.

    Returns
    -------
    order : tuple of int
        Never worse than the one given.
    peak : int
        Its peak in bytes.
    transitions : int
        Steps from state to state that were looked at.
    """
    best, peak = tuple(order), problem.peak(order)
    transitions = 0
    arrays = tables(problem) if lower_bound < peak else None
    for width in _WIDTHS:
        if peak <= lower_bound or width * len(problem) > state_limit or time.monotonic() > deadline:
            break
        found = search(problem, budget=peak - 1, floor=lower_bound, width=width, deadline=deadline, arrays=arrays)
        transitions += found.transitions
        if found.flag == "solution":
            best, peak = found.order, found.peak
        elif found.flag == "time":
            break
    return best, peak, transitions
