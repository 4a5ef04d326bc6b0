"""Cut a problem where every order has the same nodes behind it: the parts can be ordered one by one.

Networks of stacked cells have nodes that every other node is an ancestor or a descendant of; at such a node each order
has run the same set of nodes, so the best order is the best orders of the parts, one after another (divide and conquer
of B. H. Ahn et al., "Ordering Chaos: Memory-Aware Scheduling of Irregularly Wired Neural Networks for Edge Devices",
MLSys 2020, section 3.2). The condition used here is the general one: a set of ``k`` nodes of which each must be among
the first ``k`` of any order; several nodes may end a part together. What is alive at the cut is resident in the part
behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_ext.memory.problem import MemoryProblem


@dataclass(frozen=True, eq=False)
class Part:
    """A part between two cuts.

    Attributes
    ----------
    nodes : tuple of int
        Nodes of the undivided problem, ascending; node ``i`` of ``problem`` is ``nodes[i]``.
    problem : MemoryProblem
        The problem of ordering them.
    """

    nodes: tuple[int, ...]
    problem: MemoryProblem


def divide(problem: MemoryProblem) -> tuple[Part, ...]:
    """Cut a problem wherever every order has run the same nodes.

    Returns
    -------
    tuple of Part
        In the order they run.
    """
    count = len(problem)
    by_latest: list[list[int]] = [[] for _ in range(count)]
    for node, after in enumerate(problem.descendants):
        by_latest[count - 1 - after.bit_count()].append(node)
    parts = []
    done = 0
    pending: list[int] = []
    behind = 0
    for place in range(count):
        pending += by_latest[place]
        if behind + len(pending) == place + 1:
            whole = not behind and place == count - 1
            parts.append(Part(tuple(sorted(pending)), problem if whole else problem.part(pending, done)))
            done |= sum(1 << node for node in pending)
            behind = place + 1
            pending = []
    return tuple(parts)
