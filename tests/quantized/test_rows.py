"""Convolutions along one axis in integers: as exact as those of images, in the same blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

import tvm_ext
from tests.integer_reference import run_integers
from tests.quantized.qdq_graphs import QdqGraph
from tests.quantized.test_integer_arithmetic import LEVELS, check
from tests.quantized.test_moved_zero_points import check as check_moved
from tests.quantized.test_moved_zero_points import integers, made


def forms(compiled: tvm_ext.CompiledModel) -> list[str]:
    """How the convolutions of a model are computed."""
    rows = compiled.metadata["decisions"]["layout"]
    return [row["form"] for row in rows if row["operator"] == "nn.conv1d"]


@pytest.mark.parametrize("target", LEVELS.values(), ids=LEVELS)
@pytest.mark.parametrize("activations", ["uint8", "int8"])
def test_a_chain_of_rows(activations: str, target: Any) -> None:
    """Along one axis dense, depthwise, grouped, strided and dilated, padded on one side."""
    graph = QdqGraph((2, 3, 127), activations)
    first = graph.quantized(graph.node("Relu", graph.conv(graph.quantized("x"), 3, 24, 7, strides=[2])))
    second = graph.quantized(graph.conv(first, 24, 24, 31, group=24))
    third = graph.quantized(graph.conv(second, 24, 48, 2, group=3, dilations=[4], pads=[4, 0]))
    last = graph.quantized(graph.conv(third, 48, 17, 1, per_channel=False))
    check(graph.model(last), graph.input(), target)


def test_blocks_of_rows_are_integers() -> None:
    """Nothing between two convolutions is unpacked or dequantised."""
    graph = QdqGraph((1, 16, 33))
    start = graph.quantized(graph.conv(graph.quantized("x"), 16, 32))
    inner = graph.quantized(graph.node("Relu", graph.conv(start, 32, 32, dilations=[3], pads=[3, 3])))
    joined = graph.quantized(graph.node("Add", graph.quantized(graph.conv(inner, 32, 32, 1)), start))
    model = graph.model(graph.quantized(graph.conv(joined, 32, 8, 1)))
    check(model, graph.input())
    compiled = tvm_ext.compile(model)
    assert sum(form.startswith("int8") for form in forms(compiled)) == 4
    # The first tensor is packed and the last one unpacked.
    assert compiled.metadata["decisions"]["statistics"]["kernels"] <= 6


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 1000),
    activations=st.sampled_from(["uint8", "int8"]),
    channels=st.sampled_from([1, 3, 7, 8, 17, 33]),
    width=st.sampled_from([1, 5, 31, 127]),
    steps=st.lists(st.sampled_from(["conv", "depthwise", "relu", "residual"]), min_size=1, max_size=4),
)
def test_random_networks(seed: int, activations: str, channels: int, width: int, steps: list[str]) -> None:
    graph = QdqGraph((1, channels, width), activations, seed)
    value = graph.quantized("x")
    for step in steps:
        if step == "conv":
            outputs = int(graph.rng.choice([1, 8, 9, 24, 33]))
            value = graph.quantized(graph.conv(value, channels, outputs, int(graph.rng.choice([1, 3, 5]))))
            channels = outputs
        elif step == "depthwise":
            value = graph.quantized(graph.conv(value, channels, channels, group=channels))
        elif step == "relu":
            value = graph.quantized(graph.node("Relu", graph.conv(value, channels, channels)))
        else:
            value = graph.quantized(graph.node("Add", graph.quantized(graph.conv(value, channels, channels, 1)), value))
    model, inputs = graph.model(value), graph.input()
    (result,) = tvm_ext.compile(model).run(inputs).values()
    np.testing.assert_array_equal(result, run_integers(model, inputs)[value])


def test_an_open_width_stays_in_floats() -> None:
    graph = QdqGraph((1, 8, 40))
    model = graph.model(graph.quantized(graph.conv(graph.quantized("x"), 8, 16), 0.05, 100))
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "w"
    del model.graph.value_info[:]
    compiled = tvm_ext.compile(model, dynamic={"w": (1, 64)})
    for width in (1, 40, 63):
        x = graph.rng.standard_normal((1, 8, width)).astype("float32")
        (result,) = compiled.run({"x": x}).values()
        reference = run_integers(model, {"x": x})
        assert np.abs(result - next(iter(reference.values()))).max() <= 0.051


@pytest.mark.parametrize("groups", [1, 16])
@pytest.mark.parametrize("attributes", [{}, {"pads": [2, 1], "strides": [2]}, {"pads": [4, 4], "dilations": [2]}])
def test_zero_points_of_a_run(groups: int, attributes: dict[str, Any]) -> None:
    """``ConvInteger`` whose zero point is an input of the model."""
    inputs = {"x": integers("uint8", 2, 16, 33), "z": integers("uint8")}
    constants = {"w": integers("int8", 32, 16 // groups, 5), "wz": np.array(0, "int8")}
    node = helper.make_node("ConvInteger", ["x", "w", "z", "wz"], ["y"], group=groups, **attributes)
    check_moved(made([node], inputs, constants), inputs)
