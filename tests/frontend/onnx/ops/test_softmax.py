"""Softmax before opset 13: the values of onnxruntime, without reshapes along the last axis, attentions found."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import tvm_ext
from tvm_ext.compiler import lower
from tvm_ext.frontend import import_model
from tvm_ext.options import PipelineOptions
from tvm_ext.target import resolve_target

SHAPES = [(7,), (3, 17), (2, 1, 33), (2, 3, 5, 1), (1, 3, 7, 31)]


def model(nodes: list[onnx.NodeProto], given: dict[str, tuple[int | str, ...]], opset: int) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in given.items()]
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "graph", values, [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("opset", [9, 11, 12, 13])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
def test_every_axis(operator: str, shape: tuple[int, ...], opset: int) -> None:
    value = np.random.default_rng(len(shape)).standard_normal(shape).astype("float32")
    value.flat[1] = np.inf if opset == 12 else 80
    for axis in range(-len(shape) if opset >= 11 else 0, len(shape)):
        made = model([helper.make_node(operator, ["x"], ["y"], axis=axis)], {"x": shape}, opset)
        (expected,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": value})
        imported = import_model(made)
        if axis % len(shape) == len(shape) - 1 > 0:
            assert "R.reshape" not in imported.mod["main"].script()
        found = tvm_ext.compile(imported).run({"x": value})["y"]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_an_open_extent() -> None:
    made = model([helper.make_node("Softmax", ["x"], ["y"], axis=2)], {"x": ("n", 3, 7)}, 11)
    compiled = tvm_ext.compile(made, input_shapes={"x": ["n", 3, 7]})
    for rows in (1, 5):
        value = np.random.default_rng(rows).standard_normal((rows, 3, 7)).astype("float32")
        shares = np.exp(value - value.max(-1, keepdims=True))
        found = compiled.run({"x": value})["y"]
        np.testing.assert_allclose(found, shares / shares.sum(-1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("opset", [11, 13])
def test_attentions_are_one_kernel(opset: int) -> None:
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["shares"], axis=3),
        helper.make_node("MatMul", ["shares", "v"], ["y"]),
    ]
    given = {"q": (1, 4, 33, 16), "k": (1, 4, 16, 33), "v": (1, 4, 33, 16)}
    made = model(nodes, given, opset)
    rng = np.random.default_rng(opset)
    values = {name: rng.standard_normal(shape).astype("float32") for name, shape in given.items()}
    compiled = tvm_ext.compile(made)
    (expected,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, values)
    np.testing.assert_allclose(compiled.run(values)["y"], expected, rtol=1e-4, atol=1e-5)
    statistics = lower(import_model(made).mod, resolve_target(None), PipelineOptions())[1]
    assert statistics is not None
    assert statistics.planned_bytes == 0
