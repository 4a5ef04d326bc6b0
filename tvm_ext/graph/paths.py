"""Paths in a graph: what is reachable, how many ways there are, and whether a set of nodes can run as one."""

from __future__ import annotations

from collections.abc import Collection

from tvm_ext.errors import GraphError
from tvm_ext.graph.dataflow import DataflowGraph


def descendants(graph: DataflowGraph) -> tuple[int, ...]:
    """List for each node the nodes that depend on it, directly or not, as a bit mask (bit ``i`` is node ``i``)."""
    masks = [0] * len(graph)
    for index in reversed(range(len(graph))):
        for follower in graph.successors[index]:
            masks[index] |= masks[follower] | 1 << follower
    return tuple(masks)


def ancestors(graph: DataflowGraph) -> tuple[int, ...]:
    """List for each node the nodes it depends on, directly or not, as a bit mask (bit ``i`` is node ``i``)."""
    masks = [0] * len(graph)
    for index in range(len(graph)):
        for before in graph.predecessors[index]:
            masks[index] |= masks[before] | 1 << before
    return tuple(masks)


def is_convex(graph: DataflowGraph, nodes: Collection[int]) -> bool:
    """Tell whether no path leaves the set of nodes and comes back, so that the set can run as one kernel."""
    return path_outside(graph, nodes) is None


def path_outside(graph: DataflowGraph, nodes: Collection[int]) -> tuple[int, ...] | None:
    """Find a shortest path that leaves a set of nodes and comes back: the witness against convexity.

    Parameters
    ----------
    graph : DataflowGraph
        The graph.
    nodes : collection of int
        Indices of nodes.

    Returns
    -------
    path : tuple of int, or None
        None when the set is convex.

    Raises
    ------
    GraphError
        When an index is not one of a node of the graph.
    """
    inside = set(nodes)
    _check_nodes(graph, *inside)
    # Nodes are in topological order: beyond the last member no path can come back.
    last = max(inside, default=-1)
    came_from: dict[int, int] = {}
    frontier = sorted(inside)
    while frontier:
        following = []
        for index in frontier:
            for other in graph.successors[index]:
                if other in inside and index not in inside:
                    path = [other, index]
                    while path[-1] not in inside:
                        path.append(came_from[path[-1]])
                    return tuple(reversed(path))
                if other not in inside and other not in came_from and other < last:
                    came_from[other] = index
                    following.append(other)
        frontier = following
    return None


def count_paths(graph: DataflowGraph, source: int, target: int) -> int:
    """Count the paths from one node to another; 1 from a node to itself.

    Raises
    ------
    GraphError
        When an index is not one of a node of the graph.
    """
    _check_nodes(graph, source, target)
    ways = [0] * len(graph)
    ways[source] = 1
    for index in range(source, target):
        if ways[index]:
            for follower in graph.successors[index]:
                ways[follower] += ways[index]
    return ways[target]


def count_all_paths(graph: DataflowGraph) -> int:
    """Count the paths from the nodes without predecessors to the nodes without successors."""
    ways = [0] * len(graph)
    for index, before in enumerate(graph.predecessors):
        ways[index] = sum(ways[other] for other in before) if before else 1
    return sum(ways[index] for index in range(len(graph)) if not graph.successors[index])


def _check_nodes(graph: DataflowGraph, *indices: int) -> None:
    for index in indices:
        if not 0 <= index < len(graph):
            raise GraphError(f"graph '{graph.name}' has no node {index}, its nodes are 0 to {len(graph) - 1}")
