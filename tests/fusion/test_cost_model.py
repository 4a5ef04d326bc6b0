"""The cost model: what crosses the border of a block is paid, what stays inside is not."""

from __future__ import annotations

import pytest

from tvm_ext.errors import OptionError
from tvm_ext.fusion.cost_model import LinearModel
from tvm_ext.fusion.operator_graph import Edge, Operator, OperatorGraph
from tvm_ext.graph.mapping_types import MappingType

ONE_TO_ONE, REORGANIZE, SHUFFLE, ONE_TO_MANY, MANY_TO_MANY, OPAQUE = MappingType
MODEL = LinearModel(start=1.0, peak=10.0, bandwidth=100.0)


def graph(middle: MappingType) -> OperatorGraph:
    operators = (
        Operator("a", "op", ONE_TO_ONE, given=("x",), nbytes=200, flops=50),
        Operator("b", "op", middle, (Edge(0, middle),), nbytes=400, flops=20),
        Operator("c", "op", ONE_TO_ONE, (Edge(1, ONE_TO_ONE),), nbytes=100, flops=30),
    )
    return OperatorGraph("g", operators, {"x": 300})


def test_single_operators() -> None:
    g = graph(ONE_TO_ONE)
    assert MODEL.seconds(g, [0]) == pytest.approx(1 + 50 / 10 + (300 + 2 * 200) / 100)
    assert MODEL.seconds(g, [2]) == pytest.approx(1 + 30 / 10 + (400 + 2 * 100) / 100)


def test_results_inside_are_free() -> None:
    assert MODEL.seconds(graph(ONE_TO_ONE), [0, 1, 2]) == pytest.approx(1 + 100 / 10 + (300 + 2 * 100) / 100)


def test_moves_inside_cost_a_part() -> None:
    assert MODEL.seconds(graph(SHUFFLE), [0, 1, 2]) == pytest.approx(1 + 100 / 10 + (300 + 2 * 100 + 0.25 * 400) / 100)


def test_arithmetic_in_front_counts_twice() -> None:
    assert MODEL.seconds(graph(MANY_TO_MANY), [0, 1, 2]) == pytest.approx(1 + (100 + 50) / 10 + (300 + 2 * 100) / 100)


@pytest.mark.parametrize("name", ["start", "peak", "bandwidth", "prologue", "store", "reorder"])
def test_figures_are_positive(name: str) -> None:
    with pytest.raises(OptionError, match=name):
        LinearModel(**{name: 0.0})
