"""The search under a budget that adapts until a search fits into its limits.

A tight budget prunes more, so it makes the search quicker; one below the best peak leaves no order, which proves that
the best peak is higher. The budget is bisected between the largest one known to leave no order and the smallest one
known to run into the limit (the purpose of the adaptive soft budgeting of B. H. Ahn et al., "Ordering Chaos:
Memory-Aware Scheduling of Irregularly Wired Neural Networks for Edge Devices", MLSys 2020, algorithm 3; its printed
update does not keep the two ends apart, a bracket does). When there is not enough between them, the limit on the states
of a level is raised.

Before, the lower bound is raised by minimum cuts (:mod:`tvm_ext.memory.cut_bound`).

With each limit the search also runs as a beam that keeps the best states of a level: it looks for an order better than
the best one known, and if it never had to drop a state, it is a proof as well. A large problem is improved by windows
(:mod:`tvm_ext.memory.windows`) before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm_ext.memory.cut_bound import raised_bound
from tvm_ext.memory.dynamic_program import Flag, search
from tvm_ext.memory.problem import MemoryProblem
from tvm_ext.memory.tables import Tables, tables
from tvm_ext.memory.windows import improve_by_windows
from tvm_ext.memory.work import Work

_FIRST_LIMIT = 1 << 12  # states of a level; beams, which go to the end, keep fewer
_BEAM_SHARE = 8
_GROWTH = 8
_SMALL, _LARGE = 64, 256  # nodes; between them windows help a little, beyond they help most
_SOME_WORK, _MOST_WORK = 0.2, 0.7  # shares of the work left, for windows and for the bound
_PROBES = 4  # budgets tried with one limit
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
        How it ended: ``solution``, ``no solution``, ``states`` or ``work``.
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
        States of up to 64 nodes that a search may hold; of larger problems, fewer.
    work : Work, optional
        What the searches are charged to; none is begun when that is spent.

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
        work: Work | None = None,
    ) -> None:
        self.order = tuple(order)
        self.peak = problem.peak(order)
        self.lower_bound = min(lower_bound, self.peak)
        self.steps: list[BudgetStep] = []
        self._problem = problem
        # A state takes a word for each 64 nodes, so of larger problems fewer fit into the same memory.
        self._state_limit = max(1, state_limit // max(1, -(-len(problem) // 64)))
        self._work = work or Work()
        self._tables: Tables | None = None

    @property
    def is_over(self) -> bool:
        """Whether the order is proven to be best, or the work is spent."""
        return self.peak <= self.lower_bound or self._work.is_over

    def run(self, exact: bool = True) -> None:
        """Search with growing limits, until one of them is reached, or the work is spent.

        Parameters
        ----------
        exact : bool
            Bisect the budget, too, which raises the lower bound; otherwise only beams are tried.
        """
        large = len(self._problem) > _LARGE
        if len(self._problem) > _SMALL:
            self._improve_by_windows(_MOST_WORK if large else _SOME_WORK, thorough=large)
        if not self.is_over:
            share = self._work.share(_SOME_WORK)
            self.lower_bound = raised_bound(self._problem, self.order, self.lower_bound, work=share)
        limit = min(_FIRST_LIMIT, self._state_limit)
        if exact:
            self._search(self.lower_bound, limit)  # often the bound can be reached, and this is the cheapest search
        widest, better = 0, False
        while not self.is_over:
            if exact:
                self._bisect(limit)
            width = max(1, min(limit // _BEAM_SHARE, self._state_limit // len(self._problem)))
            for _ in range(_BEAMS):
                tried = width == widest and not better
                if self.is_over or tried or not (better := self._search(self.peak - 1, width, beam=True)):
                    break
            widest = width
            if limit >= self._state_limit:
                break
            limit = min(limit * _GROWTH, self._state_limit)

    def _improve_by_windows(self, share: float, thorough: bool) -> None:
        """Start from an order that no window improves, or that a share of the work went into."""
        work = self._work.share(share)
        order, transitions = improve_by_windows(
            self._problem, self.order, self.lower_bound, work=work, thorough=thorough
        )
        better = self._problem.peak(order) < self.peak
        self.order, self.peak = order, self._problem.peak(order)
        flag: Flag = "solution" if better else "work" if work.is_over else "no solution"
        self.steps.append(BudgetStep(self.peak, 0, "windows", flag, False, transitions))

    def _bisect(self, limit: int) -> None:
        """Bring the lower bound and the best peak together with searches that fit into a limit."""
        capped = self.peak
        budget = self.peak - 1  # if that leaves no order, nothing else is to be done
        for _ in range(_PROBES):
            before = self.lower_bound
            better = self._search(budget, limit)
            if not better and self.lower_bound == before:
                capped = budget
            capped = min(capped, self.peak)
            if self.is_over or capped <= self.lower_bound:
                break
            proof = not better and capped == self.peak
            budget = self.peak - 1 if proof else (self.lower_bound + capped) // 2

    def _search(self, budget: int, limit: int, beam: bool = False) -> bool:
        """Search under a budget; tell whether a better order was found."""
        if self.is_over:
            return False
        if self._tables is None:
            self._tables = tables(self._problem)
        found = search(
            self._problem,
            budget=budget,
            # Whether there is an order within the budget is easier to tell than which one is best.
            floor=self.lower_bound if beam else budget,
            level_limit=None if beam else limit,
            width=limit if beam else None,
            state_limit=self._state_limit,
            work=self._work,
            arrays=self._tables,
        )
        kind = "beam" if beam else "exact"
        self.steps.append(BudgetStep(budget, limit, kind, found.flag, found.complete, found.transitions))
        if found.flag == "solution":
            self.order, self.peak = found.order, self._problem.peak(found.order)
            if found.complete and beam:
                self.lower_bound = self.peak
        elif found.flag == "no solution" and found.complete:
            self.lower_bound = min(found.exceeded, self.peak)
        return found.flag == "solution"
