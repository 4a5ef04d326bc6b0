"""Regions: random networks of integers as one program each, bit for bit against numpy."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vta.integer_reference import run_network
from tvm_ext.backends.vta.analysis.linter import lint
from tvm_ext.backends.vta.codegen.layouts import pack_data, unpack_data
from tvm_ext.backends.vta.config import VTAConfig, load_config
from tvm_ext.backends.vta.isa.instructions import Store
from tvm_ext.backends.vta.isa.modules import Module
from tvm_ext.backends.vta.model.layers import IntegerLayer, IntegerNetwork, Layer, verify_network
from tvm_ext.backends.vta.model.region import build_region, plan_residual
from tvm_ext.backends.vta.simulate.reference import ReferenceSimulator
from tvm_ext.backends.vta.timing.costs import costs_named
from tvm_ext.errors import GraphError, VTAProgramError

COSTS = costs_named("chisel")


def random_layer(draw: st.DrawFn, rng: np.random.Generator, name: str, shapes: dict[str, tuple]) -> IntegerLayer:
    data = draw(st.sampled_from(list(shapes)))
    n, channels, height, width = shapes[data]
    kind = draw(st.sampled_from(["conv2d", "conv2d", "conv2d_transpose", "max_pool2d"]))
    sides = []
    for extent in (height, width):
        kernel = draw(st.integers(1, min(4, extent) if kind != "conv2d_transpose" else 4))
        stride = draw(st.integers(1, 2 if kind != "conv2d_transpose" else kernel))
        sides.append((kernel, stride, draw(st.integers(0, kernel - 1))))
    extra = draw(st.integers(0, 1))
    if kind == "max_pool2d":
        sides = [(min(side[0] for side in sides), 2, 0)] * 2
    if kind == "conv2d_transpose":
        extra = min(extra, *(padding for _, _, padding in sides))
        rows, columns = (
            (extent - 1) * stride - 2 * padding + kernel + extra
            for extent, (kernel, stride, padding) in zip((height, width), sides, strict=True)
        )
        if min(rows, columns) < 1:
            kind = "conv2d"
            sides = [(1, 1, 0)] * 2
    if kind != "conv2d_transpose":
        extra = 0
        rows, columns = (
            (extent + 2 * padding - kernel) // stride + 1
            for extent, (kernel, stride, padding) in zip((height, width), sides, strict=True)
        )
    down, across = sides
    groups = draw(st.sampled_from([group for group in (1, 2, 3, 4, channels) if channels % group == 0]))
    outputs = channels if kind == "max_pool2d" else groups * draw(st.integers(1, max(1, 36 // groups)))
    shape = (n, outputs, rows, columns)
    form = {"kernel": down[0], "stride": down[1], "padding": down[2], "across": across, "output_padding": extra}
    if kind == "max_pool2d":
        return IntegerLayer(Layer(name, kind, data, shapes[data], shape, **form))
    others = [known for known, other in shapes.items() if other == shape]
    weights = rng.integers(-128, 128, (outputs, channels // groups, down[0], across[0])).astype(np.int8)
    layer = Layer(
        name, kind, data, shapes[data], shape, groups=groups, weights=weights,
        residual=draw(st.sampled_from([None, *others])), **form,
    )  # fmt: skip
    largest = draw(st.sampled_from([1000, 10_000_000]))
    return IntegerLayer(
        layer, weights, rng.integers(-largest, largest, outputs).astype(np.int32),
        draw(st.integers(0, 16)), draw(st.integers(0, 11)), draw(st.sampled_from([-128, 0])), draw(st.integers(1, 127)),
    )  # fmt: skip


@st.composite
def networks(
    draw: st.DrawFn, configs: tuple[str, ...] = ("sim", "sim_2x16")
) -> tuple[VTAConfig, IntegerNetwork, dict[str, np.ndarray]]:
    config = load_config(draw(st.sampled_from(configs)))
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


@settings(max_examples=15, deadline=None)
@given(networks())
def test_region_is_exact(drawn: tuple[VTAConfig, IntegerNetwork, dict[str, np.ndarray]]) -> None:
    check(drawn)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(networks(("sim", "sim_2x16", "sim_4x8", "pynq_0.0.1")))
def test_many_regions_are_exact(drawn: tuple[VTAConfig, IntegerNetwork, dict[str, np.ndarray]]) -> None:
    check(drawn)


def check(drawn: tuple[VTAConfig, IntegerNetwork, dict[str, np.ndarray]]) -> None:
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


@pytest.mark.parametrize("across", [(3, 2, 1), (1, 1, 0), (3, 3, 1)], ids=str)
@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 4), (4, 1)])
def test_a_transposed_convolution_of_one_row_or_column(height: int, width: int, across: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(0)
    kernel, stride, padding = across
    out_shape = (1, 2, 2 * height - 1, (width - 1) * stride + kernel - 2 * padding)
    weights = rng.integers(-99, 99, (2, 1, 3, kernel)).astype(np.int8)
    shape = (1, 1, height, width)
    layer = Layer("t", "conv2d_transpose", "x", shape, out_shape, 3, 2, 1, 1, weights, None, across=across)
    integer = IntegerLayer(layer, weights, rng.integers(-99, 99, 2).astype(np.int32), 0, 0, -128, 127)
    network = IntegerNetwork((integer,), {"x": 0, "t": 0})
    check((load_config("sim"), network, {"x": rng.integers(-128, 128, shape).astype(np.int8)}))


def small_region(padding: int = 1) -> tuple[VTAConfig, IntegerNetwork, dict[str, np.ndarray]]:
    """A convolution, a maximum over what it gives, and a convolution with the first one's result added."""
    rng = np.random.default_rng(0)
    shape = (1, 20, 7, 7)
    weights = rng.integers(-9, 9, (20, 20, 3, 3)).astype(np.int8)
    bias = rng.integers(-99, 99, 20).astype(np.int32)
    first = Layer("a", "conv2d", "x", shape, shape, 3, 1, 1, 1, weights, None)
    pool = Layer("p", "max_pool2d", "a", shape, (1, 20, 3 + padding, 3 + padding), 3, 2, padding, operator="max_pool2d")
    last = Layer("b", "conv2d", "a", shape, shape, 3, 1, 1, 1, weights, None, "a")
    layers = (IntegerLayer(first, weights, bias, 6, 0, 0), IntegerLayer(pool), IntegerLayer(last, weights, bias, 7, 9))
    inputs = {"x": rng.integers(-128, 128, shape).astype(np.int8)}
    return VTAConfig(), IntegerNetwork(layers, dict.fromkeys("xapb", 0)), inputs


def test_region_does_not_depend_on_who_comes_first() -> None:
    """Every order of the modules, with noise in the memories: no race, nothing read that was not written."""
    config, network, inputs = small_region()
    region = build_region(network.layers, ["x"], ["p", "b"], config, COSTS)
    expected = run_network(network, inputs)
    image = region.program.image
    image.write("x", pack_data(inputs["x"], config))
    for noise, turns in enumerate(itertools.permutations(Module)):
        after = ReferenceSimulator(config, turns, noise).run(region.program.words, image.data, image.base)
        for name in ("a", "p", "b"):
            packed = image.read(name, np.int8, region.packed_shape(name), after.dram)
            np.testing.assert_array_equal(unpack_data(packed, region.shapes[name]), expected[name])
        assert after.tokens_left == (0, 0, 0, 0)


def test_residuals_cost_a_fraction_of_the_convolution() -> None:
    """They are added by GEMM: one step an element, and one of ALU where the sum is shifted before and after."""
    config, network, _ = small_region()
    elements = 2 * 7 * 7
    alone = replace(network.layers[2], layer=replace(network.layers[2].layer, residual=None))
    for residual_shift, shifts in ((6, 0), (8, 0), (9, 0)):
        added = replace(network.layers[2], shift=8, residual_shift=residual_shift)
        with_residual = build_region([added], ["a"], ["b"], config, COSTS).steps()
        without = build_region([replace(alone, shift=8)], ["a"], ["b"], config, COSTS).steps()
        assert with_residual["gemm"] - without["gemm"] == elements
        assert with_residual["alu"] - without["alu"] == shifts * elements
        assert with_residual["reset"] == without["reset"]
    split = build_region([replace(network.layers[2], shift=8, residual_shift=7)], ["a"], ["b"], config, COSTS).steps()
    assert split["alu"] - without["alu"] == elements


@given(st.integers(0, 31), st.integers(0, 20))
def test_plan_residual(shift: int, residual_shift: int) -> None:
    plan = plan_residual(shift, residual_shift)
    assert 0 <= plan.first_shift <= shift
    assert 0 <= plan.log_weight <= 6
    assert plan.repeats << plan.log_weight + plan.first_shift == 1 << residual_shift


def test_layers_are_where_their_stores_are() -> None:
    config, network, _ = small_region()
    region = build_region(network.layers, ["x"], ["p", "b"], config, COSTS)
    assert [placed.layer.name for placed in region.layers] == ["a", "p", "b"]
    assert [placed.begin for placed in region.layers] == [0, *(placed.end for placed in region.layers[:-1])]
    assert region.layers[-1].end == len(region.program.words)
    for placed in region.layers:
        stored = region.program.image.regions[placed.layer.name]
        addresses = [
            instruction.dram_base * config.out_bytes
            for instruction in region.program.instructions[placed.begin : placed.end]
            if isinstance(instruction, Store) and instruction.x_size
        ]
        assert addresses
        assert all(stored.address <= address < stored.address + stored.nbytes for address in addresses)


def test_bad_regions_are_refused() -> None:
    config, network, _ = small_region()
    with pytest.raises(GraphError, match="layer 'p' reads 'a', which the region does not have"):
        build_region(network.layers[1:2], [], ["p"], config, COSTS)
    with pytest.raises(GraphError, match="no layer of the region reads 'y'"):
        build_region(network.layers, ["x", "y"], ["p"], config, COSTS)
    layer = Layer("wide", "max_pool2d", "x", (1, 16, 60, 60), (1, 16, 1, 1), 60)
    with pytest.raises(VTAProgramError, match="layer 'wide': a window of 60 x 60 does not fit"):
        build_region([IntegerLayer(layer)], ["x"], ["wide"], config, COSTS)
