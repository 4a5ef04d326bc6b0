"""Takes the better of two ways to cut a function into blocks, piece by piece.

Two partitions of the same operators fall apart into pieces: the smallest sets that are unions of whole blocks of both.
In a piece the blocks of the one may be put in the place of those of the other, whatever is done elsewhere. The plan by
mapping types is kept where it is no worse than TVM's fusion in kernels, in bytes written, and in time, which is
measured where that can be and estimated otherwise.

What later passes merge decides, too: whether a module with the pieces that were kept is no worse than one without is
found by :func:`kept_kinds`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from tvm_ext.fusion.operator_graph import OperatorGraph
from tvm_ext.fusion.plan import FusionPlan, plan_of_blocks, removable_operators
from tvm_ext.graph.mapping_types import MappingType

Blocks = Sequence[Collection[int]]

MEASURED_MARGIN = 1.05
"""How much longer measured blocks may take than others: measurements vary."""

MOST_TRIALS = 8
"""How many sets of kinds of pieces are tried one after the other; each costs a run of the passes behind fusion."""


@dataclass(frozen=True)
class Effort:
    """What some blocks take.

    Attributes
    ----------
    kernels : int
        A reshape alone is a view, and none.
    nbytes : int
        Bytes of the results that are written.
    seconds : float
        Estimated.
    """

    kernels: int
    nbytes: int
    seconds: float

    def is_worse_than(self, other: Effort) -> bool:
        """Whether any of the three is more, the time by more than rounding."""
        return self.kernels > other.kernels or self.nbytes > other.nbytes or self.seconds > other.seconds * (1 + 1e-9)


def effort(graph: OperatorGraph, blocks: Blocks, seconds: Callable[[Collection[int]], float]) -> Effort:
    """Add up what blocks take."""
    kernels = [members for members in blocks if not _is_view(graph, members)]
    written = 0
    for members in kernels:
        removable = set(removable_operators(graph, members))
        written += sum(graph.operators[index].nbytes for index in members if index not in removable)
    return Effort(len(kernels), written, sum(seconds(members) for members in kernels))


def prefer(
    plan: FusionPlan,
    other: Blocks,
    graph: OperatorGraph,
    seconds: Callable[[Collection[int]], float],
    measured: Callable[[Collection[int]], float | None] = lambda _members: None,
) -> FusionPlan:
    """Put blocks of another partition in the place of those of a plan where these are worse.

    Parameters
    ----------
    plan : FusionPlan
    other : sequence of collections of int
        Operators that are one kernel by other means; those it does not name are kernels of their own.
    graph : OperatorGraph
    seconds : callable
        Estimated seconds of a block.
    measured : callable, optional
        Measured seconds of a block, or None. They count where all blocks of a piece, of both, have some.
    """
    others = with_single_operators(other, graph)
    planned = [set(block.operators) for block in plan.blocks]
    chosen = planned
    for piece in pieces(planned, others, len(graph)):
        ours = [members for members in planned if members <= piece]
        theirs = [members for members in others if members <= piece]
        if not _is_worse(graph, ours, theirs, seconds, measured):
            continue
        exchanged = [members for members in chosen if not members <= piece] + theirs
        if plan_of_blocks(graph, exchanged) is not None:
            chosen = exchanged
    found = plan_of_blocks(graph, chosen)
    return plan if found is None else found


def _is_worse(
    graph: OperatorGraph,
    ours: Blocks,
    theirs: Blocks,
    seconds: Callable[[Collection[int]], float],
    measured: Callable[[Collection[int]], float | None],
) -> bool:
    our_effort, their_effort = effort(graph, ours, seconds), effort(graph, theirs, seconds)
    if our_effort.kernels > their_effort.kernels or our_effort.nbytes > their_effort.nbytes:
        return True
    totals = []
    for blocks in (ours, theirs):
        found = [measured(members) for members in blocks if not _is_view(graph, members)]
        known = [value for value in found if value is not None]
        if len(known) < len(found):
            return our_effort.is_worse_than(their_effort)
        totals.append(sum(known))
    return totals[0] > MEASURED_MARGIN * totals[1]


def with_single_operators(blocks: Blocks, graph: OperatorGraph) -> list[set[int]]:
    """Complete blocks to a partition: an operator that is in none of them is a block of its own."""
    named = {index for members in blocks for index in members}
    return [set(members) for members in blocks] + [{index} for index in range(len(graph)) if index not in named]


def kept_kinds(
    kinds: Sequence[str], try_out: Callable[[AbstractSet[str]], Effort | None], most: int = MOST_TRIALS
) -> frozenset[str]:
    """Choose pieces, by their kinds, so that the module that comes out is no worse than without any of them.

    All are taken where that is no worse; otherwise one set of kinds after the other, where that is not worse than
    without it. A module counts as it is behind all passes that merge kernels: what these could have made of the other
    blocks, such as a convolution that computes in its loads what stands before it, may be more than a piece saves.

    Parameters
    ----------
    kinds : sequence of str
        Those that save most first.
    try_out : callable
        What a module takes with the pieces of some kinds; None where it cannot be made.
    most : int
        Sets that kinds are divided into at most.
    """
    every = frozenset(kinds)
    least = try_out(frozenset()) if every else None
    if least is None:
        return every
    with_all = try_out(every)
    if with_all is not None and not with_all.is_worse_than(least):
        return every
    taken: frozenset[str] = frozenset()
    for first in range(min(most, len(kinds)) if len(every) > 1 else 0):
        grown = taken | frozenset(kinds[first::most])
        found = try_out(grown)
        if found is not None and not found.is_worse_than(least):
            taken, least = grown, found
    return taken


def pieces(first: Sequence[set[int]], second: Sequence[set[int]], count: int) -> list[set[int]]:
    """List the smallest sets that are unions of blocks of either partition, and not blocks of both."""
    root = list(range(count))

    def find(index: int) -> int:
        while root[index] != index:
            root[index] = root[root[index]]
            index = root[index]
        return index

    for members in (*first, *second):
        anchor, *rest = members
        for index in rest:
            root[find(index)] = find(anchor)
    found: dict[int, set[int]] = {}
    for index in range(count):
        found.setdefault(find(index), set()).add(index)
    return [piece for piece in found.values() if piece not in first or piece not in second]


def _is_view(graph: OperatorGraph, members: Collection[int]) -> bool:
    (first, *rest) = members
    operator = graph.operators[first]
    return not rest and operator.mapping is MappingType.REORGANIZE and not operator.is_disjoint_window
