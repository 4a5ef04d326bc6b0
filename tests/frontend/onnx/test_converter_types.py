"""Shapes that a model computes behind operators of other domains than ONNX's are folded like all others."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tvm_ext
from tvm_ext.errors import UnsupportedOperatorError
from tvm_ext.frontend.onnx.converter_types import converter_types
from tvm_ext.frontend.onnx.values import Value, constant_value, element_type, known_shape
from tvm_ext.verify import compare_outputs, onnxruntime_outputs

MICROSOFT = "com.microsoft"


def flattened_after(node: onnx.NodeProto, shape: tuple[int, ...], **weights: np.ndarray) -> onnx.ModelProto:
    """The node's output, its first two axes made one by a shape that the graph computes, as exporters write it."""
    nodes = [
        node,
        helper.make_node("Shape", ["h"], ["s"]),
        *(helper.make_node("Gather", ["s", f"i{axis}"], [f"d{axis}"]) for axis in range(3)),
        helper.make_node("Mul", ["d0", "d1"], ["rows"]),
        helper.make_node("Unsqueeze", ["rows", "axes"], ["rows1"]),
        helper.make_node("Unsqueeze", ["d2", "axes"], ["columns1"]),
        helper.make_node("Concat", ["rows1", "columns1"], ["to"], axis=0),
        helper.make_node("Reshape", ["h", "to"], ["y"]),
    ]
    numbers = {f"i{axis}": np.array(axis) for axis in range(3)} | {"axes": np.array([0])}
    graph = helper.make_graph(
        nodes,
        "flattened",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [None, None])],
        [numpy_helper.from_array(array, name) for name, array in (numbers | weights).items()],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13), helper.make_opsetid(MICROSOFT, 1)], ir_version=8
    )


@pytest.mark.parametrize("operator", ["FusedMatMul", "QuickGelu"])
def test_shapes_computed_behind_operators_that_onnx_does_not_define(operator: str) -> None:
    generator = np.random.default_rng(0)
    weights = {"w": generator.standard_normal((31, 7)).astype("float32")} if operator == "FusedMatMul" else {}
    node = helper.make_node(operator, ["x", *weights], ["h"], domain=MICROSOFT)
    if weights:
        node.attribute.append(helper.make_attribute("transB", 1))
    model = flattened_after(node, (3, 17, 7), **weights)
    compiled = tvm_ext.compile(model)
    columns = 31 if weights else 7
    assert compiled.outputs[0].shape == (51, columns)
    inputs = {"x": generator.standard_normal((3, 17, 7)).astype("float32")}
    differences = compare_outputs(compiled.run(inputs), onnxruntime_outputs(model, inputs))
    assert max(difference.relative for difference in differences) < 1e-5


def test_the_outputs_of_a_quantised_lstm_have_types() -> None:
    hidden, size, steps, batch = 5, 3, 4, 2
    weights = np.zeros((1, size, 4 * hidden), "uint8"), np.zeros((1, hidden, 4 * hidden), "uint8")
    arrays = [*weights, np.zeros((1, 8 * hidden), "float32")]
    scales = [np.ones(1, "float32"), np.zeros(1, "uint8")] * 2
    node = helper.make_node(
        "DynamicQuantizeLSTM",
        ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"],
        ["y", "y_h", "y_c"],
        domain=MICROSOFT,
        hidden_size=hidden,
    )
    x = Value("x", helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [steps, batch, size]))
    constants = [constant_value(f"c{number}", array) for number, array in enumerate((*arrays, *scales))]
    found = converter_types(node, [x, *constants[:3], *[None] * 4, *constants[3:]], 1)
    state = (1, batch, hidden)
    assert [known_shape(item) for item in found] == [(steps, 1, batch, hidden), state, state]
    assert all(item is not None and element_type(item) == onnx.TensorProto.FLOAT for item in found)


def test_nothing_is_said_of_what_cannot_be_converted() -> None:
    x = Value("x", helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2, 3, 4]))
    unsupported = helper.make_node("Inverse", ["x"], ["h"], domain=MICROSOFT)
    assert converter_types(unsupported, [x], 1) == [None]
    gelu = helper.make_node("QuickGelu", ["x"], ["h"], domain=MICROSOFT)
    assert converter_types(gelu, [Value("x")], 1) == [None]
    with pytest.raises(UnsupportedOperatorError, match="Inverse node"):
        tvm_ext.compile(flattened_after(unsupported, (2, 3, 4)))
