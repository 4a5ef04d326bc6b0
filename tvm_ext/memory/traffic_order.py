"""An order that moves few bytes to and from memory off the chip.

A low peak helps where a function nearly fits on the chip. Where it is far from fitting, what counts is that results are
used soon after they are made. The order is improved by moving nodes (chains of nodes that feed each other alone move as
one) to other places, with the simulated traffic as the judge; part by part, where the problem can be cut.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tvm_ext.graph import DataflowGraph, Liveness, Order, breadth_first_order, depth_first_order, given_order, liveness
from tvm_ext.memory.accesses import Access, access_trace
from tvm_ext.memory.divide import divide
from tvm_ext.memory.greedy import greedy_order
from tvm_ext.memory.problem import MemoryProblem, members, memory_problem
from tvm_ext.memory.traffic import Traffic, bytes_moved, off_chip_traffic, simulate
from tvm_ext.memory.work import SECOND, Work

_WORSE = 0.01  # of the moves that cost bytes, how many are taken
_ANY = 1 << 62
_WHOLE_STEPS, _TRIAL_STEPS = 20.0, 0.5  # of work, for each node, and for each node or access


@dataclass(frozen=True)
class TrafficPlan:
    """An order, and what it moves.

    Attributes
    ----------
    order : tuple of int
        Indices of the nodes.
    traffic, given : Traffic
        Bytes moved with this order, and with the order of the function.
    trials : int
        Orders simulated.
    """

    order: Order
    traffic: Traffic
    given: Traffic
    trials: int


def plan_traffic_order(
    graph: DataflowGraph,
    capacity: int,
    orders: Sequence[Sequence[int]] = (),
    *,
    tile: int | None = None,
    effort: float = SECOND,
    trials: int = 20_000,
) -> TrafficPlan:
    """Find an order with little traffic for a memory of a capacity.

    Parameters
    ----------
    graph : DataflowGraph
        A graph whose sizes are numbers.
    capacity : int
        Bytes on the chip.
    orders : sequence of orders
        Orders to start from, besides some quick ones: the one with the lowest peak, for example.
    tile : int, optional
        Bytes of a tile; without, whole tensors move (:func:`~tvm_ext.memory.traffic.off_chip_traffic`).
    effort : float
        Steps of work; a million takes about a second.
    trials : int
        Orders to simulate at most.

    Returns
    -------
    TrafficPlan
        Not more traffic than the order of the function.

    Raises
    ------
    GraphError
        When an order is not topological, or a size is not a number.
    OptionError
        When the capacity is negative or the tile not positive.
    """
    work = Work(effort)
    problem = memory_problem(graph)
    starts: list[Sequence[int]] = [given_order(graph), *orders, depth_first_order(graph), breadth_first_order(graph)]
    starts += [greedy_order(problem), greedy_order(problem, backwards=True)]
    best: Sequence[int] = starts[0]
    given = traffic = off_chip_traffic(graph, capacity, best, tile=tile)
    tried = 1
    for order in starts[1:]:
        if work.is_over:
            break
        tried += 1
        work.spend(_WHOLE_STEPS * len(graph))
        found = off_chip_traffic(graph, capacity, order, tile=tile)
        if found.total < traffic.total:
            best, traffic = order, found
    searches = [
        _PartSearch(graph, problem, part.nodes, best, capacity, tile) for part in divide(problem) if len(part.nodes) > 2
    ]
    searches = [search for search in searches if search.spilled]
    for number, search in enumerate(searches):
        tried += search.run(work.share(1 / (len(searches) - number)), (trials - tried) // (len(searches) - number))
    changed = list(best)
    for search in searches:
        changed[search.begin : search.begin + len(search.order)] = search.order
    found = off_chip_traffic(graph, capacity, changed, tile=tile)
    if found.total < traffic.total:
        best, traffic = changed, found
    return TrafficPlan(tuple(best), traffic, given, tried)


class _PartSearch:
    """Local search in one part of an order, with what is in front of it and behind it left alone."""

    def __init__(
        self,
        graph: DataflowGraph,
        problem: MemoryProblem,
        nodes: Sequence[int],
        order: Sequence[int],
        capacity: int,
        tile: int | None,
    ) -> None:
        inside = frozenset(nodes)
        places = [place for place, node in enumerate(order) if node in inside]
        self.begin = places[0]
        self.order = [order[place] for place in places]
        self._capacity = capacity
        self._groups: dict[int, list[tuple[Access, ...]]] = {node: [] for node in nodes}
        # Without results in place, which would tie the units to one order.
        alive = liveness(graph, order)
        plain = Liveness(alive.order, alive.during, alive.after, alive.intervals, alive.sizes)
        behind: set[str] = set()
        for step, group in access_trace(graph, plain, tile=tile):
            if order[step] in inside:
                self._groups[order[step]].append(group)
            elif step > places[-1]:
                behind.update(access.unit[0] for access in group)
        self._accesses = sum(len(group) for groups in self._groups.values() for group in groups)
        outputs = {root for name, root in graph.storages.items() if graph.tensors[name].kind == "output"}
        self._kept = behind | outputs
        self._chains = _chains(problem, inside)
        self._before = {node: [p for p in members(problem.predecessors[node]) if p in inside] for node in nodes}
        found = simulate(self._trace(self.order), capacity, len(self.order), self._kept)
        self._total, self._compulsory = found.total, found.compulsory

    @property
    def spilled(self) -> int:
        """Bytes moved because the chip is small."""
        return self._total - self._compulsory

    def run(self, work: Work, trials: int) -> int:
        """Move chains until the work or the trials are spent; tell how many orders were simulated."""
        choose = random.Random(0)
        order, cost = self.order, self._total
        tried = 0
        for _ in range(4 * trials):
            if tried >= trials or not self.spilled or work.is_over:
                break
            changed = self._moved(order, choose)
            if changed is None:
                continue
            tried += 1
            work.spend(_TRIAL_STEPS * (len(order) + self._accesses))
            limit = _ANY if choose.random() < _WORSE else cost
            total = bytes_moved(self._trace(changed), self._capacity, len(changed), self._kept, limit)
            if total <= limit:
                order, cost = changed, total
                if cost < self._total:
                    self.order, self._total = order, cost
        return tried

    def _moved(self, order: list[int], choose: random.Random) -> list[int] | None:
        """Put a chain at another place where it may be; None where it has no other."""
        chain = self._chains[choose.randrange(len(self._chains))]
        members_ = set(chain)
        rest = [node for node in order if node not in members_]
        place = {node: number for number, node in enumerate(rest)}
        low = max((place[p] + 1 for p in self._before[chain[0]]), default=0)
        last = chain[-1]
        high = min((place[node] for node in rest if last in self._before[node]), default=len(rest))
        old = sum(1 for node in order[: order.index(chain[0])] if node not in members_)
        choices = [number for number in range(low, high + 1) if number != old]
        if not choices:
            return None
        number = choose.choice(choices)
        return [*rest[:number], *chain, *rest[number:]]

    def _trace(self, order: Sequence[int]) -> list[tuple[int, tuple[Access, ...]]]:
        return [(step, group) for step, node in enumerate(order) for group in self._groups[node]]


def _chains(problem: MemoryProblem, inside: frozenset[int]) -> list[list[int]]:
    """Split nodes into chains in which each node has one predecessor, and is its only successor."""
    successors: dict[int, list[int]] = {node: [] for node in inside}
    for node in sorted(inside):
        for other in members(problem.predecessors[node]):
            if other in inside:
                successors[other].append(node)
    chains: list[list[int]] = []
    ending: dict[int, list[int]] = {}
    for node in sorted(inside):
        before = [other for other in members(problem.predecessors[node]) if other in inside]
        if len(before) == 1 and len(successors[before[0]]) == 1:
            chain = ending.pop(before[0])
            chain.append(node)
        else:
            chain = [node]
            chains.append(chain)
        ending[node] = chain
    return chains
