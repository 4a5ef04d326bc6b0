"""The search under a budget that adapts until a search fits into its limits.

A tight budget prunes more, so it makes the search quicker; one below the best peak leaves no order, which proves that
the best peak is higher. The budget is bisected between the largest one known to leave no order and the smallest one
known to run into the limit (the purpose of the adaptive soft budgeting of B. H. Ahn et al., "Ordering Chaos:
Memory-Aware Scheduling of Irregularly Wired Neural Networks for Edge Devices", MLSys 2020, algorithm 3; its printed
update does not keep the two ends apart, a bracket does). When there is not enough between them, the limit on the states
of a level is raised.

With each limit the search also runs as a beam that keeps the best states of a level: it looks for an order better than
the best one known, and if it never had to drop a state, it is a proof as well. A large problem is improved by windows
(:mod:`tvm_ext.memory.windows`) before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tvm_ext.memory.dynamic_program import Flag, search
from tvm_ext.memory.problem import MemoryProblem
from tvm_ext.memory.tables import Tables, tables
from tvm_ext.memory.windows import improve_by_windows

_FIRST_LIMIT = 256  # states of a level
_GROWTH = 8
_LARGE = 64  # nodes; a window of that size is the whole problem
_WINDOW_TIME = 0.7  # part of the time left
_PROBES = 6  # budgets tried with one limit
_BEAMS = 3  # beams tried with one limit, each for what is better than the last one found


@dataclass(frozen=True)
class BudgetStep:
    """One search under a budget.

    Attributes
    ----------
    budget : int
        Bytes.
    level_limit : int
        States that a level was allowed to have.
    kind : str
        ``exact``: gives up at the limit; ``beam``: drops the worst states; ``windows``: beams over parts of the order.
    flag : str
        How it ended: ``solution``, ``no solution``, ``states`` or ``time``.
    complete : bool
        It dropped no state that was within the budget.
    transitions : int
        Steps from state to state that were looked at.
    """

    budget: int
    level_limit: int
    kind: str
    flag: Flag
    complete: bool
    transitions: int


class BudgetSearch:
    """The best order known of a problem, a lower bound, and the searches that bring them together.

    Parameters
    ----------
    problem : MemoryProblem
        Nodes and storages.
    order : sequence of int
        An order that is known; its peak is the hard budget.
    lower_bound : int
        Bytes that are of no use to go below: a lower bound, or the peak of another part.
    state_limit : int
        States that a search may hold.
    deadline : float
        Stop at this time of ``time.monotonic()``.

    Attributes
    ----------
    order : tuple of int
        The best order known.
    peak, lower_bound : int
        Bytes; when they are equal the order is proven to be best.
    steps : list of BudgetStep
        The searches.
    """

    def __init__(
        self,
        problem: MemoryProblem,
        order: Sequence[int],
        lower_bound: int,
        *,
        state_limit: int = 1_000_000,
        deadline: float = float("inf"),
    ) -> None:
        self.order = tuple(order)
        self.peak = problem.peak(order)
        self.lower_bound = min(lower_bound, self.peak)
        self.steps: list[BudgetStep] = []
        self._problem = problem
        self._state_limit = state_limit
        self._deadline = deadline
        self._tables: Tables | None = None

    @property
    def is_over(self) -> bool:
        """Whether the order is proven to be best, or the time is up."""
        return self.peak <= self.lower_bound or time.monotonic() > self._deadline

    def run(self, exact: bool = True) -> None:
        """Search with growing limits, until one of them, or the time, is reached.

        Parameters
        ----------
        exact : bool
            Bisect the budget, too, which raises the lower bound; otherwise only beams are tried.
        """
        if len(self._problem) > _LARGE:
            self._improve_by_windows()
        limit = min(_FIRST_LIMIT, self._state_limit)
        if exact:
            self._search(self.lower_bound, limit)  # often the bound can be reached, and this is the cheapest search
        widest, better = 0, False
        while not self.is_over:
            width = max(1, min(limit, self._state_limit // len(self._problem)))
            for _ in range(_BEAMS):
                tried = width == widest and not better
                if self.is_over or tried or not (better := self._search(self.peak - 1, width, beam=True)):
                    break
            widest = width
            if exact:
                self._bisect(limit)
            if limit >= self._state_limit:
                break
            limit = min(limit * _GROWTH, self._state_limit)

    def _improve_by_windows(self) -> None:
        """Start from an order that no window improves, or that most of the time went into."""
        now = time.monotonic()
        deadline = now + _WINDOW_TIME * (self._deadline - now)
        order, transitions = improve_by_windows(self._problem, self.order, self.lower_bound, deadline=deadline)
        better = self._problem.peak(order) < self.peak
        self.order, self.peak = order, self._problem.peak(order)
        flag: Flag = "solution" if better else "time" if time.monotonic() > deadline else "no solution"
        self.steps.append(BudgetStep(self.peak, 0, "windows", flag, False, transitions))

    def _bisect(self, limit: int) -> None:
        """Raise the lower bound with searches that leave no order, as far as the limit carries."""
        capped = self.peak
        budget = (self.lower_bound + capped) // 2
        for _ in range(_PROBES):
            before = self.lower_bound
            self._search(budget, limit)
            if self.lower_bound == before:
                capped = budget
            if self.is_over or capped - self.lower_bound < 1:
                break
            # What is below the best order may be impossible altogether: that would be the whole proof.
            budget = self.peak - 1 if capped == self.peak else (self.lower_bound + capped) // 2

    def _search(self, budget: int, limit: int, beam: bool = False) -> bool:
        """Search under a budget; tell whether a better order was found."""
        if self.is_over:
            return False
        if self._tables is None:
            self._tables = tables(self._problem)
        found = search(
            self._problem,
            budget=budget,
            floor=self.lower_bound,
            level_limit=None if beam else limit,
            width=limit if beam else None,
            state_limit=self._state_limit,
            deadline=self._deadline,
            arrays=self._tables,
        )
        kind = "beam" if beam else "exact"
        self.steps.append(BudgetStep(budget, limit, kind, found.flag, found.complete, found.transitions))
        if found.flag == "solution":
            self.order, self.peak = found.order, found.peak
            if found.complete:
                self.lower_bound = found.peak
        elif found.flag == "no solution" and found.complete:
            self.lower_bound = min(found.exceeded, self.peak)
        return found.flag == "solution"
