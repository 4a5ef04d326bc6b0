"""Plans of 32-bit sums: their ends are those of every input, and what could leave 32 bits is not computed in them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tvm_ext
from tests.quantized.qdq_graphs import QdqGraph
from tests.quantized.test_integer_arithmetic import operators
from tests.zoo.quantized import quantized
from tvm_ext.errors import GraphError
from tvm_ext.quantized.sums import LEAST, MOST, SumPlan, plan_sums, verify_sums


@st.composite
def sums(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    channels, products = draw(st.sampled_from([0, 1, 3, 17])), draw(st.sampled_from([0, 1, 7, 33, 127]))
    lowest, highest = draw(st.sampled_from([(-128, 127), (0, 127), (-128, 0), (0, 0)]))
    weights = rng.integers(lowest, highest + 1, (channels, products))
    return weights.astype(np.int8), rng.integers(-(1 << 20), 1 << 20, channels)


@given(sums(), st.integers(0, 1 << 30))
def test_ends_are_reached_and_never_passed(found: tuple[np.ndarray, np.ndarray], seed: int) -> None:
    weights, shift = found
    plan = plan_sums(weights, shift)
    assert plan is not None
    verify_sums(plan, weights, shift)
    rng = np.random.default_rng(seed)
    inputs = [rng.integers(0, 256, weights.shape[1]) for _ in range(20)]
    inputs += [np.where(row > 0, 255, 0) for row in weights] + [np.where(row < 0, 255, 0) for row in weights]
    reached = [int(total) for x in inputs for total in weights.astype(object) @ x + shift]
    if reached:
        assert (min(reached), max(reached)) == (plan.low, plan.high)


def test_ends_of_int32() -> None:
    weights = np.full((1, 2), 127, np.int8)
    most = MOST - 2 * 127 * 255
    assert plan_sums(weights, np.array([most])) == SumPlan(2, most, MOST)
    assert plan_sums(weights, np.array([most + 1])) is None
    assert plan_sums(-weights, np.array([LEAST + 2 * 127 * 255])) is not None
    assert plan_sums(-weights, np.array([LEAST + 2 * 127 * 255 - 1])) is None


@pytest.mark.parametrize("broken", [{"low": -254}, {"high": 508}, {"products": 3}])
def test_a_broken_plan_is_noticed(broken: dict) -> None:
    weights, shift = np.array([[1, -1], [2, 0]], np.int8), np.zeros(2, np.int64)
    plan = plan_sums(weights, shift)
    assert plan == SumPlan(2, -255, 510)
    with pytest.raises(GraphError, match=r"fault of tvm-ext"):
        verify_sums(replace(plan, **broken), weights, shift)


def _product(length: int, weight: int, bias: int) -> onnx.ModelProto:
    """``x`` of bytes in steps of 1, times one column of equal weights, plus a bias, in 200 steps."""
    graph = QdqGraph((1, length))
    data = graph.quantized("x", 1.0, 0)
    integers = graph.constant(np.full((length, 1), weight, np.int8))
    weights = graph.node("DequantizeLinear", integers, graph.constant(np.float32(1)), graph.constant(np.int8(0)))
    added = graph.constant(np.array([bias], np.float32))
    total = graph.node("Add", graph.node("MatMul", data, weights), added)
    return graph.model(graph.quantized(total, (255 * length * weight + bias) / 200, 0))


@pytest.mark.parametrize(
    ("length", "weight", "bias", "integer"),
    [(80_000, 3, 0, True), (80_000, 127, 0, False), (66_000, 127, 1 << 22, True), (66_000, 127, 1 << 29, False)],
)
def test_sums_beyond_int32_are_floats(length: int, weight: int, bias: int, integer: bool) -> None:
    """Many products of small weights fit, few of large ones with a large bias do not."""
    model = _product(length, weight, bias)
    found = operators(model)
    assert (found["add:float32"] == 0) == integer
    (result,) = tvm_ext.compile(model).run({"x": np.full((1, length), 255, np.float32)}).values()
    np.testing.assert_allclose(result, [[255.0 * weight * length + bias]], rtol=1e-6)  # 200 steps, whatever rounds


def test_an_artifact_says_what_its_sums_reach() -> None:
    compiled = tvm_ext.compile(quantized("tiny_cnn").onnx_path())
    found = [row for row in compiled.metadata["decisions"]["layout"] if row["form"] == "int32 sums"]
    assert found
    assert all(row["nodes"] and row["plan"]["low"] <= 0 <= row["plan"]["high"] <= MOST for row in found)
