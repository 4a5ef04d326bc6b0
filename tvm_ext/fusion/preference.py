"""Takes the better of two ways to cut a function into blocks, piece by piece.

Two partitions of the same operators fall apart into pieces: the smallest sets that are unions of whole blocks of both.
In a piece the blocks of the one may be put in the place of those of the other, whatever is done elsewhere. The plan by
mapping types is kept where it is no worse than TVM's fusion in kernels, in bytes written, and in estimated time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tvm_ext.fusion.operator_graph import OperatorGraph
from tvm_ext.fusion.plan import FusionPlan, plan_of_blocks, removable_operators
from tvm_ext.graph.mapping_types import MappingType

Blocks = Sequence[Collection[int]]


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
    plan: FusionPlan, other: Blocks, graph: OperatorGraph, seconds: Callable[[Collection[int]], float]
) -> FusionPlan:
    """Put blocks of another partition in the place of those of a plan where these are worse.

    Parameters
    ----------
    plan : FusionPlan
    other : sequence of collections of int
        Operators that are one kernel by other means; those it does not name are kernels of their own.
    graph : OperatorGraph
    seconds : callable
        Seconds of a block.
    """
    named = {index for members in other for index in members}
    others = [set(members) for members in other] + [{index} for index in range(len(graph)) if index not in named]
    planned = [set(block.operators) for block in plan.blocks]
    chosen = planned
    for piece in pieces(planned, others, len(graph)):
        ours = [members for members in planned if members <= piece]
        theirs = [members for members in others if members <= piece]
        if not effort(graph, ours, seconds).is_worse_than(effort(graph, theirs, seconds)):
            continue
        exchanged = [members for members in chosen if not members <= piece] + theirs
        if plan_of_blocks(graph, exchanged) is not None:
            chosen = exchanged
    found = plan_of_blocks(graph, chosen)
    return plan if found is None else found


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
