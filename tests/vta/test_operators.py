"""Convolutions and matrix products, bit for bit against numpy, under every order of the modules."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tvm_ext.errors import VTAProgramError
from tvm_ext.vta.config import VTAConfig, load_config
from tvm_ext.vta.layouts import bias_as_weights, pack_bias, pack_data, pack_weights, unpack_data
from tvm_ext.vta.linter import lint
from tvm_ext.vta.memory import MemoryImage
from tvm_ext.vta.modules import Module
from tvm_ext.vta.operators import Requantize, conv2d, matmul
from tvm_ext.vta.program import Program, ProgramBuilder, read_outputs
from tvm_ext.vta.reference_simulator import ReferenceSimulator
from tvm_ext.vta.simulator import Simulator
from tvm_ext.vta.tiles import Conv2d, Slots, Tile

ORDERS = list(itertools.permutations(Module))


def integers(rng: np.random.Generator, *shape: int) -> NDArray[np.int8]:
    return rng.integers(-128, 128, shape).astype(np.int8)


def convolve(data: NDArray, weights: NDArray, bias: NDArray, stride: int, padding: int, finish: Requantize) -> NDArray:
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
    config: VTAConfig, data: NDArray, weights: NDArray, bias: NDArray,
    stride: int, padding: int, tile: Tile, finish: Requantize, bias_in_gemm: bool = False,
) -> tuple[Program, tuple[int, ...]]:  # fmt: skip
    packed, packed_weights = pack_data(data, config), pack_weights(weights, config)
    batches, in_blocks, height, width = packed.shape[:4]
    conv = Conv2d(batches, in_blocks, len(packed_weights), height, width, weights.shape[2], stride, padding)
    image = MemoryImage()
    image.allocate("data", packed)
    image.allocate("weights", packed_weights)
    if bias_in_gemm:
        bias_weights, bias_inputs = bias_as_weights(bias, config)
        image.allocate("bias", bias_weights)
        image.allocate("bias_inputs", bias_inputs)
    else:
        image.allocate("bias", pack_bias(bias, config))
    shape = (batches, conv.out_blocks, conv.out_height, conv.out_width, config.batch, config.block)
    image.allocate("out", int(np.prod(shape)))
    builder = ProgramBuilder(config, image)
    inputs = "bias_inputs" if bias_in_gemm else None
    conv2d(builder, conv, tile, finish, "data", "weights", "bias", "out", inputs)
    return builder.build(), shape


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_conv2d(data: st.DataObject) -> None:
    draw = data.draw
    config = load_config(draw(st.sampled_from(["sim", "sim_2x16", "sim_4x8", "pynq_0.0.1"])))
    kernel = draw(st.integers(1, 3))
    stride, padding = draw(st.integers(1, 3)), draw(st.integers(0, kernel - 1))
    batch, channels, outputs = draw(st.integers(1, 3)), draw(st.integers(1, 40)), draw(st.integers(1, 40))
    height, width = draw(st.integers(kernel, 9)), draw(st.integers(kernel, 9))
    tile = Tile(*(draw(st.integers(1, 4)) for _ in range(4)))
    finish = Requantize(draw(st.integers(0, 20)), draw(st.sampled_from([-128, 0])), draw(st.integers(1, 127)))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    inputs, weights = integers(rng, batch, channels, height, width), integers(rng, outputs, channels, kernel, kernel)
    bias = rng.integers(-100_000, 100_000, outputs).astype(np.int32)
    in_gemm = draw(st.booleans())
    program, shape = conv_program(config, inputs, weights, bias, stride, padding, tile, finish, in_gemm)
    result = Simulator(config).run(program.words, program.image.data, program.image.base)
    expected = convolve(inputs, weights, bias, stride, padding, finish)
    found = unpack_data(read_outputs(program, "out", shape, result.dram), expected.shape)
    np.testing.assert_array_equal(found, expected)


def test_conv2d_does_not_depend_on_who_comes_first() -> None:
    """Every order of the modules, and noise in the memories: no race, nothing read that was not written."""
    config = VTAConfig()
    rng = np.random.default_rng(0)
    inputs, weights = integers(rng, 1, 32, 9, 6), integers(rng, 48, 32, 3, 3)
    bias = rng.integers(-1000, 1000, 48).astype(np.int32)
    finish = Requantize(9, 0, 127)
    program, shape = conv_program(config, inputs, weights, bias, 2, 1, Tile(2, 3, 2, 1), finish)
    expected = convolve(inputs, weights, bias, 2, 1, finish)
    for noise, turns in enumerate(ORDERS):
        result = ReferenceSimulator(config, turns, noise).run(program.words, program.image.data, program.image.base)
        found = unpack_data(read_outputs(program, "out", shape, result.dram), expected.shape)
        np.testing.assert_array_equal(found, expected)
        assert result.tokens_left == (0, 0, 0, 0)


def test_a_convolution_reads_what_the_one_before_it_stored() -> None:
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
    builder = ProgramBuilder(config, image)
    finish = Requantize(8, 0, 127)
    conv2d(builder, Conv2d(1, 1, 2, 6, 6, 3, 1, 1), Tile(3, 6, 1, 1), finish, "data", "weights0", "bias0", "between")
    conv2d(builder, Conv2d(1, 2, 1, 6, 6, 1), Tile(2, 6, 1, 1), finish, "between", "weights1", "bias1", "out")
    program = builder.build()
    between = convolve(data, first, biases[0], 1, 1, finish)
    expected = convolve(between, second, biases[1], 1, 0, finish)
    for turns in ORDERS:
        result = ReferenceSimulator(config, turns).run(program.words, image.data, image.base)
        found = unpack_data(read_outputs(program, "out", (1, 1, 6, 6, 1, 16), result.dram), expected.shape)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["sim", "pynq_0.0.1", "de10nano_0.0.1"])
def test_conv2d_stays_in_the_portable_subset(name: str) -> None:
    config = load_config(name)
    rng = np.random.default_rng(0)
    inputs, weights = integers(rng, 1, 32, 8, 8), integers(rng, 32, 32, 3, 3)
    finish = Requantize(17, 0, 127)
    for bias_in_gemm in (False, True):
        tile = Tile(4, 8, 2, 2)
        program, _ = conv_program(config, inputs, weights, np.zeros(32, np.int32), 1, 1, tile, finish, bias_in_gemm)
        assert lint(program.instructions, config, program.image.data, program.image.base) == []


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_matmul(data: st.DataObject) -> None:
    draw = data.draw
    config = load_config(draw(st.sampled_from(["sim", "sim_2x16", "sim_4x8"])))
    rows, depth, columns = (draw(st.integers(1, extent)) for extent in (9, 90, 90))
    tile = Tile(1, draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    finish = Requantize(draw(st.integers(0, 12)), -100, 120)
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    left, right = integers(rng, rows, depth), integers(rng, columns, depth)
    bias = rng.integers(-5000, 5000, columns).astype(np.int32)
    packed = pack_data(left.reshape(rows, depth, 1, 1), config)
    weights = pack_weights(right.reshape(columns, depth, 1, 1), config)
    image = MemoryImage()
    image.allocate("data", packed)
    image.allocate("weights", weights)
    image.allocate("bias", pack_bias(bias, config))
    shape = (len(packed), len(weights), 1, 1, config.batch, config.block)
    image.allocate("out", int(np.prod(shape)))
    builder = ProgramBuilder(config, image)
    matmul(builder, len(packed), packed.shape[1], len(weights), tile, finish, "data", "weights", "bias", "out")
    program = builder.build()
    result = Simulator(config).run(program.words, image.data, image.base)
    found = unpack_data(read_outputs(program, "out", shape, result.dram), (rows, columns, 1, 1))[:, :, 0, 0]
    total = left.astype(np.int64) @ right.T.astype(np.int64) + bias
    np.testing.assert_array_equal(found, np.clip(total >> finish.shift, -100, 120).astype(np.int8))


def test_slots_keep_what_was_used_last() -> None:
    slots = Slots(depth=100, size=30, most=2, base=10)
    assert len(slots) == 2
    assert slots.find("a") == (10, True)
    assert slots.find("b") == (40, True)
    assert slots.find("a") == (10, False)
    assert slots.find("c") == (40, True)
    assert slots.find("b") == (10, True)
    assert len(Slots(depth=100, size=95, most=2, base=10)) == 0


def test_tiles_and_convolutions_that_cannot_be() -> None:
    rng = np.random.default_rng(0)
    inputs, weights = integers(rng, 1, 32, 60, 60), integers(rng, 32, 32, 3, 3)
    for tile, memory in ((Tile(60, 60, 1, 1), "inp"), (Tile(40, 45, 2, 1), "acc")):
        with pytest.raises(
            VTAProgramError, match=rf"elements does not fit the {memory} memory of \d+.*make Tile\(rows="
        ):
            conv_program(VTAConfig(), inputs, weights, np.zeros(32, np.int32), 1, 1, tile, Requantize(0))
    for shape, message in (
        ((1, 0, 1, 8, 8, 3), "in_blocks of a convolution is 0; expected at least 1"),
        ((1, 1, 1, 8, 8, 3, 1, 3), "padding of a convolution is 3; expected 0 to 2"),
        ((1, 1, 1, 2, 8, 3), "kernel 3 does not fit 2 x 8 inputs with padding 0"),
    ):
        with pytest.raises(VTAProgramError, match=message):
            Conv2d(*shape)
