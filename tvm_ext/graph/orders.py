"""Topological orders of a graph: the given one, depth first, breadth first, random, all of them; and their check."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence

from tvm_ext.errors import GraphError
from tvm_ext.graph.dataflow import DataflowGraph, Order


def given_order(graph: DataflowGraph) -> Order:
    """Return the order in which the function binds its nodes."""
    return tuple(range(len(graph)))


def depth_first_order(graph: DataflowGraph) -> Order:
    """Run what a result needs right before it, going back depth first from each node that nothing depends on."""
    order: list[int] = []
    done = [False] * len(graph)
    for sink in (node.index for node in graph.nodes if not graph.successors[node.index]):
        stack = [sink]
        while stack:
            index = stack[-1]
            waiting = [p for p in reversed(graph.predecessors[index]) if not done[p]]
            if waiting:
                stack.extend(waiting)
                continue
            stack.pop()
            if not done[index]:
                done[index] = True
                order.append(index)
    return tuple(order)


def breadth_first_order(graph: DataflowGraph) -> Order:
    """Run level by level: Kahn's algorithm with a queue (A. B. Kahn, "Topological sorting of large networks", 1962)."""
    waiting = [len(before) for before in graph.predecessors]
    ready = deque(index for index, count in enumerate(waiting) if count == 0)
    order = []
    while ready:
        index = ready.popleft()
        order.append(index)
        for follower in graph.successors[index]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                ready.append(follower)
    return tuple(order)


def random_order(graph: DataflowGraph, seed: int) -> Order:
    """Choose at random among the ready nodes; the same seed gives the same order."""
    choose = random.Random(seed)
    waiting = [len(before) for before in graph.predecessors]
    ready = [index for index, count in enumerate(waiting) if count == 0]
    order = []
    while ready:
        place = choose.randrange(len(ready))
        ready[place], ready[-1] = ready[-1], ready[place]
        index = ready.pop()
        order.append(index)
        for follower in graph.successors[index]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                ready.append(follower)
    return tuple(order)


def topological_orders(graph: DataflowGraph) -> Iterator[Order]:
    """Yield every topological order, in lexicographic order; there can be factorially many."""
    waiting = [len(before) for before in graph.predecessors]
    order: list[int] = []

    def extend() -> Iterator[Order]:
        if len(order) == len(graph):
            yield tuple(order)
            return
        for index, count in enumerate(waiting):
            if count:
                continue
            waiting[index] = -1
            for follower in graph.successors[index]:
                waiting[follower] -= 1
            order.append(index)
            yield from extend()
            order.pop()
            for follower in graph.successors[index]:
                waiting[follower] += 1
            waiting[index] = 0

    return extend()


def count_topological_orders(graph: DataflowGraph) -> int:
    """Count the topological orders, by dynamic programming over the sets of nodes already run.

    Takes time and memory in the number of such sets: up to ``2 ** len(graph)``.
    """
    before = [sum(1 << p for p in predecessors) for predecessors in graph.predecessors]
    level = {0: 1}
    for _ in range(len(graph)):
        following: dict[int, int] = {}
        for done, count in level.items():
            for index, needed in enumerate(before):
                if not done >> index & 1 and needed & ~done == 0:
                    grown = done | 1 << index
                    following[grown] = following.get(grown, 0) + count
        level = following
    return sum(level.values())


def check_order(graph: DataflowGraph, order: Sequence[int]) -> Order:
    """Return the order as a tuple, if it is a topological order of the graph.

    Raises
    ------
    GraphError
        When a node is missing, is there twice, or comes before one that it depends on.
    """
    position = {index: place for place, index in enumerate(order)}
    where = f"order of graph '{graph.name}'"
    if sorted(order) != list(range(len(graph))):
        twice = [i for i in position if list(order).count(i) > 1] if len(position) != len(order) else []
        unknown = [i for i in order if not 0 <= i < len(graph)]
        if unknown:
            raise GraphError(f"{where}: there is no node {unknown[0]}, nodes are 0 to {len(graph) - 1}")
        if twice:
            raise GraphError(f"{where}: node {twice[0]} ('{graph.nodes[twice[0]].name}') is there more than once")
        left = next(i for i in range(len(graph)) if i not in position)
        raise GraphError(f"{where}: node {left} ('{graph.nodes[left].name}') is missing")
    for index, before in enumerate(graph.predecessors):
        for other in before:
            if position[other] > position[index]:
                raise GraphError(
                    f"{where}: node {index} ('{graph.nodes[index].name}') runs before node {other} "
                    f"('{graph.nodes[other].name}') that it depends on"
                )
    return tuple(order)


def is_topological_order(graph: DataflowGraph, order: Sequence[int]) -> bool:
    """Tell whether the order holds every node once, each after the nodes it depends on."""
    try:
        check_order(graph, order)
    except GraphError:
        return False
    return True
