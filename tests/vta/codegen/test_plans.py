"""Layers planned with their default schedules, bit for bit against numpy, under every order of the modules."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tvm_ext.backends.vta.analysis.linter import lint
from tvm_ext.backends.vta.codegen.compute import Epilogue
from tvm_ext.backends.vta.codegen.generate import add_plan
from tvm_ext.backends.vta.codegen.geometry import Conv2d
from tvm_ext.backends.vta.codegen.layouts import bias_as_weights, pack_bias, pack_data, pack_weights, unpack_data
from tvm_ext.backends.vta.codegen.plans import Plans
from tvm_ext.backends.vta.config import VTAConfig, load_config
from tvm_ext.backends.vta.isa.modules import Module
from tvm_ext.backends.vta.memory import MemoryImage
from tvm_ext.backends.vta.program.builder import Program, ProgramBuilder, read_outputs
from tvm_ext.backends.vta.simulate.reference import ReferenceSimulator
from tvm_ext.backends.vta.simulate.simulator import Simulator
from tvm_ext.backends.vta.timing.costs import costs_named
from tvm_ext.errors import VTAProgramError

ORDERS = list(itertools.permutations(Module))
COSTS = costs_named("chisel")


def integers(rng: np.random.Generator, *shape: int) -> NDArray[np.int8]:
    return rng.integers(-128, 128, shape).astype(np.int8)


def convolve(data: NDArray, weights: NDArray, bias: NDArray, stride: int, padding: int, finish: Epilogue) -> NDArray:
    """The convolution of integers, as a sum over the window."""
    kernel = weights.shape[2]
    wide = np.pad(data.astype(np.int64), ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    rows, columns = ((extent - kernel) // stride + 1 for extent in wide.shape[2:])
    total = bias[None, :, None, None].astype(np.int64) * np.ones((len(data), 1, rows, columns), np.int64)
    for y, x in itertools.product(range(kernel), repeat=2):
        seen = wide[:, :, y : y + stride * (rows - 1) + 1 : stride, x : x + stride * (columns - 1) + 1 : stride]
        total += np.einsum("nchw,oc->nohw", seen, weights[:, :, y, x].astype(np.int64))
    return np.clip(total >> finish.shift, finish.low, finish.high).astype(np.int8)


def conv_program(
    config: VTAConfig, data: NDArray, weights: NDArray, bias: NDArray, stride: int, padding: int, finish: Epilogue
) -> tuple[Program, tuple[int, ...]]:
    packed, packed_weights = pack_data(data, config), pack_weights(weights, config)
    batches, in_blocks, height, width = packed.shape[:4]
    conv = Conv2d(batches, in_blocks, len(packed_weights), height, width, weights.shape[2], stride, padding)
    image = MemoryImage()
    image.allocate("data", packed)
    image.allocate("weights", packed_weights)
    names = ["data", "weights", "bias"]
    if finish.bias == "weights":
        bias_weights, bias_inputs = bias_as_weights(bias, config)
        image.allocate("bias", bias_weights)
        image.allocate("bias_inputs", bias_inputs)
        names.append("bias_inputs")
    else:
        image.allocate("bias", pack_bias(bias, config))
    shape = (batches, conv.out_blocks, conv.out_height, conv.out_width, config.batch, config.block)
    image.allocate("out", int(np.prod(shape)))
    builder = ProgramBuilder(config, image)
    add_plan(Plans(config, COSTS).plan(conv, finish), builder, [*names, "out"])
    return builder.build(), shape


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_convolutions(data: st.DataObject) -> None:
    draw = data.draw
    config = load_config(draw(st.sampled_from(["sim", "sim_2x16", "sim_4x8", "pynq_0.0.1"])))
    kernel = draw(st.integers(1, 3))
    stride, padding = draw(st.integers(1, 3)), draw(st.integers(0, kernel - 1))
    batch, channels, outputs = draw(st.integers(1, 3)), draw(st.integers(1, 40)), draw(st.integers(1, 40))
    height, width = draw(st.integers(kernel, 9)), draw(st.integers(kernel, 9))
    bias_kind = draw(st.sampled_from(["accumulators", "weights"]))
    low, high = draw(st.sampled_from([-128, 0])), draw(st.integers(1, 127))
    finish = Epilogue(draw(st.integers(0, 20)), low, high, bias_kind)
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    inputs, weights = integers(rng, batch, channels, height, width), integers(rng, outputs, channels, kernel, kernel)
    bias = rng.integers(-100_000, 100_000, outputs).astype(np.int32)
    program, shape = conv_program(config, inputs, weights, bias, stride, padding, finish)
    result = Simulator(config).run(program.words, program.image.data, program.image.base)
    expected = convolve(inputs, weights, bias, stride, padding, finish)
    found = unpack_data(read_outputs(program, "out", shape, result.dram), expected.shape)
    np.testing.assert_array_equal(found, expected)


def test_programs_do_not_depend_on_who_comes_first() -> None:
    """Every order of the modules, and noise in the memories: no race, nothing read that was not written."""
    config = VTAConfig()
    rng = np.random.default_rng(0)
    inputs, weights = integers(rng, 1, 32, 9, 6), integers(rng, 48, 32, 3, 3)
    bias = rng.integers(-1000, 1000, 48).astype(np.int32)
    finish = Epilogue(9, 0, 127, "accumulators")
    program, shape = conv_program(config, inputs, weights, bias, 2, 1, finish)
    expected = convolve(inputs, weights, bias, 2, 1, finish)
    for noise, turns in enumerate(ORDERS):
        result = ReferenceSimulator(config, turns, noise).run(program.words, program.image.data, program.image.base)
        found = unpack_data(read_outputs(program, "out", shape, result.dram), expected.shape)
        np.testing.assert_array_equal(found, expected)
        assert result.tokens_left == (0, 0, 0, 0)


def test_a_layer_reads_what_the_one_before_it_stored() -> None:
    """Two in one program: a load waits for the stores of what it reads, through compute."""
    config = VTAConfig()
    rng = np.random.default_rng(1)
    data, first, second = integers(rng, 1, 16, 6, 6), integers(rng, 32, 16, 3, 3), integers(rng, 16, 32, 1, 1)
    biases = [rng.integers(-1000, 1000, outputs).astype(np.int32) for outputs in (32, 16)]
    image = MemoryImage()
    for number, (weights, bias) in enumerate(zip((first, second), biases, strict=True)):
        image.allocate(f"weights{number}", pack_weights(weights, config))
        image.allocate(f"bias{number}", pack_bias(bias, config))
    image.allocate("data", pack_data(data, config))
    image.allocate("between", 2 * 36 * config.out_bytes)
    image.allocate("out", 36 * config.out_bytes)
    builder, plans = ProgramBuilder(config, image), Plans(config, COSTS)
    finish = Epilogue(8, 0, 127, "accumulators")
    add_plan(plans.plan(Conv2d(1, 1, 2, 6, 6, 3, 1, 1), finish), builder, ["data", "weights0", "bias0", "between"])
    add_plan(plans.plan(Conv2d(1, 2, 1, 6, 6, 1), finish), builder, ["between", "weights1", "bias1", "out"])
    program = builder.build()
    between = convolve(data, first, biases[0], 1, 1, finish)
    expected = convolve(between, second, biases[1], 1, 0, finish)
    for turns in ORDERS:
        result = ReferenceSimulator(config, turns).run(program.words, image.data, image.base)
        found = unpack_data(read_outputs(program, "out", (1, 1, 6, 6, 1, 16), result.dram), expected.shape)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["sim", "pynq_0.0.1", "de10nano_0.0.1", "ultra96"])
def test_programs_stay_in_the_portable_subset(name: str) -> None:
    config = load_config(name)
    rng = np.random.default_rng(0)
    for size, kernel, padding in ((8, 3, 1), (1, 1, 0), (2, 3, 1), (7, 7, 0)):
        inputs, weights = integers(rng, 1, 32, size, size), integers(rng, 32, 32, kernel, kernel)
        for bias in ("accumulators", "weights"):
            finish = Epilogue(17, 0, 127, bias)
            program, _ = conv_program(config, inputs, weights, np.zeros(32, np.int32), 1, padding, finish)
            assert lint(program.instructions, config, program.image.data, program.image.base) == []


def test_convolutions_that_cannot_be() -> None:
    for shape, message in (
        ((1, 0, 1, 8, 8, 3), "in_blocks of a convolution is 0; expected at least 1"),
        ((1, 1, 1, 8, 8, 3, 1, 3), "padding of a convolution is 3; expected 0 to 2"),
        ((1, 1, 1, 2, 8, 3), "kernel 3 does not fit 2 x 8 inputs with padding 0"),
    ):
        with pytest.raises(VTAProgramError, match=message):
            Conv2d(*shape)
