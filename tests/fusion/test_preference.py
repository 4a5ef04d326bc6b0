"""The better of two partitions, piece by piece: never worse than the other one, and still an order to run in."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from tests.fusion.random_operators import operator_graphs
from tvm_ext.fusion.operator_graph import OperatorGraph
from tvm_ext.fusion.plan import plan_of_blocks
from tvm_ext.fusion.planner import plan_fusion
from tvm_ext.fusion.preference import effort, pieces, prefer
from tvm_ext.fusion.verifier import verify_plan


def seconds(members: Collection[int]) -> float:
    return 1.0 + 0.01 * len(members)


def joined(graph: OperatorGraph, draws: list[bool]) -> list[set[int]]:
    """Partition a graph by other means: join an operator with one that it reads, where blocks can still be ordered."""
    blocks = [{index} for index in range(len(graph))]
    for index, wanted in zip(range(len(graph)), draws, strict=False):
        if wanted and graph.predecessors[index]:
            source = graph.predecessors[index][-1]
            ours = next(block for block in blocks if index in block)
            theirs = next(block for block in blocks if source in block)
            if ours is not theirs:
                changed = [block for block in blocks if block is not ours and block is not theirs] + [ours | theirs]
                if plan_of_blocks(graph, changed) is not None:
                    blocks = changed
    return blocks


@given(operator_graphs(), st.lists(st.booleans(), min_size=30, max_size=30))
def test_is_no_worse_than_the_other(graph: OperatorGraph, draws: list[bool]) -> None:
    plan, other = plan_fusion(graph), joined(graph, draws)
    found = prefer(plan, other, graph, seconds)
    verify_plan(found, graph, given=other)
    blocks = [set(block.operators) for block in found.blocks]
    for piece in pieces([set(block.operators) for block in plan.blocks], other, len(graph)):
        ours = effort(graph, [block for block in blocks if block <= piece], seconds)
        theirs = effort(graph, [block for block in other if block <= piece], seconds)
        kept = all(set(block.operators) in blocks for block in plan.blocks if set(block.operators) <= piece)
        assert kept or not ours.is_worse_than(theirs)


def test_pieces_are_unions_of_blocks() -> None:
    assert pieces([{0, 1}, {2, 3}, {4}], [{0}, {1, 2}, {3}, {4}], 5) == [{0, 1, 2, 3}]
