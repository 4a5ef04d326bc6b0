"""Max, Min, PRelu, ThresholdedRelu and Celu, compared with onnxruntime: scalars, broadcasts, infinities, precisions."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx import helper

import tvm_ext

pytest.importorskip("onnxruntime")

from tvm_ext.verify import onnxruntime_outputs

VALUES = np.array([-np.inf, np.inf, np.nan, 0, -0.5, 0.3, 0.4, 2, -3, 1e-3, 7], "float64")


def check(signature: str, body: str, inputs: dict[str, np.ndarray]) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {signature} {{ {body} }}')
    (expected,) = onnxruntime_outputs(model, inputs)
    (found,) = tvm_ext.compile(model).run(inputs).values()
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(), (11,), (2, 11)])
def test_celu(shape: tuple[int, ...]) -> None:
    sides = f"[{','.join(map(str, shape))}]" if shape else ""
    x = np.resize(VALUES, shape).astype("float32")
    check(f"(float{sides} x) => (float{sides} y)", "y = Celu <alpha = 1.3> (x)", {"x": x})


def test_thresholded_relu() -> None:
    x = VALUES.astype("float32")
    check("(float[11] x) => (float[11] y)", "y = ThresholdedRelu <alpha = 0.4> (x)", {"x": x})


def test_thresholded_relu_in_double_precision() -> None:
    """The CPU provider of onnxruntime lacks it."""
    text = '<ir_version: 8, opset_import: ["" : 17]> g (double[11] x) => (double[11] y) { y = ThresholdedRelu (x) }'
    (found,) = tvm_ext.compile(onnx.parser.parse_model(text)).run({"x": VALUES}).values()
    np.testing.assert_array_equal(found, np.where(VALUES > 1, VALUES, 0))


@pytest.mark.parametrize(
    ("shape", "slope"),
    [((2, 3, 5), (3, 1)), ((2, 3, 5), (1,)), ((4, 7), (7,)), ((4, 7), (4, 1)), ((5,), (1,)), ((2, 3, 4, 5), (3, 1, 1))],
)
def test_slopes(shape: tuple[int, ...], slope: tuple[int, ...]) -> None:
    generator = np.random.default_rng(0)
    x, a = (generator.standard_normal(sides).astype("float32") for sides in (shape, slope))
    sides, short = (f"[{','.join(map(str, item))}]" for item in (shape, slope))
    check(f"(float{sides} x, float{short} a) => (float{sides} y)", "y = PRelu(x, a)", {"x": x, "a": a})


@pytest.mark.parametrize("operator", ["Max", "Min"])
def test_extremes_of_several(operator: str) -> None:
    rows = np.broadcast_to(VALUES[:, None], (11, 11)).astype("float32")
    inputs = {"x": rows, "z": VALUES.astype("float32"), "w": np.full((1, 1), np.inf, "float32")}
    signature = "(float[11,11] x, float[11] z, float[1,1] w) => (float[11,11] y)"
    check(signature, f"y = {operator}(x, z, w)", inputs)
    check("(float[11,11] x) => (float[11,11] y)", f"y = {operator}(x)", {"x": rows})


def test_nothing_is_in_an_optional_value_that_is_left_out() -> None:
    nodes = [helper.make_node("OptionalHasElement", inputs, [name]) for name, inputs in (("none", []), ("one", ["x"]))]
    outputs = [helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, []) for name in ("none", "one")]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3])
    model = helper.make_model(helper.make_graph(nodes, "g", [x], outputs), opset_imports=[helper.make_opsetid("", 18)])
    found = tvm_ext.compile(model).run([np.zeros(3, "float32")])
    assert [bool(found["none"]), bool(found["one"])] == [False, True]


def test_one_axis_as_a_scalar() -> None:
    """PyTorch's exporter writes a new axis so, and onnxruntime takes it."""
    x = np.arange(6, dtype="float32").reshape(2, 3)
    axis = "axis = Constant<value_int = 1>()"
    check("(float[2,3] x) => (float[2,1,3] y)", f"{axis} y = Unsqueeze(x, axis)", {"x": x})
