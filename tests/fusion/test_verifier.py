"""The verifier refuses each kind of wrong plan, and says which operators are at fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tvm_ext.errors import GraphError
from tvm_ext.fusion.operator_graph import Edge, Operator, OperatorGraph
from tvm_ext.fusion.plan import Block, FusionPlan
from tvm_ext.fusion.planner import plan_fusion
from tvm_ext.fusion.verifier import verify_plan
from tvm_ext.graph.mapping_types import MappingType

ONE_TO_ONE, REORGANIZE, SHUFFLE, ONE_TO_MANY, MANY_TO_MANY, OPAQUE = MappingType


def chain(*mappings: MappingType) -> OperatorGraph:
    operators = tuple(
        Operator(f"o{index}", "op", mapping, (Edge(index - 1, mapping),) if index else (), nbytes=8)
        for index, mapping in enumerate(mappings)
    )
    return OperatorGraph("chain", operators, {})


def plan(*blocks: tuple[int, ...], removable: tuple[int, ...] = ()) -> FusionPlan:
    return FusionPlan(tuple(Block(block, ONE_TO_ONE) for block in blocks), removable)


@pytest.mark.parametrize(
    ("mappings", "wrong", "message"),
    [
        ((ONE_TO_ONE,) * 3, plan((0, 1)), "operator 'o2' is in 0 blocks"),
        ((ONE_TO_ONE,) * 3, plan((0, 1), (1, 2)), "operator 'o1' is in 2 blocks"),
        ((ONE_TO_ONE,) * 2, plan((0, 1, 2)), "holds operator 2, but there are only 2"),
        ((ONE_TO_ONE,) * 3, plan((1,), (0,), (2,)), "block 0 runs before operator 'o0', which its operator 'o1' reads"),
        ((ONE_TO_ONE,) * 3, plan((0, 2), (1,)), "block 0 runs before operator 'o1'"),
        ((ONE_TO_ONE, OPAQUE), plan((0, 1), removable=(0,)), "'o1', which must not be fused"),
        ((MANY_TO_MANY, MANY_TO_MANY), plan((0, 1), removable=(0,)), "two Many-to-Many operators, 'o0' and 'o1'"),
        (
            (ONE_TO_MANY, ONE_TO_ONE, MANY_TO_MANY),
            plan((0, 1, 2), removable=(0, 1)),
            "fuses 'o0', which multiplies data",
        ),
        ((ONE_TO_ONE,) * 2, plan((0, 1)), "result of operator 'o0' is written, but"),
        ((ONE_TO_ONE,) * 2, plan((0,), (1,), removable=(0,)), "result of operator 'o0' is read outside"),
        ((ONE_TO_ONE,) * 2, plan((0, 1), removable=(0, 1)), "result of operator 'o1' is read outside"),
    ],
)
def test_wrong_plans(mappings: tuple[MappingType, ...], wrong: FusionPlan, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        verify_plan(wrong, chain(*mappings))


def test_broadcasts_in_front_of_a_reduction() -> None:
    """A small result that is spread over a large one must not be computed again inside a product."""
    operators = (
        Operator("gate", "op", ONE_TO_ONE, nbytes=8),
        Operator("scale", "op", ONE_TO_ONE, (Edge(0, ONE_TO_MANY),), nbytes=800),
        Operator("product", "op", MANY_TO_MANY, (Edge(1, MANY_TO_MANY),), nbytes=8),
    )
    graph = OperatorGraph("gated", operators, {})
    with pytest.raises(GraphError, match="fuses 'gate', which multiplies data"):
        verify_plan(plan((0, 1, 2), removable=(0, 1)), graph)
    verify_plan(plan((0,), (1, 2), removable=(1,)), graph)


def test_a_window_after_a_reduction() -> None:
    graph = chain(MANY_TO_MANY, MANY_TO_MANY, MANY_TO_MANY)
    windowed = replace(graph.operators[1], is_disjoint_window=True)
    graph = OperatorGraph("pool", (graph.operators[0], windowed, graph.operators[2]), {})
    with pytest.raises(GraphError, match="'o0', which is Many-to-Many, in front of"):
        verify_plan(plan((0, 1), (2,), removable=(0,)), graph)
    verify_plan(plan((0,), (1, 2), removable=(1,)), graph)


def test_a_function_without_operators() -> None:
    empty = OperatorGraph("empty", (), {})
    found = plan_fusion(empty)
    verify_plan(found, empty)
    assert found == FusionPlan((), ())


@pytest.mark.parametrize("text", ["", "[]", '{"blocks": [{"operators": [0], "mapping": "NONE"}], "removable": []}'])
def test_plans_that_cannot_be_read(text: str) -> None:
    with pytest.raises(GraphError, match="fusion plan"):
        FusionPlan.from_json(text)
