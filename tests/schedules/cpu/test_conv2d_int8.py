"""Integer convolutions, ordinary and depthwise, against numpy, on every instruction set this machine has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te

from tvm_ext.backends.cpu.target import native_target
from tvm_ext.passes.vector_code import vector_code
from tvm_ext.schedules.compute.quantized import (
    conv2d_int8,
    depthwise_conv2d_int8,
    pack_depthwise_weight_int8,
    pack_weight_int8,
    to_integer,
)
from tvm_ext.schedules.cpu import RULES
from tvm_ext.schedules.cpu.conv_tile import computed_width
from tvm_ext.schedules.cpu.depthwise_int8 import taps_in_a_pack
from tvm_ext.schedules.cpu.intrinsics import dot_product
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.cpu.window import computed_strip_width
from tvm_ext.schedules.rule import FAULT_ATTRIBUTE, RULE_ATTRIBUTE, apply_rules

HOST = {str(name) for name in tvm.target.codegen.llvm_get_cpu_features(native_target())}
LEVELS = {
    name: mcpu
    for name, mcpu, feature in (
        ("vnni", "icelake-server", "avx512vnni"),
        ("avx512", "skylake-avx512", "avx512bw"),
        ("avx2", "haswell", "avx2"),
        ("sse4", "nehalem", "sse4.1"),
        ("generic", "x86-64", "sse2"),
    )
    if feature in HOST
}
AWKWARD = [1, 3, 7, 8, 9, 15, 17, 31, 33]


def target_of(level: str) -> tvm.target.Target:
    return tvm.target.Target({"kind": "llvm", "mcpu": LEVELS[level], "num-cores": 2})


def convolve(
    data: np.ndarray, weight: np.ndarray, strides: Any, padding: Any, dilation: Any, groups: int, value: int
) -> np.ndarray:
    """The definition, in int64."""
    top, left, bottom, right = padding
    padded = np.pad(data.astype(np.int64), [(0, 0), (0, 0), (top, bottom), (left, right)], constant_values=value)
    spans = [(extent - 1) * step + 1 for extent, step in zip(weight.shape[2:], dilation, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(padded, spans, axis=(2, 3))
    windows = windows[:, :, :: strides[0], :: strides[1], :: dilation[0], :: dilation[1]]
    inputs, outputs = data.shape[1] // groups, weight.shape[0] // groups
    parts = [
        np.einsum(
            "nchwij,ocij->nohw", windows[:, group * inputs : (group + 1) * inputs],
            weight[group * outputs : (group + 1) * outputs].astype(np.int64),
        )
        for group in range(groups)
    ]  # fmt: skip
    return np.concatenate(parts, axis=1)


def blocked(array: np.ndarray, block: int) -> np.ndarray:
    """NCHW to NCHW{block}c; lanes beyond the last channel hold rubbish that must not matter."""
    batch, channels, height, width = array.shape
    chunks = -(-channels // block)
    filled = np.full((batch, chunks * block, height, width), 113, array.dtype)
    filled[:, :channels] = array
    return np.ascontiguousarray(filled.reshape(batch, chunks, block, height, width).transpose(0, 1, 3, 4, 2))


def plain(array: np.ndarray, channels: int) -> np.ndarray:
    batch, chunks, height, width, block = array.shape
    return array.transpose(0, 1, 4, 2, 3).reshape(batch, chunks * block, height, width)[:, :channels]


def run(
    inputs: list[te.Tensor], result: te.Tensor, target: tvm.target.Target, rule: str, *arrays: np.ndarray
) -> np.ndarray:
    """Schedule and run a kernel."""
    scheduled = apply_rules(te.create_prim_func([*inputs, result]), target, RULES)
    assert scheduled.attrs[RULE_ATTRIBUTE] == rule
    assert FAULT_ATTRIBUTE not in scheduled.attrs
    output = tvm.runtime.tensor(np.zeros([int(extent) for extent in result.shape], str(result.dtype)))
    with target:
        module = vector_code()(tvm.IRModule({"main": scheduled.with_attr("global_symbol", "main")}))
    tvm.compile(module, target)["main"](*map(tvm.runtime.tensor, arrays), output)
    return output.numpy()


def check_convolution(
    level: str, batch: int, channels: Any, size: Any, kernel: Any, strides: Any, padding: Any, dilation: Any,
    groups: int = 1, blocks: tuple[int, int] | None = None, small: bool = False,
) -> None:  # fmt: skip
    target = target_of(level)
    machine = machine_of(target)
    form = dot_product(machine, small)
    block_in, block_out = blocks or (machine.lanes("int32"),) * 2
    rng = np.random.default_rng(7)
    data = rng.integers(0, 256, (batch, channels[0], *size)).astype("uint8")
    low, high = (-64, 64) if small else (-128, 127)
    weight = rng.integers(low, high + 1, (channels[1], channels[0] // groups, *kernel)).astype("int8")
    expected = convolve(data, weight, strides, padding, dilation, groups, 77)
    packed = pack_weight_int8(weight, block_in, block_out, form.pack, form.weights, groups)
    source = blocked(data, block_in)
    left, right = te.placeholder(source.shape, "uint8"), te.placeholder(packed.shape, form.weights)
    total = conv2d_int8(
        left, right, strides, padding, dilation, 77, groups,
        computed_width(expected.shape[3], packed.shape[0], machine), form.offset, small,
    )  # fmt: skip
    result = run([left, right], total, target, "cpu.conv2d_int8", source, packed)
    np.testing.assert_array_equal(plain(result, channels[1]), expected)


def check_depthwise(
    level: str, channels: int, size: Any, kernel: Any, strides: Any, padding: Any, dilation: Any
) -> None:
    target = target_of(level)
    machine = machine_of(target)
    block = machine.lanes("int32")
    rng = np.random.default_rng(8)
    data = rng.integers(0, 256, (1, channels, *size)).astype("uint8")
    weight = rng.integers(-128, 128, (channels, 1, *kernel)).astype("int8")
    expected = convolve(data, weight, strides, padding, dilation, channels, 200)
    packed = pack_depthwise_weight_int8(weight, block, taps_in_a_pack(machine, block, dilation))
    source = blocked(data, block)
    left, right = te.placeholder(source.shape, "uint8"), te.placeholder(packed.shape, "int8")
    width = computed_strip_width(expected.shape[3], machine.vector_registers)
    total = depthwise_conv2d_int8(left, right, strides, padding, dilation, kernel[1], 200, width)
    result = run([left, right], total, target, "cpu.depthwise_int8", source, packed)
    np.testing.assert_array_equal(plain(result, channels), expected)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", [(1, 1), (7, 9), (15, 31)])
def test_convolution(level: str, size: tuple[int, int]) -> None:
    check_convolution(level, 2, (33, 48), size, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("groups", [1, 3])
def test_small_weights(level: str, groups: int) -> None:
    """Bytes of 255 times the largest weights that such a kernel is made for."""
    blocks = None if groups == 1 else (4, 4)
    check_convolution(level, 2, (48, 48), (7, 9), (3, 3), (1, 2), (1, 1, 0, 1), (1, 1), groups, blocks, small=True)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("chunks", [1, 11])
def test_tiles_of_one_vector(level: str, chunks: int) -> None:
    """One pixel, and chunks of channels that no tile divides: squeeze and excite, whose result scales an image."""
    target = target_of(level)
    machine = machine_of(target)
    form, lanes = dot_product(machine), machine.lanes("int32")
    rng = np.random.default_rng(9)
    data = rng.integers(0, 256, (1, 24, 1, 1)).astype("uint8")
    weight = rng.integers(-128, 128, (chunks * lanes, 24, 1, 1)).astype("int8")
    packed = pack_weight_int8(weight, lanes, lanes, form.pack, form.weights)
    source = blocked(data, lanes)
    left, right = te.placeholder(source.shape, "uint8"), te.placeholder(packed.shape, form.weights)
    total = conv2d_int8(left, right, (1, 1), (0,) * 4, (1, 1), offset=form.offset)
    scaled = te.compute(
        total.shape,
        lambda *at: to_integer((total(*at) + 7).astype("float32") * 0.25, 0, 255, 3, "uint8"),
        name="scaled",
    )
    read = te.compute(total.shape, lambda *at: (scaled(*at).astype("int32") - 3).astype("float32") * 0.5, name="read")
    image = te.placeholder((1, chunks, 3, 5, lanes), "uint8")
    gated = te.compute(
        image.shape, lambda n, c, h, w, i: image[n, c, h, w, i].astype("float32") * read[n, c, 0, 0, i], name="gated"
    )
    pixels = rng.integers(0, 256, (1, chunks, 3, 5, lanes)).astype("uint8")
    result = run([left, right, image], gated, target, "cpu.conv2d_int8", source, packed, pixels)
    sums = convolve(data, weight, (1, 1), (0,) * 4, (1, 1), 1, 0) + 7
    expected = (np.clip(np.rint(sums * 0.25) + 3, 0, 255) - 3) * 0.5
    np.testing.assert_array_equal(result, pixels * blocked(expected.astype("float32"), lanes))


@pytest.mark.parametrize("level", LEVELS)
def test_depthwise(level: str) -> None:
    check_depthwise(level, 40, (17, 15), (3, 3), (2, 1), (1, 1, 1, 1), (1, 1))
    check_depthwise(level, 16, (8, 9), (5, 5), (1, 1), (2, 2, 2, 2), (1, 1))


@pytest.mark.parametrize("level", LEVELS)
def test_groups_and_narrow_blocks(level: str) -> None:
    check_convolution(level, 1, (16, 24), (9, 7), (3, 3), (1, 2), (1, 0, 1, 0), (1, 1), 2, (4, 4))


GEOMETRY = {
    "size": st.tuples(st.sampled_from(AWKWARD), st.sampled_from(AWKWARD)),
    "kernel": st.tuples(st.integers(1, 5), st.integers(1, 7)),
    "strides": st.tuples(st.integers(1, 3), st.integers(1, 3)),
    "padding": st.tuples(*[st.integers(0, 3)] * 4),
    "dilation": st.tuples(st.integers(1, 2), st.integers(1, 2)),
}


def fits(size: Any, kernel: Any, padding: Any, dilation: Any) -> bool:
    return all(
        size[axis] + padding[axis] + padding[axis + 2] > dilation[axis] * (kernel[axis] - 1) for axis in range(2)
    )


@settings(max_examples=12, deadline=None)
@given(
    level=st.sampled_from(sorted(LEVELS)), inputs=st.sampled_from(AWKWARD), outputs=st.sampled_from([*AWKWARD, 63]),
    **GEOMETRY,
)  # fmt: skip
def test_any_convolution(level: str, inputs: int, outputs: int, **geometry: Any) -> None:
    if fits(*(geometry[key] for key in ("size", "kernel", "padding", "dilation"))):
        check_convolution(level, 1, (inputs, outputs), **geometry)


@settings(max_examples=12, deadline=None)
@given(level=st.sampled_from(sorted(LEVELS)), channels=st.sampled_from([*AWKWARD, 65]), **GEOMETRY)
def test_any_depthwise(level: str, channels: int, **geometry: Any) -> None:
    if fits(*(geometry[key] for key in ("size", "kernel", "padding", "dilation"))):
        check_depthwise(level, channels, **geometry)


@pytest.mark.parametrize("level", LEVELS)
def test_extremes_do_not_saturate(level: str) -> None:
    """The greatest inputs times the least weights: sums that 16-bit dot products would cut off."""
    target = target_of(level)
    machine = machine_of(target)
    form, lanes = dot_product(machine), machine.lanes("int32")
    data, weight = np.full((1, 64, 3, 3), 255, "uint8"), np.full((lanes, 64, 3, 3), -128, "int8")
    packed = pack_weight_int8(weight, lanes, lanes, form.pack, form.weights)
    source = blocked(data, lanes)
    left, right = te.placeholder(source.shape, "uint8"), te.placeholder(packed.shape, form.weights)
    total = conv2d_int8(left, right, (1, 1), (0,) * 4, (1, 1), offset=form.offset)
    result = run([left, right], total, target, "cpu.conv2d_int8", source, packed)
    assert (result == -255 * 128 * 64 * 9).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("dtype", "zero_point"), [("uint8", 0), ("uint8", 131), ("uint8", 255), ("int8", -128), ("int8", 5)]
)
def test_rounding(level: str, dtype: str, zero_point: int) -> None:
    """Ties go to the even integer; what is out of range saturates, however far out."""
    limits = np.iinfo(dtype)
    values = np.concatenate(
        [np.arange(-600, 600) / 2, [1e9, -1e9, 1e20, -1e20, np.inf, -np.inf, 0.49999997, -0.5]]
    ).astype("float32")
    source = te.placeholder(values.shape, "float32")
    result = te.compute(
        values.shape,
        lambda i: to_integer(source[i], int(limits.min), int(limits.max), zero_point, dtype),
        name="round",
    )
    got = run([source], result, target_of(level), "cpu.elementwise", values)
    expected = np.clip(np.rint(values.astype("float64")) + zero_point, limits.min, limits.max).astype(dtype)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("config", "small", "instruction"),
    [
        ({"mcpu": "icelake-server"}, False, "vpdpbusd"),
        ({"mcpu": "icelake-server"}, True, "vpdpbusd"),
        ({"mcpu": "alderlake"}, False, "vpdpbusd"),
        ({"mcpu": "skylake-avx512"}, True, "vpmaddubsw"),
        ({"mcpu": "haswell"}, False, "vpmaddwd"),
        ({"mcpu": "haswell"}, True, "vpmaddubsw"),
        ({"mcpu": "nehalem"}, True, "pmaddubsw"),
        ({"mtriple": "aarch64-linux-gnu", "mattr": ["+neon", "+dotprod"]}, False, "sdot"),
        ({"mtriple": "aarch64-linux-gnu", "mattr": ["+dotprod", "+i8mm"]}, False, "sudot"),
        ({"mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]}, True, "smlal"),
    ],
)
def test_instructions(config: dict[str, Any], small: bool, instruction: str) -> None:
    """The dot-product instruction of the target is in the code (which need not run here)."""
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2, **config})
    machine = machine_of(target)
    form, lanes = dot_product(machine, small), machine.lanes("int32")
    left = te.placeholder((1, 4, 10, 10, lanes), "uint8")
    right = te.placeholder((4, 4, 3, 3, lanes // form.pack, lanes, form.pack), form.weights)
    total = conv2d_int8(left, right, (1, 1), (1,) * 4, (1, 1), 3, offset=form.offset, small=small)
    taken = apply_rules(te.create_prim_func([left, right, total]), target, RULES)
    assert RULE_ATTRIBUTE in taken.attrs
    module = tvm.IRModule({"main": taken.with_attr("global_symbol", "main")})
    with target:
        module = vector_code()(module)
    assert f"\t{instruction}" in tvm.compile(module, target).mod.inspect_source("asm")
