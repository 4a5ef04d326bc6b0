"""Moving operators between blocks: plans stay plans, get no slower, and hold only blocks that were accepted."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fusion.random_operators import operator_graphs
from tests.fusion.test_planner import MANY_TO_MANY, ONE_TO_ONE, seconds
from tvm_ext.fusion.limits import BlockLimits
from tvm_ext.fusion.operator_graph import Edge, Operator, OperatorGraph
from tvm_ext.fusion.plan import FusionPlan, plan_of_blocks
from tvm_ext.fusion.planner import plan_fusion
from tvm_ext.fusion.refinement import refine_plan
from tvm_ext.fusion.verifier import verify_plan


def unfused(graph: OperatorGraph) -> FusionPlan:
    plan = plan_of_blocks(graph, [{index} for index in range(len(graph))])
    assert plan is not None
    return plan


@given(operator_graphs(), st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_random_graphs(graph: OperatorGraph, largest: int) -> None:
    asked: set[frozenset[int]] = set()

    def accepts(members: Collection[int]) -> bool:
        asked.add(frozenset(members))
        return len(members) <= largest

    start = unfused(graph)
    plan = refine_plan(start, graph, BlockLimits(graph), accepts)
    verify_plan(plan, graph)
    assert seconds(graph, plan) <= seconds(graph, start) * (1 + 1e-9)
    assert all(len(block.operators) <= largest for block in plan.blocks)
    assert all(frozenset(block.operators) in asked for block in plan.blocks if len(block.operators) > 1)
    assert refine_plan(plan, graph, BlockLimits(graph), accepts).written_bytes(graph) == plan.written_bytes(graph)


def fan(readers: int) -> OperatorGraph:
    """A product; each of its readers adds it to a sum of its own, and begins with another product."""
    operators = [Operator("product", "op", MANY_TO_MANY, given=("w",), nbytes=10_000)]
    for number in range(readers):
        start = len(operators)
        operators += [
            Operator(f"other{number}", "op", MANY_TO_MANY, given=("w",), nbytes=10_000),
            Operator(f"scaled{number}", "op", ONE_TO_ONE, (Edge(0, ONE_TO_ONE),), nbytes=10_000),
            Operator(
                f"sum{number}",
                "op",
                ONE_TO_ONE,
                (Edge(start, ONE_TO_ONE), Edge(start + 1, ONE_TO_ONE)),
                nbytes=10_000,
                is_output=True,
            ),
        ]
    return OperatorGraph("fan", tuple(operators), {"w": 100})


def test_readers_of_a_result_are_handed_on_together() -> None:
    """Scaling the product for each reader is moved to the readers: it is written once, and not as often as it is read.

    Moving one reader alone gains nothing, as the product would have to be written as well.
    """
    graph = fan(3)
    scaling = {0, *(3 * number + 2 for number in range(3))}
    start = plan_of_blocks(graph, [scaling, *({3 * number + 1, 3 * number + 3} for number in range(3))])
    assert start is not None
    assert start.written_bytes(graph) == 60_000
    plan = refine_plan(start, graph, BlockLimits(graph))
    verify_plan(plan, graph)
    assert plan.written_bytes(graph) == 40_000
    assert [block.operators for block in plan.blocks if 0 in block.operators] == [(0,)]


def test_the_planner_refines() -> None:
    graph = fan(4)
    assert plan_fusion(graph).written_bytes(graph) == 50_000
