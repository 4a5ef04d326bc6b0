"""Integer products against onnxruntime and the onnx package's stored results."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

import tvm_ext
from tests.cpu import RUNTIME_SATURATES
from tests.frontend.onnx.ops.harness import (
    check_stored,
    check_with_onnxruntime,
    import_with_converters,
    node_model,
    stored_cases,
)
from tvm_ext.errors import ModelError, UnsupportedOperatorError

pytest.importorskip("onnxruntime")

MODULES = ["convinteger", "dynamicquantizelinear", "matmulinteger", "qlinearconv", "qlinearmatmul"]
CASES = [case for case in stored_cases(MODULES) if not case.model_name.endswith("_expanded")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.model_name)
def test_stored_result(case):
    check_stored(case)


def integers(random, dtype, *shape):
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max + 1, shape).astype(dtype)


def weights(random, dtype, *shape):
    """Draw weights whose products onnxruntime adds exactly."""
    if dtype == "int8" and RUNTIME_SATURATES:
        return random.integers(-64, 64, shape).astype(dtype)
    return integers(random, dtype, *shape)


def assert_close_integers(found, expected):
    """A tie may fall either way where the runtime scales in another order: off by one, and rarely."""
    difference = np.abs(found.astype("int32") - np.asarray(expected).astype("int32"))
    assert difference.max(initial=0) <= 1
    assert np.mean(difference > 0) < 0.02


def draw_types(data, weights_signed=False):
    activation = data.draw(st.sampled_from(["uint8", "int8"]), "activation type")
    weight = (
        "int8"
        if activation == "int8" or weights_signed
        else data.draw(st.sampled_from(["uint8", "int8"]), "weight type")
    )
    return activation, weight


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_matmul_integer_agrees_with_onnxruntime(data):
    random = np.random.default_rng(data.draw(st.integers(0, 99), "seed"))
    rows, depth, columns = (data.draw(st.sampled_from([1, 2, 7, 31, 33])) for _ in range(3))
    batch = data.draw(st.sampled_from([(), (2,), (2, 3)]), "batch")
    activation, weight = draw_types(data)
    per_column = data.draw(st.booleans(), "per column")
    values = {
        "A": integers(random, activation, *batch, rows, depth),
        "B": weights(random, weight, depth, columns),
        "a_zero_point": integers(random, activation) if data.draw(st.booleans(), "zero point of A") else None,
        "b_zero_point": integers(random, weight, *((columns,) if per_column else ()))
        if data.draw(st.booleans(), "zero point of B")
        else None,
    }
    constants = data.draw(st.sampled_from([(), ("B", "b_zero_point")]), "constants")
    model = node_model("MatMulInteger", values, ["Y"], constants=constants, output_types=[np.int32])
    check_with_onnxruntime(model, values)


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_conv_integer_agrees_with_onnxruntime(data):
    random = np.random.default_rng(data.draw(st.integers(0, 99), "seed"))
    dims = data.draw(st.integers(1, 2), "spatial dimensions")
    groups = data.draw(st.sampled_from([1, 3]), "groups")
    kernel = [data.draw(st.integers(1, 3)) for _ in range(dims)]
    pads = [data.draw(st.integers(0, 1)) for _ in range(2 * dims)]
    attributes = {
        "group": groups,
        "strides": [data.draw(st.integers(1, 2)) for _ in range(dims)],
        "dilations": [data.draw(st.integers(1, 2)) for _ in range(dims)],
        "pads": pads,
    }
    if data.draw(st.booleans(), "auto_pad"):
        del attributes["pads"]
        attributes |= {"auto_pad": "SAME_UPPER", "dilations": [1] * dims}
    values = {
        "x": integers(random, "uint8", 2, 3 * groups, *[9, 8][:dims]),
        "w": integers(random, "uint8", 4 * groups, 3, *kernel),
        "x_zero_point": integers(random, "uint8") if data.draw(st.booleans(), "zero point of x") else None,
        "w_zero_point": integers(random, "uint8") if data.draw(st.booleans(), "zero point of w") else None,
    }
    model = node_model("ConvInteger", values, ["y"], attributes, ("w", "w_zero_point"), output_types=[np.int32])
    check_with_onnxruntime(model, values)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e4])
@pytest.mark.parametrize("offset", [-2.0, 0.0, 3.0])
def test_dynamic_quantization_agrees_with_onnxruntime(scale, offset):
    x = ((np.random.default_rng(0).standard_normal((5, 33)) + offset) * scale).astype("float32")
    model = node_model(
        "DynamicQuantizeLinear", {"x": x}, ["y", "s", "z"], output_types=[np.uint8, np.float32, np.uint8]
    )
    check_with_onnxruntime(model, {"x": x}, rtol=1e-6)


def test_dynamic_quantization_of_zeros_is_finite():
    x = np.zeros((2, 3), "float32")
    model = node_model(
        "DynamicQuantizeLinear", {"x": x}, ["y", "s", "z"], output_types=[np.uint8, np.float32, np.uint8]
    )
    found = check_with_onnxruntime(model, {"x": x})
    assert found[1] == 1.0


def test_steps_of_dynamic_quantization_are_one_kernel():
    """The largest value, the smallest one, the scale with the zero point, and the values."""
    graph = helper.make_graph(
        [helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])],
        "quantisation",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [16, 64])],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in zip("ysz", (2, 1, 2), strict=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    text = tvm_ext.compile(model, {"kind": "llvm", "opt-level": 1}).executable.as_text()
    assert len(re.findall(r"call +(\w+) +in:", text)) == 4


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_qlinear_conv_agrees_with_onnxruntime(data):
    from tests.frontend.onnx.ops.harness import inputs_of, run_module, run_onnxruntime

    random = np.random.default_rng(data.draw(st.integers(0, 99), "seed"))
    activation, weight = draw_types(data)
    per_channel, depthwise = data.draw(st.booleans(), "per channel"), data.draw(st.booleans(), "depthwise")
    channels, filters = 6, 6 if depthwise else 5
    scales = (filters,) if per_channel else ()
    values = {
        "x": integers(random, activation, 1, channels, 9, 7),
        "x_scale": np.float32(0.02),
        "x_zero_point": integers(random, activation),
        "w": weights(random, weight, filters, 1 if depthwise else channels, 3, 3),
        "w_scale": (random.random(scales) * 0.01 + 0.001).astype("float32"),
        "w_zero_point": np.zeros(scales, weight) if weight == "int8" else integers(random, weight),
        "y_scale": np.float32(0.05),
        "y_zero_point": integers(random, activation),
        "B": random.integers(-500, 500, filters).astype("int32") if data.draw(st.booleans(), "bias") else None,
    }
    attributes = {"pads": [1, 0, 1, 2], "strides": [2, 1], "group": channels if depthwise else 1}
    constants = tuple(name for name in values if name != "x")
    model = node_model("QLinearConv", values, ["y"], attributes, constants, output_types=[np.dtype(activation)])
    inputs = inputs_of(model, values)
    found = run_module(import_with_converters(model), list(inputs.values()))[0]
    assert_close_integers(found, run_onnxruntime(model, inputs)[0])


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_qlinear_matmul_agrees_with_onnxruntime(data):
    from tests.frontend.onnx.ops.harness import inputs_of, run_module, run_onnxruntime

    random = np.random.default_rng(data.draw(st.integers(0, 99), "seed"))
    activation, weight = draw_types(data)
    rows, depth, columns = (data.draw(st.sampled_from([1, 7, 33])) for _ in range(3))
    scales = (columns,) if data.draw(st.booleans(), "per column") else ()
    values = {
        "a": integers(random, activation, 2, rows, depth),
        "a_scale": np.float32(0.02),
        "a_zero_point": integers(random, activation),
        "b": weights(random, weight, depth, columns),
        "b_scale": (random.random(scales) * 0.01 + 0.001).astype("float32"),
        "b_zero_point": np.zeros(scales, weight) if weight == "int8" else integers(random, weight, *scales),
        "y_scale": np.float32(0.03),
        "y_zero_point": integers(random, activation),
    }
    constants = tuple(name for name in values if name != "a")
    model = node_model("QLinearMatMul", values, ["y"], constants=constants, output_types=[np.dtype(activation)])
    inputs = inputs_of(model, values)
    found = run_module(import_with_converters(model), list(inputs.values()))[0]
    assert_close_integers(found, run_onnxruntime(model, inputs)[0])


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("operator", ["DynamicQuantizeMatMul", "MatMulIntegerToFloat"])
def test_scaled_products_agree_with_onnxruntime(operator, per_column, bias):
    random = np.random.default_rng(1)
    columns = (9,) if per_column else ()
    values = {
        "A": random.standard_normal((5, 33)).astype("float32")
        if operator.startswith("Dyn")
        else integers(random, "uint8", 5, 33),
        "B": weights(random, "int8", 33, 9),
        "a_scale": np.float32(0.02),
        "b_scale": (random.random(columns) * 0.01).astype("float32"),
        "a_zero_point": np.uint8(120),
        "b_zero_point": integers(random, "int8", *columns),
        "bias": random.standard_normal(9).astype("float32") if bias else None,
    }
    if operator.startswith("Dyn"):
        del values["a_scale"], values["a_zero_point"]
    constants = tuple(name for name in values if name != "A")
    model = node_model(operator, values, ["Y"], constants=constants, domain="com.microsoft", output_types=[np.float32])
    check_with_onnxruntime(model, values, rtol=1e-4, atol=1e-4)


def test_wrong_zero_point_shape_is_named():
    values = {"A": np.zeros((2, 3), "uint8"), "B": np.zeros((3, 4), "uint8"), "a": None, "b": np.zeros(3, "uint8")}
    model = node_model("MatMulInteger", values, ["Y"], output_types=[np.int32])
    with pytest.raises(ModelError, match=r"input b_zero_point has shape \(3,\), \(\) or \(4,\) was expected"):
        import_with_converters(model)


def test_scale_per_row_is_refused():
    values = {
        "a": np.zeros((2, 3), "uint8"),
        "a_scale": np.ones(2, "float32"),
        "a_zero_point": np.zeros(2, "uint8"),
        "b": np.zeros((3, 4), "uint8"),
        "b_scale": np.float32(1),
        "b_zero_point": np.uint8(0),
        "y_scale": np.float32(1),
        "y_zero_point": np.uint8(0),
    }
    with pytest.raises(UnsupportedOperatorError, match=r"one scale per row of A is not supported, only a scalar"):
        import_with_converters(node_model("QLinearMatMul", values, ["y"]))
