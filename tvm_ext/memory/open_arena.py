"""One arena for tensors whose sizes are only known at run time: which lie above which, for every size.

Two tensors that are alive at the same time lie one above the other; which of them is above is decided here, from plans
for a few sizes. The offsets follow when the sizes are known: a tensor begins where the highest of those below it ends.
No size can make two of them overlap, and at the sizes that were planned for the arena is as small as planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from tvm_ext.errors import CompileError
from tvm_ext.memory.arena import plan_arena

ALIGNMENT = 64
"""Bytes that every offset is a multiple of."""


@dataclass(frozen=True)
class OpenArenaPlan:
    """Which tensors lie above which.

    Attributes
    ----------
    intervals : mapping of str to (int, int)
        First and last step at which each tensor is alive, both included.
    below : mapping of str to tuple of str
        The tensors that each lies directly above; a tensor with none below it begins where the arena does. In an order
        in which all that are below a tensor come before it.
    ratios : tuple of float
        Size of the arena over the most bytes that are alive at a step, for each of the sizes that were tried.
    """

    intervals: Mapping[str, tuple[int, int]]
    below: Mapping[str, tuple[str, ...]]
    ratios: tuple[float, ...]

    def offsets(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Give the offset of each tensor, in bytes, for the size of each."""
        found: dict[str, int] = {}
        for name, lower in self.below.items():
            found[name] = max((found[other] + rounded(sizes[other]) for other in lower), default=0)
        return found

    def size(self, sizes: Mapping[str, int]) -> int:
        """Give the bytes of the arena for the size of each tensor."""
        return max((offset + rounded(sizes[name]) for name, offset in self.offsets(sizes).items()), default=0)


def rounded(size: int) -> int:
    """Round a size up, so that what follows is aligned."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def live_bytes(intervals: Mapping[str, tuple[int, int]], sizes: Mapping[str, int]) -> int:
    """Give the most bytes that are alive at one step, each tensor rounded up: no arena can be smaller."""
    steps = {first for first, _ in intervals.values()}
    return max(
        (sum(rounded(sizes[name]) for name, (first, last) in intervals.items() if first <= step <= last))
        for step in steps
    )


def plan_open_arena(intervals: Mapping[str, tuple[int, int]], samples: Sequence[Mapping[str, int]]) -> OpenArenaPlan:
    """Decide which tensors lie above which.

    Parameters
    ----------
    intervals : mapping of str to (int, int)
        First and last step at which each tensor is alive, both included; one at least.
    samples : sequence of mapping of str to int
        Bytes of each tensor for some of the sizes that there may be at run time; one at least.

    Returns
    -------
    OpenArenaPlan
        The one of the plans for single samples whose worst ratio over all of them is least.
    """
    candidates = []
    for sizes in samples:
        planned = {name: max(1, sizes[name]) for name in intervals}
        offsets = plan_arena(intervals, planned, alignment=ALIGNMENT).offsets
        below = _below(intervals, planned, offsets)
        ratios = tuple(_ratio(OpenArenaPlan(intervals, below, ()), other) for other in samples)
        candidates.append(OpenArenaPlan(intervals, below, ratios))
    return min(candidates, key=lambda plan: (max(plan.ratios), sum(plan.ratios)))


def _ratio(plan: OpenArenaPlan, sizes: Mapping[str, int]) -> float:
    least = live_bytes(plan.intervals, sizes)
    return plan.size(sizes) / least if least else 1.0


def _below(
    intervals: Mapping[str, tuple[int, int]], sizes: Mapping[str, int], offsets: Mapping[str, int]
) -> dict[str, tuple[str, ...]]:
    """Read off a plan which tensors lie directly above which."""
    order = sorted(intervals, key=lambda name: offsets[name])
    graph = nx.DiGraph()
    graph.add_nodes_from(order)
    for position, name in enumerate(order):
        for other in order[:position]:
            if meet(intervals[name], intervals[other]):
                graph.add_edge(other, name)
    reduced = nx.transitive_reduction(graph)
    return {name: tuple(sorted(reduced.predecessors(name), key=order.index)) for name in order}


def meet(first: tuple[int, int], second: tuple[int, int]) -> bool:
    """Whether two intervals have a step in common."""
    return first[0] <= second[1] and second[0] <= first[1]


def verify_open_arena(plan: OpenArenaPlan) -> None:
    """Check that no two tensors overlap whatever their sizes: of two that are alive at once, one is above the other.

    Raises
    ------
    CompileError
        If that does not hold for a pair, or a tensor lies above itself.
    """
    above: dict[str, set[str]] = {}
    for name, lower in plan.below.items():
        unknown = [other for other in lower if other not in above]
        if unknown:
            raise CompileError(f"arena of open sizes: {name} lies above {unknown[0]}, which has no place before it")
        above[name] = set(lower).union(*(above[other] for other in lower))
    names = sorted(plan.intervals)
    for position, name in enumerate(names):
        for other in names[:position]:
            if meet(plan.intervals[name], plan.intervals[other]):
                if other not in above.get(name, ()) and name not in above.get(other, ()):
                    raise CompileError(f"arena of open sizes: {name} and {other} are alive at once and may overlap")
