"""The search under a budget that adapts until a search fits into its limits.

A tight budget prunes more, so it makes the search quicker; one below the best peak leaves no order, which proves that
the best peak is higher. The budget is bisected between the largest one known to leave no order and the smallest one
known to run into the limit (the purpose of the adaptive soft budgeting of B. H. Ahn et al., "Ordering Chaos:
Memory-Aware Scheduling of Irregularly Wired Neural Networks for Edge Devices", MLSys 2020, algorithm 3; its printed
update does not keep the two ends apart, a bracket does). When nothing is left between them, the limit is raised.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tvm_ext.memory.dynamic_program import Flag, search
from tvm_ext.memory.problem import MemoryProblem
from tvm_ext.memory.tables import tables

_FIRST_LIMIT = 1 << 10  # states of a level
_GROWTH = 8


@dataclass(frozen=True)
class BudgetStep:
    """One search under a budget.

    Attributes
    ----------
    budget : int
        Bytes.
    level_limit : int
        States that a level was allowed to have.
    flag : str
        How it ended: ``solution``, ``no solution``, ``states`` or ``time``.
    transitions : int
        Steps from state to state that were looked at.
    """

    budget: int
    level_limit: int
    flag: Flag
    transitions: int


@dataclass(frozen=True)
class BudgetResult:
    """Best order known after the searches, and what they prove.

    Attributes
    ----------
    order : tuple of int
        Nodes of the problem.
    peak, lower_bound : int
        Bytes; equal when the order is proven to be best.
    steps : tuple of BudgetStep
        The searches.
    """

    order: tuple[int, ...]
    peak: int
    lower_bound: int
    steps: tuple[BudgetStep, ...]


def adaptive_budget(
    problem: MemoryProblem,
    order: Sequence[int],
    lower_bound: int,
    *,
    state_limit: int = 1_000_000,
    deadline: float = float("inf"),
) -> BudgetResult:
    """Search for an order with the least peak.

    Parameters
    ----------
    problem : MemoryProblem
        Nodes and storages.
    order : sequence of int
        An order that is known; its peak is the hard budget.
    lower_bound : int
        Bytes that no order is below.
    state_limit : int
        States that a search may hold.
    deadline : float
        Stop at this time of ``time.monotonic()``.
    """
    best, peak = tuple(order), problem.peak(order)
    steps: list[BudgetStep] = []
    arrays = tables(problem) if lower_bound < peak else None
    level_limit = min(_FIRST_LIMIT, state_limit)
    capped = peak  # the smallest budget that leads nowhere new, or ran into the limit
    budget = lower_bound  # the cheapest search that can succeed, and often it does
    while lower_bound < peak and time.monotonic() < deadline:
        found = search(
            problem,
            budget=budget,
            floor=lower_bound,
            level_limit=level_limit,
            state_limit=state_limit,
            deadline=deadline,
            arrays=arrays,
        )
        steps.append(BudgetStep(budget, level_limit, found.flag, found.transitions))
        if found.flag == "solution":
            return BudgetResult(found.order, found.peak, found.peak, tuple(steps))
        if found.flag == "time":
            break
        if found.flag == "no solution":
            lower_bound = budget + 1
        else:
            capped = budget
        if lower_bound >= capped < peak:
            if level_limit >= state_limit:
                break
            level_limit = min(level_limit * _GROWTH, state_limit)
            capped = peak
        budget = max(lower_bound, peak - 1 if len(steps) == 1 else (lower_bound + capped) // 2)
        budget = min(budget, peak - 1)
    return BudgetResult(best, peak, lower_bound, tuple(steps))
