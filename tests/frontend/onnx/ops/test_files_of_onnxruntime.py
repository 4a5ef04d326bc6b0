"""Files that onnxruntime's own tools write: dynamically and statically quantised, and graph-optimised."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cpu import RUNTIME_SATURATES
from tests.frontend.onnx.ops.harness import (
    import_with_converters,
    run_module,
    run_onnxruntime,
)

onnxruntime = pytest.importorskip("onnxruntime")
quantization = pytest.importorskip("onnxruntime.quantization")


def weight(*shape: int, seed: int = 0) -> np.ndarray:
    fan_in = int(np.prod(shape[1:])) or 1
    return (np.random.default_rng(seed).standard_normal(shape) / np.sqrt(fan_in)).astype("float32")


def model(nodes: list[onnx.NodeProto], shape: tuple[int, ...], weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    net = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return onnx.shape_inference.infer_shapes(net)


def perceptron() -> tuple[onnx.ModelProto, tuple[int, ...]]:
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], name="first"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "w2"], ["y"], name="second"),
    ]
    return model(nodes, (5, 33), {"w1": weight(33, 40), "w2": weight(40, 7, seed=1)}), (5, 33)


def convolutional() -> tuple[onnx.ModelProto, tuple[int, ...]]:
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["h"], name="first", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "w2"], ["s"], name="second", pads=[1, 1, 1, 1], group=8),
        helper.make_node("Add", ["s", "r"], ["t"], name="sum"),
        helper.make_node("GlobalAveragePool", ["t"], ["g"], name="pool"),
        helper.make_node("Flatten", ["g"], ["f"], name="flat"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], name="last", transB=1),
    ]
    weights = {
        "w1": weight(8, 3, 3, 3),
        "b1": weight(8),
        "w2": weight(8, 1, 3, 3, seed=1),
        "w3": weight(5, 8, seed=2),
        "b3": weight(5, seed=3),
    }
    return model(nodes, (1, 3, 17, 15), weights), (1, 3, 17, 15)


def recurrent() -> tuple[onnx.ModelProto, tuple[int, ...]]:
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r", "b"], ["s"], name="layer", hidden_size=12, direction="bidirectional"),
        helper.make_node("ReduceSum", ["s", "axes"], ["t"], name="directions", keepdims=0),
        helper.make_node("MatMul", ["t", "w2"], ["y"], name="last"),
    ]
    weights = {
        "w": weight(2, 48, 10),
        "r": weight(2, 48, 12, seed=1),
        "b": weight(2, 96, seed=2),
        "axes": np.array([1]),
        "w2": weight(12, 5, seed=3),
    }
    return model(nodes, (7, 1, 10), weights), (7, 1, 10)


def agree(net: onnx.ModelProto, shape: tuple[int, ...], expected_operators: set[str], tolerance: float) -> None:
    """Compare on random data, relative to the spread of the output."""
    found_operators = {node.op_type for node in net.graph.node}
    assert expected_operators <= found_operators
    x = np.random.default_rng(9).standard_normal(shape).astype("float32")
    found = run_module(import_with_converters(net), [x])[0]
    expected = run_onnxruntime(net, {"x": x})[0]
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * expected.std()


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    ("network", "operators"),
    [
        (perceptron, {"DynamicQuantizeLinear", "MatMulInteger"}),
        (convolutional, {"DynamicQuantizeLinear", "ConvInteger"}),
        (recurrent, {"DynamicQuantizeLSTM", "MatMulInteger"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_dynamically_quantised(network, operators, per_channel, tmp_path):
    net, shape = network()
    onnx.save(net, tmp_path / "float.onnx")
    # onnxruntime has no integer convolution with signed weights.
    kind = quantization.QuantType.QUInt8 if network is convolutional else quantization.QuantType.QInt8
    quantization.quantize_dynamic(
        tmp_path / "float.onnx",
        tmp_path / "int8.onnx",
        per_channel=per_channel,
        weight_type=kind,
        reduce_range=RUNTIME_SATURATES and kind is quantization.QuantType.QInt8,
    )
    # A rounding that falls the other way moves a value by one level of 256.
    agree(onnx.load(tmp_path / "int8.onnx"), shape, operators, tolerance=0.02)


class Calibration(quantization.CalibrationDataReader):
    """A few random inputs."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        random = np.random.default_rng(5)
        self.inputs: Iterator[dict[str, Any]] = iter(
            [{"x": random.standard_normal(shape).astype("float32")} for _ in range(4)]
        )

    def get_next(self) -> dict[str, Any] | None:
        return next(self.inputs, None)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    ("network", "operators"),
    [
        (perceptron, {"QLinearMatMul"}),
        (convolutional, {"QLinearConv", "QLinearAdd", "QLinearGlobalAveragePool", "QGemm"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_statically_quantised_operators(network, operators, per_channel, tmp_path):
    net, shape = network()
    onnx.save(net, tmp_path / "float.onnx")
    quantization.quantize_static(
        tmp_path / "float.onnx",
        tmp_path / "int8.onnx",
        Calibration(shape),
        quant_format=quantization.QuantFormat.QOperator,
        per_channel=per_channel,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        reduce_range=RUNTIME_SATURATES,
    )
    agree(onnx.load(tmp_path / "int8.onnx"), shape, operators, tolerance=0.1)


def optimised(net: onnx.ModelProto, path: Any) -> onnx.ModelProto:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(net.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(path)


def test_fused_convolutions(tmp_path):
    net, shape = convolutional()
    agree(optimised(net, tmp_path / "optimised.onnx"), shape, {"FusedConv"}, tolerance=1e-4)


def transformer_block(width: int, length: int) -> tuple[onnx.ModelProto, tuple[int, ...]]:
    """Post-norm block with a GELU written out, as exporters write it."""
    nodes = [
        helper.make_node("MatMul", ["x", "wa"], ["a"], name="attention"),
        helper.make_node("Add", ["a", "ba"], ["ab"], name="attention_bias"),
        helper.make_node("Add", ["ab", "x"], ["s1"], name="residual"),
        helper.make_node("LayerNormalization", ["s1", "g1", "b1"], ["n1"], name="norm1", axis=-1, epsilon=1e-5),
        helper.make_node("MatMul", ["n1", "wf"], ["f"], name="feed"),
        helper.make_node("Add", ["f", "bf"], ["fb"], name="feed_bias"),
        helper.make_node("Div", ["fb", "root"], ["d"], name="scale"),
        helper.make_node("Erf", ["d"], ["e"], name="erf"),
        helper.make_node("Add", ["e", "one"], ["e1"], name="shift"),
        helper.make_node("Mul", ["fb", "e1"], ["m"], name="gate"),
        helper.make_node("Mul", ["m", "half"], ["gelu"], name="halve"),
        helper.make_node("MatMul", ["gelu", "wo"], ["o"], name="out"),
        helper.make_node("Add", ["o", "bo"], ["ob"], name="out_bias"),
        helper.make_node("Add", ["ob", "n1"], ["s2"], name="residual2"),
        helper.make_node("LayerNormalization", ["s2", "g2", "b2"], ["y"], name="norm2", axis=-1, epsilon=1e-5),
    ]
    weights = {
        "wa": weight(width, width),
        "ba": weight(width),
        "wf": weight(width, 2 * width, seed=1),
        "bf": weight(2 * width, seed=2),
        "wo": weight(2 * width, width, seed=3),
        "bo": weight(width, seed=4),
        **{name: weight(width, seed=index) for index, name in enumerate(("g1", "b1", "g2", "b2"), 5)},
        "root": np.float32(np.sqrt(2)).reshape(()),
        "one": np.float32(1).reshape(()),
        "half": np.float32(0.5).reshape(()),
    }
    return model(nodes, (2, length, width), {name: np.asarray(value) for name, value in weights.items()}), (
        2,
        length,
        width,
    )


def test_fused_transformer_block(tmp_path):
    net, shape = transformer_block(16, 5)
    fused = optimised(net, tmp_path / "optimised.onnx")
    agree(fused, shape, {"SkipLayerNormalization", "Gelu"}, tolerance=1e-4)
