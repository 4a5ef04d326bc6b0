"""What goes beyond the table: reductions of the same rows, and operators whose schedule is given."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fusion.random_operators import operator_graphs
from tvm_ext.errors import GraphError
from tvm_ext.fusion.block_mapping import BlockMapping, block_mapping
from tvm_ext.fusion.operator_graph import Edge, Operator, OperatorGraph
from tvm_ext.fusion.plan import Block, FusionPlan, plan_of_blocks
from tvm_ext.fusion.planner import plan_fusion
from tvm_ext.fusion.verifier import verify_plan
from tvm_ext.graph.mapping_types import MappingType

ONE_TO_ONE, REORGANIZE, SHUFFLE, ONE_TO_MANY, MANY_TO_MANY, OPAQUE = MappingType
ROWS = (128, 768)


def normalisation(second: tuple[int, int] | None = ROWS, middle: MappingType = ONE_TO_ONE) -> OperatorGraph:
    """mean -> x - mean -> square -> mean -> division, as a layer normalisation is spelt out."""
    big, small = 4 * 128 * 768, 4 * 128
    operators = (
        Operator("x", "op", ONE_TO_ONE, nbytes=big),
        Operator("mean", "op", MANY_TO_MANY, (Edge(0, MANY_TO_MANY),), nbytes=small, rows=ROWS),
        Operator("centred", "op", ONE_TO_ONE, (Edge(0, ONE_TO_ONE), Edge(1, ONE_TO_MANY)), nbytes=big),
        Operator("square", "op", middle, (Edge(2, middle),), nbytes=big),
        Operator("variance", "op", MANY_TO_MANY, (Edge(3, MANY_TO_MANY),), nbytes=small, rows=second),
        Operator("scaled", "op", ONE_TO_ONE, (Edge(2, ONE_TO_ONE), Edge(4, ONE_TO_MANY)), nbytes=big, is_output=True),
    )
    return OperatorGraph("norm", operators, {})


def test_reductions_of_the_same_rows_are_one_block() -> None:
    graph = normalisation()
    assert block_mapping(graph, range(6)) == BlockMapping(MANY_TO_MANY, is_yellow=True)
    plan = plan_fusion(graph)
    verify_plan(plan, graph)
    assert len(plan.blocks) == 1


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (normalisation(second=(768, 128)), "two Many-to-Many operators, 'mean' and 'variance'"),
        (normalisation(second=None), "two Many-to-Many operators, 'mean' and 'variance'"),
        (normalisation(middle=SHUFFLE), "'square' reads 'centred' in other places"),
        (normalisation(middle=REORGANIZE), "'square' reads 'centred' in other places"),
    ],
)
def test_other_rows_or_moved_rows_are_not(graph: OperatorGraph, message: str) -> None:
    assert block_mapping(graph, range(6)) is None
    whole = FusionPlan((Block(tuple(range(6)), MANY_TO_MANY),), tuple(range(5)))
    with pytest.raises(GraphError, match=message):
        verify_plan(whole, graph)
    verify_plan(plan_fusion(graph), graph)


def convolution(*behind: MappingType, tail: MappingType = ONE_TO_ONE) -> OperatorGraph:
    operators = [
        Operator("before", "op", ONE_TO_ONE, nbytes=8),
        Operator("conv", "op", MANY_TO_MANY, (Edge(0, MANY_TO_MANY),), nbytes=8, tail=tail),
    ]
    for number, kind in enumerate(behind):
        operators.append(Operator(f"o{number}", "op", kind, (Edge(number + 1, kind),), nbytes=8))
    return OperatorGraph("conv", tuple(operators), {})


def test_a_given_schedule_takes_only_what_it_can_do() -> None:
    graph = convolution(ONE_TO_ONE, ONE_TO_ONE, REORGANIZE)
    assert block_mapping(graph, (1, 2, 3)) is not None
    assert block_mapping(graph, (0, 1)) is None
    assert block_mapping(graph, (1, 2, 3, 4)) is None
    assert block_mapping(convolution(ONE_TO_ONE, REORGANIZE, tail=REORGANIZE), (1, 2, 3)) is not None
    assert [set(block.operators) for block in plan_fusion(graph).blocks] == [{0}, {1, 2, 3}, {4}]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ((0, 1), "fuses something in front of 'conv'"),
        ((1, 2, 3), "'o1' behind 'conv', whose schedule takes One-to-One"),
    ],
)
def test_the_verifier_knows_given_schedules(members: tuple[int, ...], message: str) -> None:
    graph = convolution(ONE_TO_ONE, SHUFFLE)
    rest = [Block((index,), ONE_TO_ONE) for index in range(4) if index not in members]
    blocks = sorted([Block(members, MANY_TO_MANY), *rest], key=lambda block: block.operators)
    removable = tuple(index for index in members[:-1])
    with pytest.raises(GraphError, match=message):
        verify_plan(FusionPlan(tuple(blocks), removable), graph)


def test_a_given_schedule_writes_one_result() -> None:
    graph = convolution(ONE_TO_ONE, ONE_TO_ONE)
    both = (replace(operator, is_output=True) for operator in graph.operators[2:])
    graph = OperatorGraph("conv", (*graph.operators[:2], *both), {})
    assert block_mapping(graph, (1, 2)) is not None
    assert block_mapping(graph, (1, 2, 3)) is None
    with pytest.raises(GraphError, match="writes 2 results, but the schedule of 'conv' writes one"):
        verify_plan(FusionPlan((Block((0,), ONE_TO_ONE), Block((1, 2, 3), MANY_TO_MANY)), (1,)), graph)


@given(operator_graphs(), st.data())
def test_plans_with_rows_and_given_schedules_pass_the_verifier(graph: OperatorGraph, data: st.DataObject) -> None:
    operators = []
    for operator in graph.operators:
        choice = data.draw(st.integers(0, 5)) if operator.mapping is MANY_TO_MANY else 5
        if choice < 3:
            operator = replace(operator, rows=(8, 4), is_disjoint_window=False)
        elif choice == 3:
            operator = replace(operator, tail=data.draw(st.sampled_from([ONE_TO_ONE, REORGANIZE])))
        operators.append(operator)
    changed = OperatorGraph("random", tuple(operators), graph.given_bytes)
    verify_plan(plan_fusion(changed), changed)


def test_blocks_that_read_each_other_have_no_order() -> None:
    graph = convolution(ONE_TO_ONE, ONE_TO_ONE)
    assert plan_of_blocks(graph, [(0, 2), (1, 3)]) is None
    plan = plan_of_blocks(graph, [(2, 3), (1,), (0,)])
    assert plan is not None
    assert [block.operators for block in plan.blocks] == [(0,), (1,), (2, 3)]
