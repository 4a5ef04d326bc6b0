"""Improve an order piece by piece, where a problem is too large to be searched as a whole.

A window of consecutive nodes around the highest step is taken out of the order and put into a better one, with all
other nodes where they are: a window is a problem like any other, and small. When no window around the highest step can
be improved, larger ones are tried. (Large neighbourhood search: P. Shaw, "Using constraint programming and local search
methods to solve vehicle routing problems", CP 1998.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_ext.memory.dynamic_program import search
from tvm_ext.memory.problem import MemoryProblem
from tvm_ext.memory.work import Work

_SIZES = (32, 64, 128, 256)  # nodes of a window
_STATES = (1 << 12, 1 << 15, 1 << 18)  # of a search, about
_NODE_STEPS = 5.0  # of work, to take a window out of a problem and to put it back
_PLACES = (0.5, 0.25, 0.75, 0.0, 1.0)  # of the highest step in its window


def improve_by_windows(
    problem: MemoryProblem, order: Sequence[int], lower_bound: int, *, work: Work, thorough: bool = True
) -> tuple[tuple[int, ...], int]:
    """Lower the peak of an order until no window helps.

    Parameters
    ----------
    problem : MemoryProblem
        Nodes and storages.
    order : sequence of int
        An order of its nodes.
    lower_bound : int
        Bytes that are of no use to go below.
    work : Work
        What the searches are charged to; none is begun when that is spent.
    thorough : bool
        Search again with more states where a quick search does not help.

    Returns
    -------
    order : tuple of int
        Not worse than the one given.
    transitions : int
        Steps from state to state that were looked at.
    """
    best = list(order)
    during, after = (np.array(bytes_, dtype=np.int64) for bytes_ in problem.profile(best))
    transitions = 0
    efforts = [(size, states // size) for states in (_STATES if thorough else _STATES[:1]) for size in _SIZES]
    effort = 0
    while effort < len(efforts) and during.max(initial=0) > lower_bound:
        highest = int(during.argmax())
        size, width = min(efforts[effort][0], len(best)), efforts[effort][1]
        effort += 1
        for start in dict.fromkeys(min(max(0, highest - int(p * (size - 1))), len(best) - size) for p in _PLACES):
            if work.is_over:
                return tuple(best), transitions
            window = slice(start, start + size)
            inside = sorted(best[window])
            done = sum(1 << node for node in best[:start])
            part = problem.part(inside, done, int(after[start - 1]) if start else None)
            # It need not become lower than the rest.
            floor = min(int(np.delete(during, window).max(initial=lower_bound)), int(during[highest]) - 1)
            budget = int(during[highest]) - 1
            found = search(part, budget=budget, floor=floor, width=width, work=work)
            work.spend(_NODE_STEPS * len(problem))
            transitions += found.transitions
            if found.flag == "solution":
                best[window] = [inside[node] for node in found.order]
                during[window], after[window] = part.profile(found.order)
                effort = 0
                break
    return tuple(best), transitions
