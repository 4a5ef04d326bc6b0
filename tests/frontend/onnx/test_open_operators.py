"""Operators whose tensors have open extents, all but those that weights have, too, as onnxruntime has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tvm_ext

onnxruntime = pytest.importorskip("onnxruntime")

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype("float32")


def compiled(
    node: onnx.NodeProto, example: dict[str, np.ndarray], constants: dict[str, np.ndarray], opened: dict[str, str]
) -> tuple[onnx.ModelProto, tvm_ext.CompiledModel]:
    """Compile a node with the axes of its inputs open that have a name ("x": "b, ., n")."""
    inputs = []
    for name, value in example.items():
        names = opened[name].split(", ") if name in opened else ["."] * value.ndim
        shape = [extent if name == "." else name for name, extent in zip(names, value.shape, strict=True)]
        inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), shape))
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph([node], "g", inputs, outputs, weights)
    opsets = {"": 19, node.domain: {"": 19, "ai.onnx.ml": 3}.get(node.domain, 1)}
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*item) for item in opsets.items()], ir_version=10
    )
    return model, tvm_ext.compile(model, dynamic="*")


def checked(
    node: onnx.NodeProto, draws: list[dict[str, np.ndarray]], constants: dict[str, np.ndarray], opened: dict[str, str]
) -> None:
    """Compile a node once, and compare it with onnxruntime on each of the draws."""
    model, here = compiled(node, draws[0], constants, opened)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for given in draws:
        found = here.run(given)
        for name, expected in zip(node.output, session.run(None, given), strict=True):
            assert found[name].dtype == expected.dtype
            np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)


def contrib(name: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(name, inputs, outputs, domain="com.microsoft", **attributes)


@pytest.mark.parametrize("turned", [(0, 1), (1, 0), (1, 1)])
def test_fused_matmul(turned: tuple[int, int]) -> None:
    def draw(batch: int, rows: int) -> dict[str, np.ndarray]:
        return {
            "a": floats(batch, 3, *((5, rows) if turned[0] else (rows, 5))),
            "b": floats(batch, 3, *((7, 5) if turned[1] else (5, 7))),
        }

    node = contrib("FusedMatMul", ["a", "b"], ["y"], transA=turned[0], transB=turned[1], alpha=0.3)
    opened = {"a": "n, ., ., r" if turned[0] else "n, ., r, .", "b": "n, ., ., ."}
    checked(node, [draw(2, 4), draw(1, 1), draw(3, 9)], {}, opened)


@pytest.mark.parametrize("axis", [2, 3])
def test_bias_softmax(axis: int) -> None:
    """Onnxruntime has it for GPUs only."""
    node = contrib("BiasSoftmax", ["x", "bias"], ["y"], axis=axis, is_inner_broadcast=0)
    draws = [{"x": floats(b, 2, t, t), "bias": floats(b, 1, 1, t)} for b, t in ((2, 5), (1, 1), (3, 8))]
    _, here = compiled(node, draws[0], {}, {"x": "b, ., t, t", "bias": "b, ., ., t"})
    for given in draws:
        weights = np.exp(given["x"] + given["bias"])
        expected = weights / weights.sum(tuple(range(axis, 4)), keepdims=True)
        np.testing.assert_allclose(here.run(given)["y"], expected, rtol=1e-4, atol=1e-6)


def test_embeddings() -> None:
    tables = {"words": floats(11, 8), "places": floats(16, 8), "segments": floats(2, 8)}
    tables |= {"gamma": floats(8), "beta": floats(8)}
    node = contrib("EmbedLayerNormalization", ["ids", "types", *tables], ["y", "count"])
    draws = [
        {name: RANDOM.integers(0, limit, (b, t)).astype("int32") for name, limit in (("ids", 11), ("types", 2))}
        for b, t in ((2, 5), (1, 1), (3, 16))
    ]
    checked(node, draws, tables, {"ids": "b, t", "types": "b, t"})


def test_determinants() -> None:
    draws = [{"x": floats(b, 2, 3, 3)} for b in (2, 1, 5)]
    checked(helper.make_node("Det", ["x"], ["y"]), draws, {}, {"x": "b, ., ., ."})


@pytest.mark.parametrize("mask", [False, True])
def test_deformed_windows(mask: bool) -> None:
    def draw(batch: int, height: int, width: int) -> dict[str, np.ndarray]:
        given = {"x": floats(batch, 4, height, width), "moved": floats(batch, 18, height, width)}
        return given | ({"mask": floats(batch, 9, height, width)} if mask else {})

    weights = {"w": floats(6, 4, 3, 3), "bias": floats(6)}
    node = helper.make_node(
        "DeformConv", ["x", "w", "moved", "bias", *(["mask"] if mask else [])], ["y"], pads=[1, 1, 1, 1]
    )
    opened = {name: "b, ., h, w" for name in ("x", "moved", "mask")}
    checked(node, [draw(2, 5, 6), draw(1, 1, 1), draw(3, 9, 4)], weights, opened)


def test_padding_with_a_value_that_is_an_input() -> None:
    draws = [{"x": floats(b, 3), "value": np.array(value, "float32")} for b, value in ((2, 1.5), (1, -2.0), (4, 7.0))]
    node = helper.make_node("Pad", ["x", "by", "value"], ["y"])
    checked(node, draws, {"by": np.array([0, 2, 1, 1])}, {"x": "b, ."})


def test_columns_of_features() -> None:
    node = helper.make_node("ArrayFeatureExtractor", ["x", "columns"], ["y"], domain="ai.onnx.ml")
    checked(node, [{"x": floats(b, 6)} for b in (2, 1, 5)], {"columns": np.array([4, 0, 4])}, {"x": "b, ."})


def test_flags() -> None:
    draws = [{"x": np.where(floats(b, 4) > 0, np.inf, floats(b, 4)).astype("float32")} for b in (2, 1, 5)]
    node = helper.make_node("IsInf", ["x"], ["y"], detect_positive=0, detect_negative=0)
    checked(node, draws, {}, {"x": "b, ."})
    checked(helper.make_node("Dropout", ["x"], ["y", "kept"]), draws, {}, {"x": "b, ."})
