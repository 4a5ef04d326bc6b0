"""A stronger lower bound of the peak: for each node, the least that can be alive while it runs, whatever ran before it.

Before a node runs some set of nodes that holds its ancestors, none of its descendants, and with each node its
predecessors. The bytes alive after such a set are a sum of terms "begun, and still needed", so the least of them over
all sets is the capacity of a minimum cut (J.-C. Picard, "Maximal closure of a graph and applications to combinatorial
problems", Management Science 22(11), 1976): nodes on the side of the source have run, and a storage is cut if a writer
of it has run and not all of its nodes have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tvm_ext.memory.problem import MemoryProblem, members
from tvm_ext.memory.work import Work

_ALWAYS = 1 << 62  # capacity of an edge that cannot be cut
_SOURCE, _SINK = 0, 1
_EDGE_STEPS, _NODE_STEPS = 0.15, 3.0  # of work, measured


def raised_bound(problem: MemoryProblem, order: Sequence[int], lower_bound: int, *, work: Work | None = None) -> int:
    """Raise a lower bound of the peak of every order.

    Parameters
    ----------
    problem : MemoryProblem
        Nodes and storages.
    order : sequence of int
        Some order; a node cannot raise the bound above what is alive when it runs there.
    lower_bound : int
        Bytes.
    work : Work, optional
        What the cuts are charged to; none is begun when that is spent.

    Returns
    -------
    int
        Bytes, not below the bound given.
    """
    work = work or Work()
    during, _ = problem.profile(order)
    for bytes_, node in sorted(zip(during, order, strict=True), reverse=True):
        if bytes_ <= lower_bound or work.is_over:
            break
        lower_bound = max(lower_bound, least_at(problem, node, work))
    return lower_bound


def least_at(problem: MemoryProblem, node: int, work: Work | None = None) -> int:
    """Find the least bytes alive while a node runs, over all sets of nodes that can have run before it.

    What it could write in place at best is taken off, so with candidates for that it is a lower bound of them.
    """
    before = problem.ancestors[node]
    behind = problem.descendants[node] | 1 << node
    network = _Network()
    vertex = {other: network.add_vertex() for other in members((1 << len(problem)) - 1 & ~before & ~behind)}
    total = problem.base + problem.inside[node] - problem.taken_over(node, ~problem.descendants[node])
    for storage in problem.storages:
        begun = storage.resident or bool(storage.writers & before)
        needed = storage.kept or bool(storage.nodes & behind)
        free = [vertex[other] for other in members(storage.nodes & ~before & ~behind)]
        if storage.nodes >> node & 1 or (begun and needed):
            total += storage.size
            continue
        writers = [vertex[other] for other in members(storage.writers & ~before & ~behind)]
        if not (begun or writers) or not (needed or free):
            continue
        start = _SOURCE if begun else writers[0] if len(writers) == 1 else network.joined(writers)
        end = _SINK if needed else network.add_vertex()
        network.add_edge(start, end, storage.size)
        if not needed:
            for other in free:
                network.add_edge(end, other, _ALWAYS)
    for other, number in vertex.items():
        for earlier in members(problem.predecessors[other] & ~before):
            network.add_edge(number, vertex[earlier], _ALWAYS)
    cut = network.minimum_cut()
    if work is not None:
        work.spend(_EDGE_STEPS * network.looked_at + _NODE_STEPS * (len(vertex) + len(problem.storages)))
    return total + cut


class _Network:
    """Vertices and edges with capacities; vertex 0 is the source, vertex 1 the sink."""

    def __init__(self) -> None:
        self.looked_at = 0
        self._leaving: list[list[int]] = [[], []]
        self._heads: list[int] = []
        self._left: list[int] = []  # what an edge can still carry; edge 2i + 1 is edge 2i backwards

    def add_vertex(self) -> int:
        self._leaving.append([])
        return len(self._leaving) - 1

    def add_edge(self, tail: int, head: int, capacity: int) -> None:
        for end, start, left in ((head, tail, capacity), (tail, head, 0)):
            self._leaving[start].append(len(self._heads))
            self._heads.append(end)
            self._left.append(left)

    def joined(self, vertices: Sequence[int]) -> int:
        """Add a vertex that is on the side of the source if one of some vertices is."""
        new = self.add_vertex()
        for vertex in vertices:
            self.add_edge(vertex, new, _ALWAYS)
        return new

    def minimum_cut(self) -> int:
        """Find the maximum flow, along shortest paths (J. Edmonds, R. M. Karp, Journal of the ACM 19(2), 1972)."""
        flow = 0
        while path := self._shortest_path():
            more = min(self._left[edge] for edge in path)
            for edge in path:
                self._left[edge] -= more
                self._left[edge ^ 1] += more
            flow += more
        return flow

    def _shortest_path(self) -> list[int]:
        came_by: dict[int, int] = {_SOURCE: -1}
        waiting = deque([_SOURCE])
        while waiting:
            tail = waiting.popleft()
            self.looked_at += len(self._leaving[tail])
            for edge in self._leaving[tail]:
                head = self._heads[edge]
                if self._left[edge] and head not in came_by:
                    came_by[head] = edge
                    if head == _SINK:
                        path = []
                        while head != _SOURCE:
                            path.append(came_by[head])
                            head = self._heads[came_by[head] ^ 1]
                        return path
                    waiting.append(head)
        return []
