"""Regions: random networks of integers as one program each, bit for bit against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vta.integer_reference import run_network
from tvm_ext.errors import GraphError, VTAProgramError
from tvm_ext.vta.config import VTAConfig, load_config
from tvm_ext.vta.costs import costs_named
from tvm_ext.vta.layers import IntegerLayer, IntegerNetwork, Layer, merge_groups, verify_network
from tvm_ext.vta.linter import lint
from tvm_ext.vta.region import build_region, plan_residual

COSTS = costs_named("chisel")


def random_layer(draw: st.DrawFn, rng: np.random.Generator, name: str, shapes: dict[str, tuple]) -> IntegerLayer:
    data = draw(st.sampled_from(list(shapes)))
    n, channels, height, width = shapes[data]
    kernel = draw(st.integers(1, min(3, height, width)))
    stride, padding = draw(st.integers(1, 2)), draw(st.integers(0, kernel - 1))
    rows, columns = ((extent + 2 * padding - kernel) // stride + 1 for extent in (height, width))
    if draw(st.integers(0, 4)) == 0:
        layer = Layer(name, "max_pool2d", data, shapes[data], (n, channels, rows, columns), kernel, stride, 0)
        rows, columns = ((extent - kernel) // stride + 1 for extent in (height, width))
        layer = Layer(name, "max_pool2d", data, shapes[data], (n, channels, rows, columns), kernel, stride)
        return IntegerLayer(layer)
    groups = draw(st.sampled_from([group for group in (1, 2, 3, 4, channels) if channels % group == 0]))
    outputs = groups * draw(st.integers(1, max(1, 36 // groups)))
    shape = (n, outputs, rows, columns)
    others = [known for known, form in shapes.items() if form == shape]
    residual = draw(st.sampled_from([None, *others]))
    weights = rng.integers(-128, 128, (outputs, channels // groups, kernel, kernel)).astype(np.int8)
    largest = draw(st.sampled_from([1000, 10_000_000]))
    layer = Layer(
        name, "conv2d", data, shapes[data], shape, kernel, stride, padding, groups, weights, None, residual
    )  # fmt: skip
    return IntegerLayer(
        layer, weights, rng.integers(-largest, largest, outputs).astype(np.int32),
        draw(st.integers(0, 16)), draw(st.integers(0, 11)), draw(st.sampled_from([-128, 0])), draw(st.integers(1, 127)),
    )  # fmt: skip


@st.composite
def networks(draw: st.DrawFn) -> tuple[VTAConfig, IntegerNetwork, dict[str, np.ndarray]]:
    config = load_config(draw(st.sampled_from(["sim", "sim_2x16", "sim_4x8", "pynq_0.0.1"])))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    shapes = {
        "x": (draw(st.integers(1, 3)), draw(st.integers(1, 36)), draw(st.integers(1, 9)), draw(st.integers(1, 9)))
    }
    inputs = {"x": rng.integers(-128, 128, shapes["x"]).astype(np.int8)}
    layers = []
    for number in range(draw(st.integers(1, 4))):
        layers.append(random_layer(draw, rng, f"t{number}", shapes))
        shapes[f"t{number}"] = layers[-1].layer.out_shape
    return config, IntegerNetwork(tuple(layers), dict.fromkeys(shapes, 0)), inputs


@settings(max_examples=25, deadline=None)
@given(networks())
def test_region_is_exact(drawn: tuple[VTAConfig, IntegerNetwork, dict[str, np.ndarray]]) -> None:
    config, network, inputs = drawn
    verify_network(network)
    outputs = [network.layers[-1].layer.name]
    region = build_region(network.layers, ["x"], outputs, config, COSTS)
    expected = run_network(network, inputs)
    found = region.run(inputs)
    for name in found:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    program = region.program
    assert not lint(program.instructions, config, program.image.data, program.image.base)
