"""ONNX models with a batch that stays open, compared with onnxruntime for several numbers of images."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper, numpy_helper

import tvm_ext
from tvm_ext.errors import InputError
from tvm_ext.frontend import import_model

onnxruntime = pytest.importorskip("onnxruntime")

NUMBERS = (0, 1, 2, 3, 5, 17)


def weight(name: str, *shape: int) -> onnx.TensorProto:
    values = np.random.default_rng(len(name)).standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
    return numpy_helper.from_array(values.astype("float32"), name)


def model(
    nodes: list[onnx.NodeProto], image: list[int], constants: list[onnx.TensorProto], batch: str | int = "N"
) -> onnx.ModelProto:
    """Make a model from ``x`` to ``y``."""
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [batch, *image])]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def integers(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, "int64"), name)


def conv_net() -> onnx.ModelProto:
    """The shape of a reshape is computed from that of the input, as exporters write it."""
    node = helper.make_node
    return model(
        [
            node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
            node("Relu", ["a"], ["b"]),
            node("Conv", ["b", "depthwise"], ["c"], pads=[1, 1, 1, 1], group=5),
            node("MaxPool", ["c"], ["d"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
            node("Shape", ["d"], ["s"]),
            node("Gather", ["s", "zero"], ["n"]),
            node("Concat", ["n", "rest"], ["t"], axis=0),
            node("Reshape", ["d", "t"], ["e"]),
            node("Gemm", ["e", "head", "bias"], ["f"]),
            node("Softmax", ["f"], ["y"]),
        ],
        [3, 9, 7],
        [
            weight("w", 5, 3, 3, 3),
            weight("depthwise", 5, 1, 3, 3),
            weight("head", 100, 7),
            weight("bias", 7),
            integers("zero", 0),
            integers("rest", -1),
        ],
    )


def with_token() -> onnx.ModelProto:
    """A class token is expanded to the number of images, which becomes a constant for each of them."""
    node = helper.make_node
    return model(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["n"]),
            node("Concat", ["n", "rest"], ["t"], axis=0),
            node("Expand", ["token", "t"], ["tokens"]),
            node("Concat", ["tokens", "x"], ["a"], axis=1),
            node("LayerNormalization", ["a", "scale", "bias"], ["b"]),
            node("MatMul", ["b", "w"], ["y"]),
        ],
        [4, 11],
        [
            weight("token", 1, 1, 11),
            weight("scale", 11),
            weight("bias", 11),
            weight("w", 11, 3),
            integers("zero", 0),
            integers("rest", 1, 11),
        ],
    )


def counting() -> onnx.ModelProto:
    """Sums are divided by the number of images."""
    node = helper.make_node
    return model(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["n"]),
            node("Cast", ["n"], ["f"], to=onnx.TensorProto.FLOAT),
            node("Div", ["x", "f"], ["y"]),
        ],
        [4],
        [integers("zero", 0)],
    )


def numbering() -> onnx.ModelProto:
    """Every image gets its number."""
    node = helper.make_node
    return model(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["n"]),
            node("Squeeze", ["n", "zero"], ["m"]),
            node("Range", ["first", "m", "step"], ["numbers"]),
            node("Cast", ["numbers"], ["f"], to=onnx.TensorProto.FLOAT),
            node("Unsqueeze", ["f", "one"], ["column"]),
            node("Add", ["x", "column"], ["y"]),
        ],
        [4],
        [
            integers("zero", 0),
            integers("one", 1),
            numpy_helper.from_array(np.array(0, "int64"), "first"),
            numpy_helper.from_array(np.array(1, "int64"), "step"),
        ],
    )


@pytest.mark.parametrize("make", [conv_net, with_token])
def test_values(make: Any) -> None:
    proto = make()
    image = [dim.dim_value for dim in list(proto.graph.input[0].type.tensor_type.shape.dim)[1:]]
    compiled = tvm_ext.compile(proto, input_shapes={"x": ["n", *image]})
    assert compiled.inputs[0].shape == ("n", *image)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (one,) = session.run(None, {"x": np.zeros([1, *image], "float32")})
    for number in NUMBERS:
        x = np.random.default_rng(number).standard_normal([number, *image]).astype("float32")
        (found,) = compiled.run({"x": x}).values()
        if number == 0:  # onnxruntime refuses to reshape nothing to [0, -1]
            assert found.shape == (0, *one.shape[1:])
            continue
        (expected,) = session.run(None, {"x": x})
        assert found.shape == expected.shape == (number, *one.shape[1:])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_no_kernel_has_an_open_extent() -> None:
    compiled = tvm_ext.compile(conv_net(), input_shapes={"x": ["n", 3, 9, 7]})
    static = tvm_ext.compile(conv_net())
    statistics = [m.metadata["decisions"]["statistics"] for m in (compiled, static)]
    # The result is the only tensor whose size is not known; the rest is planned as for one image.
    assert statistics[0]["dynamic_allocations"] == 1
    assert statistics[0]["planned_bytes"] >= statistics[1]["planned_bytes"]


@pytest.mark.parametrize("make", [counting, numbering])
def test_models_that_do_more_with_the_number_of_images_are_refused(make: Any) -> None:
    with pytest.raises(InputError, match=r"dimension 'n' cannot stay open.*constant.*give --input-shape a number"):
        import_model(make(), input_shapes={"x": ["n", 4]})


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (["n", "m", 9, 7], "the model fixes dimension 1 to 3"),
        (["n+1", 3, 9, 7], r"'n\+1' names no dimension"),
        (["n", "n", 9, 7], "the model fixes dimension 1 to 3"),
        (["n", 3, 9], "has 3 dimensions, the model's input has 4"),
    ],
)
def test_shapes_that_do_not_fit(shape: list[int | str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        import_model(conv_net(), input_shapes={"x": shape})


def test_by_default_the_batch_is_one() -> None:
    assert import_model(conv_net()).inputs[0].shape == (1, 3, 9, 7)


def test_the_module_is_one_with_an_open_extent() -> None:
    imported = import_model(conv_net(), input_shapes={"x": ["images", 3, 9, 7]})
    assert [spec.shape for spec in imported.outputs] == [("images", 7)]
    assert isinstance(imported.mod["main"].params[0].ty.shape[0], tvm.tirx.Var)
    assert any("kept dimension 'images' of x open" in note for note in imported.notes)
