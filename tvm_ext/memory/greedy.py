"""Quick orders: at each step the ready node that leaves the fewest bytes alive, forwards or from the end backwards."""

from __future__ import annotations

import heapq

from tvm_ext.memory.problem import MemoryProblem, members


def greedy_order(problem: MemoryProblem, *, backwards: bool = False, recent: bool = False) -> tuple[int, ...]:
    """List the nodes, each time the ready one that adds the least to the bytes alive.

    Parameters
    ----------
    problem : MemoryProblem
        Nodes and storages.
    backwards : bool
        Build the order from its end: the bytes alive between nodes are the same read from either side.
    recent : bool
        Of nodes that add the same, take the one that became ready last; otherwise the first of the given order.
    """
    count = len(problem)
    before = [list(members(mask)) for mask in problem.predecessors]
    after: list[list[int]] = [[] for _ in range(count)]
    for node, others in enumerate(before):
        for other in others:
            after[other].append(node)
    if backwards:
        before, after = after, before
    waiting = [len(others) for others in before]
    sizes = [storage.size for storage in problem.storages]
    begun = [storage.kept if backwards else storage.resident for storage in problem.storages]
    stays = [storage.resident if backwards else storage.kept for storage in problem.storages]
    left = [storage.nodes.bit_count() for storage in problem.storages]
    adds = [0] * count
    for node in range(count):
        for number in problem.touched[node]:
            adds[node] += 0 if begun[number] else sizes[number]
            adds[node] -= sizes[number] if left[number] == 1 and not stays[number] else 0
    undone = (1 << count) - 1
    clock = 0
    heap: list[tuple[int, int, int]] = []

    def push(node: int) -> None:
        nonlocal clock
        clock += 1
        tie = -clock if recent else (-node if backwards else node)
        heapq.heappush(heap, (adds[node], tie, node))

    for node in range(count):
        if not waiting[node]:
            push(node)
    order: list[int] = []
    while heap:
        value, _, node = heapq.heappop(heap)
        if not undone >> node & 1 or value != adds[node]:
            continue  # an entry that a better one has replaced
        order.append(node)
        undone ^= 1 << node
        changed: set[int] = set()
        for number in problem.touched[node]:
            left[number] -= 1
            if not begun[number]:
                begun[number] = True
                for other in members(problem.storages[number].nodes & undone):
                    adds[other] -= sizes[number]
                    changed.add(other)
            if left[number] == 1 and not stays[number]:
                other = (problem.storages[number].nodes & undone).bit_length() - 1
                adds[other] -= sizes[number]
                changed.add(other)
        for other in after[node]:
            waiting[other] -= 1
            if not waiting[other]:
                push(other)
                changed.discard(other)
        for other in changed:
            if not waiting[other]:
                push(other)
    return tuple(reversed(order)) if backwards else tuple(order)
