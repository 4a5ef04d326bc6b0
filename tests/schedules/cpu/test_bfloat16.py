"""The instructions for bfloat16: rounding, and sums of products, are what their descriptions say."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from onnx import helper, numpy_helper
from tvm import te
from tvm.tirx import PrimFunc

import tvm_ext
from tests.cpu import needs_avx512_bf16
from tests.schedules.cpu.test_intrinsics import in_memory
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.passes.vector_code import vector_code
from tvm_ext.schedules.compute.bfloat16 import pairs, rounded, rounded_array
from tvm_ext.schedules.cpu.intrinsics import _bfloat16
from tvm_ext.schedules.simd.imported import import_definitions
from tvm_ext.schedules.simd.loops import SIMD_ATTRIBUTE, mark_simd

SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 3.3895314e38, 3.4028235e38, 1.00390625, 1.01171875, -1.00390625],
    "float32",
)
"""Infinities, NaN, the largest bfloat16 and the largest float32, numbers in the middle between two bfloat16."""

ODD_NAN = np.array([0x7F800001, 0xFFFFFFFF, 0x7FBFFFFF], "uint32").view("float32")


def reference(values: np.ndarray) -> np.ndarray:
    return values.astype(ml_dtypes.bfloat16).view("uint16")


def test_weights_are_rounded_as_ml_dtypes_does() -> None:
    values = np.concatenate([SPECIAL, np.random.default_rng(0).standard_normal(1000).astype("float32")])
    is_nan = np.isnan(values)
    np.testing.assert_array_equal(rounded_array(values)[~is_nan], reference(values)[~is_nan])
    for bits in (rounded_array(values[is_nan]), rounded_array(ODD_NAN)):
        assert np.isnan(bits.view(ml_dtypes.bfloat16).astype("float32")).all()


@pytest.mark.parametrize("extent", [1, 2, 5, 6])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_pairs(extent: int, axis: int) -> None:
    shape = [3, 4, 7]
    shape[axis] = extent
    values = np.random.default_rng(1).standard_normal(shape).astype("float32")
    found = np.moveaxis(pairs(values, axis), axis % 3, 0)
    expected = np.moveaxis(reference(values), axis, 0)
    for k in range(found.shape[0] * 2):
        np.testing.assert_array_equal(found[k // 2, ..., k % 2], expected[k] if k < extent else 0)


@needs_avx512_bf16
@pytest.mark.parametrize("lanes", [12, 16])
@pytest.mark.parametrize("extent", [1, 2, 3, 7, 16, 17, 31, 33, 64, 127])
def test_rounding_in_vectors(extent: int, lanes: int) -> None:
    source = te.placeholder((extent,), "float32", name="source")
    result = te.compute((extent,), lambda i: rounded(source[i]), name="result")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([source, result]))
    (loop,) = schedule.get_loops(schedule.get_sblock("result"))
    mark_simd(schedule, loop, lanes)
    with native_target():
        mod = vector_code()(schedule.mod)
    assert extent == 1 or SIMD_ATTRIBUTE not in mod.script()
    rng = np.random.default_rng(extent)
    values = (rng.standard_normal(extent) * 10.0 ** rng.integers(-30, 30, extent)).astype("float32")
    places = rng.permutation(extent)[: len(SPECIAL)]
    values[places] = SPECIAL[: len(places)]
    out = tvm.runtime.tensor(np.zeros(extent, "uint16"))
    tvm.compile(mod, native_target())["main"](tvm.runtime.tensor(values), out)
    is_nan = np.isnan(values)
    np.testing.assert_array_equal(out.numpy()[~is_nan], reference(values)[~is_nan])
    assert np.isnan(out.numpy()[is_nan].view(ml_dtypes.bfloat16).astype("float32")).all()


def _run(func: PrimFunc, *operands: np.ndarray) -> np.ndarray:
    tensors = [tvm.runtime.tensor(operand) for operand in operands]
    kernel = import_definitions(in_memory(func))
    tvm.compile(tvm.IRModule({"main": kernel}), native_target())["main"](*tensors)
    return tensors[-1].numpy()


@needs_avx512_bf16
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_sums_of_products(lanes: int) -> None:
    description, implementation = _bfloat16(lanes)
    rng = np.random.default_rng(lanes)
    for case in range(20):
        a, b = (rounded_array(rng.standard_normal(shape)) for shape in ((2,), (lanes, 2)))
        c = rng.standard_normal(lanes).astype("float32")
        if case % 4 == 1:
            b[rng.integers(lanes), 0] = rounded_array(rng.choice([np.inf, -np.inf, np.nan], 1))[0]
        expected = _run(description, a, b, c)
        np.testing.assert_allclose(_run(implementation, a, b, c), expected, rtol=0, atol=1e-6)
        wide: Any = [operand.view(ml_dtypes.bfloat16).astype("float32") for operand in (a, b)]
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(expected, c + (wide[0] * wide[1]).sum(-1), rtol=0, atol=1e-6)


@needs_avx512_bf16
@pytest.mark.parametrize("channels", [9, 12])
def test_blocks_of_twelve_channels(channels: int) -> None:
    """What is rounded is a vector of as many lanes as a block has channels."""
    rng = np.random.default_rng(channels)
    weight = rng.standard_normal((16, channels, 1, 1)).astype("float32")
    node = helper.make_node("Conv", ["x", "weight"], ["y"])
    image, result = (
        helper.make_tensor_value_info(name, 1, [1, count, 7, 9]) for name, count in (("x", channels), ("y", 16))
    )
    graph = helper.make_graph([node], "convolution", [image], [result], [numpy_helper.from_array(weight, "weight")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    x = rng.standard_normal((1, channels, 7, 9)).astype("float32")
    found = tvm_ext.compile(model, precision="bfloat16").run({"x": x})["y"]
    operands = (operand.astype(ml_dtypes.bfloat16).astype("float32") for operand in (weight[:, :, 0, 0], x[0]))
    np.testing.assert_allclose(found[0], np.einsum("oc,chw->ohw", *operands), rtol=1e-5, atol=1e-5)
