"""A cost model corrected by measurements: by kind where enough of it were measured, by all otherwise."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.zoo.nets.shape_graphs import vgg16
from tvm_ext.fusion.corrected_model import LEAST_SAMPLES, CorrectedModel, Sample, kind_of_block
from tvm_ext.fusion.operator_graph import OperatorGraph, operator_graph
from tvm_ext.graph.mapping_types import MappingType

GRAPH = operator_graph(vgg16())
CONVOLUTION = next(index for index, item in enumerate(GRAPH.operators) if item.op == "nn.conv2d")
RELU = next(index for index, item in enumerate(GRAPH.operators) if item.op == "nn.relu")
RESHAPE = next(index for index, item in enumerate(GRAPH.operators) if item.mapping is MappingType.REORGANIZE)


def samples(kind: str, *ratios: float) -> list[Sample]:
    return [Sample(kind, 1e-6, ratio * 1e-6) for ratio in ratios]


def test_kinds() -> None:
    operators = list(GRAPH.operators)
    operators[CONVOLUTION] = replace(operators[CONVOLUTION], tail=MappingType.ONE_TO_ONE)
    given = OperatorGraph("given", tuple(operators), GRAPH.given_bytes)
    assert kind_of_block(given, {CONVOLUTION, RELU}) == "product"
    assert kind_of_block(GRAPH, {CONVOLUTION, RELU}) == "reduction"
    assert kind_of_block(GRAPH, {RELU}) == "elementwise"
    assert kind_of_block(GRAPH, {RESHAPE}) == "movement"


def test_the_median_of_a_kind_counts() -> None:
    model = CorrectedModel(lambda graph, members: 2.0, samples("elementwise", 1.0, 3.0, 100.0))
    assert model.seconds(GRAPH, {RELU}) == pytest.approx(6.0)
    assert model.estimate(GRAPH, {RELU}) == 2.0


def test_few_of_a_kind_are_corrected_by_all() -> None:
    found = samples("elementwise", 4.0, 4.0, 4.0) + samples("product", 1000.0)
    model = CorrectedModel(lambda graph, members: 1.0, found)
    assert model.factor("elementwise") == pytest.approx(4.0)
    assert model.factor("product") == model.factor("reduction") == pytest.approx(4.0)


@pytest.mark.parametrize("count", range(LEAST_SAMPLES))
def test_with_fewer_samples_the_model_is_as_it_was(count: int) -> None:
    model = CorrectedModel(lambda graph, members: 1.0, samples("elementwise", *[7.0] * count))
    assert model.seconds(GRAPH, {RELU}) == 1.0


def test_a_correction_keeps_the_order_within_a_kind() -> None:
    found = samples("movement", 0.5, 0.25, 0.75) + samples("elementwise", 2.0, 2.0, 9.0)
    model = CorrectedModel(lambda graph, members: float(sum(members) + 1), found)
    assert model.seconds(GRAPH, {RELU}) < model.seconds(GRAPH, {RELU, RELU + 3}) < math.inf
