"""Parts of a graph that can be selected one after the other at little loss (GCD2, section 4.4.1).

An edge into an operator with one predecessor is *desirable* where that operator moves elements anyway, or where its
best plan pays for the relayout in front of it: then what lies behind does not depend on what lies before. A desirable
edge that every path passes is *dominant*, and parts the graph by itself; with another one, the fewest (and cheapest)
*complementary* edges are cut that make the cut complete. Where a part has no desirable edge, its order is cut at the
cheapest place that leaves both sides large.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import networkx as nx

from tvm_ext.layout.selection.problem import Edge, SelectionProblem

Kind = Literal["dominant", "complementary", "forced", "apart"]
"""Of a cut: one desirable edge; one with complementary edges; no desirable edge; no edge at all."""


@dataclass(frozen=True)
class Partition:
    """Parts in an order in which they can run.

    Attributes
    ----------
    parts : tuple of tuple of int
        Operators of each part.
    cuts : tuple of str
        How each part but the first came to be separated, sorted.
    """

    parts: tuple[tuple[int, ...], ...]
    cuts: tuple[Kind, ...] = ()


def is_desirable(problem: SelectionProblem, edge: Edge) -> bool:
    """Whether a graph may be parted at an edge (section 4.4.1, conditions 1 and 2).

    A relayout counts as profitable if, whichever plan the source has, the target's cheapest plan with its relayout
    costs no more than any other.
    """
    target = problem.operators[edge.target]
    if sum(other.target == edge.target for other in problem.edges_of[edge.target]) != 1:
        return False
    if target.is_relayout:
        return True
    own = [plan.cost for plan in target.plans]
    best = own.index(min(own))
    return all(own[best] + row[best] <= min(map(sum, zip(own, row, strict=True))) for row in edge.costs)


def partition(problem: SelectionProblem, size: int) -> Partition:
    """Part a graph until no part has more than ``size`` operators (the source uses 13 and 17).

    Parameters
    ----------
    problem : SelectionProblem
        Its operators are in an order in which they can run.
    size : int
        At least 1.
    """
    parts: list[tuple[int, ...]] = []
    cuts: list[Kind] = []
    waiting = [tuple(range(len(problem)))]
    while waiting:
        part = waiting.pop()
        if len(part) <= size:
            parts.append(part)
            continue
        before, kind = _best_cut(problem, part)
        cuts.append(kind)
        waiting.append(tuple(name for name in part if name not in before))
        waiting.append(tuple(name for name in part if name in before))
    return Partition(tuple(parts), tuple(sorted(cuts)))


def _best_cut(problem: SelectionProblem, part: tuple[int, ...]) -> tuple[set[int], Kind]:
    """Give the operators before a cut: of the best kind there is, the one that leaves the most even halves."""
    inside = set(part)
    edges = [edge for edge in problem.edges if edge.source in inside and edge.target in inside]
    graph = nx.Graph([(edge.source, edge.target) for edge in edges])
    graph.add_nodes_from(part)
    pieces = sorted(nx.connected_components(graph), key=min)
    if len(pieces) > 1:
        return set(pieces[0]), "apart"
    found = [_cut(part, edges, edge) for edge in edges if is_desirable(problem, edge)]
    sides = [(cost, before) for cost, before in found if before]
    if not sides:
        return _cheapest_prefix(part, edges), "forced"
    single = [before for _, before in sides if _crossing(edges, before) == 1]
    if single:
        return min(single, key=lambda before: _imbalance(before, part)), "dominant"
    # A cut that is not much dearer than the best one is worth even parts.
    even = [side for side in sides if _leaves_large_sides(len(side[1]), part)] or sides
    return min(even, key=lambda side: (side[0], _imbalance(side[1], part)))[1], "complementary"


def _cheapest_prefix(part: tuple[int, ...], edges: list[Edge]) -> set[int]:
    """Give the operators before the cheapest place in the order of the part that leaves both sides large.

    A minimum cut through each edge takes seconds where many operators read many others, and costs less afterwards
    only rarely: parts are chosen for again with what is around them fixed.
    """
    place = {name: index for index, name in enumerate(part)}
    change = [0] * len(part)
    for edge in edges:
        change[place[edge.source]] += _regret(edge)
        change[place[edge.target]] -= _regret(edge)
    costs = dict(enumerate(accumulate(change), start=1))
    large = [count for count in costs if _leaves_large_sides(count, part)]
    return set(part[: min(large, key=lambda count: (costs[count], abs(len(part) - 2 * count)))])


def _cut(part: tuple[int, ...], edges: list[Edge], edge: Edge) -> tuple[int, set[int]]:
    """Give the cheapest complete cut with an edge in it: cost, and the operators before it."""
    network = nx.DiGraph()
    for other in edges:
        held = network.get_edge_data(other.source, other.target, {"capacity": 0})["capacity"]
        network.add_edge(other.source, other.target, capacity=held + _regret(other))
        if not network.has_edge(other.target, other.source):
            network.add_edge(other.target, other.source)  # no capacity is infinite: nothing runs backwards
    network.add_edge("source", edge.source)
    network.add_edge(edge.target, "sink")
    cost, (before, _) = nx.minimum_cut(network, "source", "sink")
    return int(cost), {name for name in part if name in before}


def _regret(edge: Edge) -> int:
    """Give what choosing both ends without regard to each other loses at most; 1 more, so that few edges are cut."""
    return max(map(max, edge.costs)) - min(map(min, edge.costs)) + 1


def _leaves_large_sides(count: int, part: tuple[int, ...]) -> bool:
    return min(count, len(part) - count) * 4 >= len(part)


def _crossing(edges: list[Edge], before: set[int]) -> int:
    return sum((edge.source in before) != (edge.target in before) for edge in edges)


def _imbalance(before: set[int], part: tuple[int, ...]) -> int:
    return abs(len(part) - 2 * len(before))
