"""What files may hold and exporters seldom write."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import tvm_ext
from tests.frontend.onnx.ops.harness import check_with_onnxruntime, node_model
from tvm_ext.errors import ModelError, UnsupportedOperatorError
from tvm_ext.frontend import import_model

X = np.array([[-1, 0, 2], [3, 0, -5]], "float32")


def model_of(signature: str, body: str, opsets: str = '"" : 17') -> onnx.ModelProto:
    return onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{opsets}]> g {signature} {{ {body} }}")


@pytest.mark.parametrize(
    "body",
    [
        "y = Relu(x) s = Cast<to = 8>(x)",
        'y = Relu(x) s = Constant<value_string = "words">()',
        "s = Cast<to = 8>(x) y = Cast<to = 1>(s)",
    ],
)
def test_strings_are_refused_by_name(body: str) -> None:
    outputs = (
        "float[2,3] y"
        if "(s)" in body
        else "float[2,3] y, string[2,3] s"
        if "Cast" in body
        else "float[2,3] y, string s"
    )
    with pytest.raises(UnsupportedOperatorError, match="'s' is a tensor of strings"):
        tvm_ext.compile(model_of(f"(float[2,3] x) => ({outputs})", body), "native")


@pytest.mark.parametrize("taken", [True, False])
def test_branches_that_return_one_tensor_twice(taken: bool) -> None:
    """onnxruntime gives zeros for the first of the two."""
    model = model_of(
        "(float[2,3] x, bool c) => (float[2,3] y, float[2,3] z)",
        "y, z = If(c) <then_branch = t () => (float[2,3] a, float[2,3] a) { a = Neg(x) }, "
        "else_branch = e () => (float[2,3] b, float[2,3] b) { b = Abs(x) }>",
    )
    found = tvm_ext.compile(model, "native").run({"x": X, "c": np.array(taken)})
    for array in found.values():
        np.testing.assert_array_equal(array, -X if taken else np.abs(X))


def test_a_body_that_returns_one_tensor_twice() -> None:
    model = model_of(
        "(float[2,3] x) => (float[2,3] y, float[3,2,3] all)",
        "n = Constant<value_int = 3>() t = Constant<value = bool {1}>() y, all = Loop(n, t, x) <body = b "
        "(int64 i, bool c, float[2,3] v) => (bool d, float[2,3] w, float[2,3] w) { d = Identity(c) w = Add(v, v) }>",
    )
    found = tvm_ext.compile(model, "native").run({"x": X})
    np.testing.assert_array_equal(found["y"], 8 * X)
    np.testing.assert_array_equal(found["all"], [2 * X, 4 * X, 8 * X])


def test_the_shape_of_what_depends_on_values_is_an_output() -> None:
    model = model_of("(float[2,3] x) => (int64[2,k] places, int64[2] s)", "places = NonZero(x) s = Shape(places)")
    found = tvm_ext.compile(model, "native").run({"x": X})
    np.testing.assert_array_equal(found["places"], np.nonzero(X))
    np.testing.assert_array_equal(found["s"], [2, 4])


@pytest.mark.parametrize(("opset", "attributes"), [(10, {}), (11, {"largest": 0})])
def test_the_number_of_top_elements_is_an_input(opset: int, attributes: dict[str, int]) -> None:
    values = {"x": np.random.default_rng(0).standard_normal((1, 5, 4)).astype("float32"), "k": np.array([2])}
    model = node_model(
        "TopK", values, ["v", "i"], {"axis": 1, **attributes}, ("k",), opset=opset, output_types=(np.float32, np.int64)
    )
    check_with_onnxruntime(model, values)


def test_top_elements_in_any_order() -> None:
    values = {"x": np.random.default_rng(0).standard_normal((1, 5, 4)).astype("float32"), "k": np.array([2])}
    attributes = {"axis": 1, "sorted": 0}
    model = node_model("TopK", values, ["v", "i"], attributes, ("k",), opset=11, output_types=(np.float32, np.int64))
    found = tvm_ext.compile(model, "native").run({"x": values["x"]})
    np.testing.assert_array_equal(np.sort(found["v"], 1), np.sort(values["x"], 1)[:, 3:])
    np.testing.assert_array_equal(np.take_along_axis(values["x"], found["i"], 1), found["v"])


@pytest.mark.parametrize(
    ("taken", "given", "named"),
    [
        ("uint4", "float", "input 'x' is of uint4, and inputs and outputs need elements of whole bytes"),
        ("float", "int4", "its output 'y' is returned, and TVM has no tensors of int4 to return"),
    ],
)
def test_elements_of_half_a_byte_stay_inside(taken: str, given: str, named: str) -> None:
    kinds = {"float": onnx.TensorProto.FLOAT, "uint4": onnx.TensorProto.UINT4, "int4": onnx.TensorProto.INT4}
    node = onnx.helper.make_node("Cast", ["x"], ["y"], to=kinds[given])
    tensors = [
        onnx.helper.make_tensor_value_info(name, kinds[kind], [5]) for name, kind in (("x", taken), ("y", given))
    ]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", tensors[:1], tensors[1:]),
        opset_imports=[onnx.helper.make_opsetid("", 21)],
        ir_version=10,
    )
    with pytest.raises(ModelError, match=named):
        import_model(model)


@pytest.mark.parametrize("name", ["INT4", "UINT4"])
@pytest.mark.parametrize("block", [None, 2])
def test_weights_of_four_bits(name: str, block: int | None) -> None:
    """As weight-only quantisation writes them: one scale for each column, or for blocks of rows in it."""
    rng = np.random.default_rng(0)
    low = -8 if name == "INT4" else 0
    rows, axis = (2, 0) if block else (1, 1)
    weight, zeros = rng.integers(low, low + 16, (4, 5)), rng.integers(low, low + 16, (rows, 5))
    scales = rng.uniform(0.1, 1, (rows, 5)).astype("float32")
    blocks = f", block_size = {block}" if block else ""
    model = model_of(
        "(float[3,4] x) => (float[3,5] y)",
        f"w = DequantizeLinear<axis = {axis}{blocks}>(q, s, z) y = MatMul(x, w)",
        opsets='"" : 21',
    )
    shape = (rows, 5) if block else (5,)
    kind = getattr(onnx.TensorProto, name)
    model.graph.initializer.extend(
        [
            onnx.helper.make_tensor("q", kind, weight.shape, weight.ravel().tolist()),
            onnx.helper.make_tensor("z", kind, shape, zeros.ravel().tolist()),
            onnx.numpy_helper.from_array(scales.reshape(shape), "s"),
        ]
    )
    x = rng.standard_normal((3, 4)).astype("float32")
    repeated = [np.repeat(array, 4 // rows, axis=0) for array in (zeros, scales)]
    expected = x @ ((weight - repeated[0]) * repeated[1])
    np.testing.assert_allclose(tvm_ext.compile(model).run({"x": x})["y"], expected, rtol=0, atol=1e-4)
