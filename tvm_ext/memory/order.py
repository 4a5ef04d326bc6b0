"""Choose the order of a function's nodes: the least peak that an effort finds, and how far off it may be.

The problem is divided where every order has the same nodes behind it. Each part starts with the best of some quick
orders; while the peak is above the lower bound, the part that causes it is searched exactly under an adaptive budget,
and where that is too much, by beams over the same states, or piece by piece.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from tvm_ext.errors import OptionError
from tvm_ext.graph import (
    DataflowGraph,
    LivenessOptions,
    Order,
    breadth_first_order,
    depth_first_order,
    given_order,
    peak_bytes,
)
from tvm_ext.memory.bounds import MOST_NODES, lower_bound
from tvm_ext.memory.budget import BudgetSearch, BudgetStep
from tvm_ext.memory.divide import Part, divide
from tvm_ext.memory.greedy import greedy_order
from tvm_ext.memory.problem import MemoryProblem, memory_problem
from tvm_ext.memory.work import SECOND, Work

Method: TypeAlias = Literal["optimal", "beam", "greedy", "given"]


@dataclass(frozen=True)
class OrderOptions:
    """How to look for an order.

    Attributes
    ----------
    method : str
        ``optimal``: search for the best order, with the others as a start and a fall-back; ``beam``: no exact search;
        ``greedy``: quick orders only; ``given``: the order of the function.
    effort : float
        Steps of work to search for; a million takes about a second. With 0 the answer is that of ``greedy``.
    state_limit : int
        States of up to 64 nodes that a search may hold at once, about 100 bytes each; of larger parts, fewer.
    divide : bool
        Cut the problem where it can be.
    liveness : LivenessOptions
        What a live byte is.

    Raises
    ------
    OptionError
        When a value is not one of those.
    """

    method: Method = "optimal"
    effort: float = SECOND
    state_limit: int = 2_000_000
    divide: bool = True
    liveness: LivenessOptions = field(default_factory=LivenessOptions)

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            candidates = ", ".join(get_args(Method))
            raise OptionError(f"order option 'method' is {self.method!r}, expected one of {candidates}")
        if not self.effort >= 0:
            raise OptionError(f"order option 'effort' is {self.effort!r}, expected a number of steps, 0 or more")
        if not self.state_limit >= 1:
            raise OptionError(f"order option 'state_limit' is {self.state_limit!r}, expected 1 or more")


@dataclass(frozen=True)
class OrderPlan:
    """An order, and what is known of it.

    Attributes
    ----------
    order : tuple of int
        Indices of the nodes.
    peak : int
        Bytes alive at its highest step, as :func:`tvm_ext.graph.peak_bytes` counts them.
    given_peak : int
        The same for the order of the function.
    lower_bound : int
        Bytes; no order has a lower peak.
    method : str
        What found it: ``given``, ``depth first``, ``breadth first``, ``greedy``, ``dynamic program``, ``beam`` or
        ``windows``; with several parts, what ordered the part with the peak.
    parts : tuple of int
        Number of nodes of each part.
    states : int
        Steps between states that were looked at.
    work : float
        Steps of work that the searches took; see :attr:`OrderOptions.effort`.
    seconds : float
        Time taken.
    steps : tuple of BudgetStep
        The exact searches, in order.
    """

    order: Order
    peak: int
    given_peak: int
    lower_bound: int
    method: str
    parts: tuple[int, ...]
    states: int
    work: float
    seconds: float
    steps: tuple[BudgetStep, ...] = ()

    @property
    def optimal(self) -> bool:
        """Whether no order has a lower peak, proven."""
        return self.peak == self.lower_bound

    @property
    def gap(self) -> float:
        """How far the peak may be above the best one, relative to the lower bound: 0.05 is 5 %."""
        return 0.0 if self.optimal else self.peak / self.lower_bound - 1 if self.lower_bound else float("inf")

    def __str__(self) -> str:
        proof = "no order needs less" if self.optimal else f"at most {100 * self.gap:.1f} % above the best"
        return f"peak {self.peak:,} bytes ({self.method}; {proof}), {self.given_peak:,} in the given order"


@dataclass(eq=False)
class _Ordered:
    """A part with the best order known."""

    part: Part
    order: tuple[int, ...]
    peak: int
    lower_bound: int
    method: str
    finished: bool = False


def plan_order(graph: DataflowGraph, options: OrderOptions | None = None) -> OrderPlan:
    """Find an order of the nodes with a low peak of bytes alive.

    The same input gives the same order, also on a busy machine. Functions of more than 16,384 nodes get the best
    of the quick orders.

    Parameters
    ----------
    graph : DataflowGraph
        A graph whose sizes are numbers.
    options : OrderOptions, optional
        Method and limits.

    Returns
    -------
    OrderPlan
        An order whose peak is not higher than that of the given order.

    Raises
    ------
    GraphError
        When the size of a storage that counts is symbolic or unknown.
    """
    options = options or OrderOptions()
    started = time.monotonic()
    work = Work(options.effort)
    problem = memory_problem(graph, options.liveness)
    given_peak = peak_bytes(graph, None, options.liveness)
    if not len(graph) or options.method == "given":
        bound = lower_bound(problem) if len(graph) else given_peak
        seconds = time.monotonic() - started
        return OrderPlan(given_order(graph), given_peak, given_peak, bound, "given", (len(graph),), 0, 0.0, seconds)
    huge = len(graph) > MOST_NODES
    whole = (Part(tuple(range(len(graph))), problem),)
    parts = divide(problem) if options.divide and not huge else whole
    ordered = _quick_orders(graph, problem, parts)
    steps: list[BudgetStep] = []
    bound = max(one.lower_bound for one in ordered)
    while options.method != "greedy" and not huge and not work.is_over:
        highest = max(ordered, key=lambda one: one.peak)
        if highest.peak <= bound or highest.finished:
            break
        _improve(highest, bound, options, work, steps)
        bound = max(bound, highest.lower_bound)
    order = tuple(one.part.nodes[node] for one in ordered for node in one.order)
    highest = max(ordered, key=lambda one: one.peak)
    return OrderPlan(
        order,
        highest.peak,
        given_peak,
        bound,
        highest.method,
        tuple(len(part.nodes) for part in parts),
        sum(step.transitions for step in steps),
        work.spent,
        time.monotonic() - started,
        tuple(steps),
    )


def _quick_orders(graph: DataflowGraph, problem: MemoryProblem, parts: Sequence[Part]) -> list[_Ordered]:
    """Start each part with the best of the orders that take no search."""
    whole: list[tuple[str, Order]] = [
        ("given", given_order(graph)),
        ("depth first", depth_first_order(graph)),
        ("breadth first", breadth_first_order(graph)),
    ]
    for backwards in (False, True):
        for recent in (False, True):
            whole.append(("greedy", greedy_order(problem, backwards=backwards, recent=recent)))
    # Any order runs the parts one after another, so that the part of an order is a slice of it.
    ordered = []
    begin = 0
    for part in parts:
        place = {node: number for number, node in enumerate(part.nodes)}
        end = begin + len(part.nodes)
        bound = lower_bound(part.problem)
        slices = [(method, tuple(place[node] for node in order[begin:end])) for method, order in whole]
        best = _Ordered(part, slices[0][1], part.problem.peak(slices[0][1]), bound, slices[0][0])
        for method, mine in slices[1:]:
            if best.peak > bound and (peak := part.problem.peak(mine)) < best.peak:
                best = _Ordered(part, mine, peak, bound, method)
        ordered.append(best)
        begin = end
    return ordered


def _improve(one: _Ordered, bound: int, options: OrderOptions, work: Work, steps: list[BudgetStep]) -> None:
    """Search a part for an order that brings its peak down to the bound of the whole."""
    one.finished = True
    floor = max(bound, one.lower_bound)
    found = BudgetSearch(one.part.problem, one.order, floor, state_limit=options.state_limit, work=work)
    found.run(exact=options.method == "optimal")
    steps += found.steps
    if found.peak < one.peak:
        one.order, one.peak = found.order, one.part.problem.peak(found.order)
        last = next(step for step in reversed(found.steps) if step.flag == "solution")
        one.method = "dynamic program" if last.complete else last.kind
    one.lower_bound = max(one.lower_bound, min(found.lower_bound, one.peak))
