"""Integer convolutions whose batch, height or width are only known at run time, bit by bit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_ext
from tests.cpu import has
from tests.integer_reference import run_integers
from tests.quantized.qdq_graphs import QdqGraph

onnxruntime = pytest.importorskip("onnxruntime", reason="these tests compare with onnxruntime")

LEVELS: dict[str, Any] = {
    "native": None,
    "avx512": {"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2},
    "avx2": {"kind": "llvm", "mcpu": "haswell", "num-cores": 2},
    "sse4": {"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 2},
}
if not has("avx512bw"):
    del LEVELS["avx512"]
SIZES = ((1, 1, 1), (3, 7, 31), (17, 3, 1), (1, 33, 17), (1, 17, 127), (0, 7, 7))
OPEN = {"n": (0, None), "h": (1, None), "w": (1, None)}
CHANNELS = (1, 3, 5, 17, 33, 16, 64)

WINDOWS: tuple[tuple[int, dict[str, list[int]]], ...] = (
    (1, {}),
    (3, {}),
    (1, {"strides": [2, 3]}),
    (3, {"strides": [2, 1], "pads": [2, 1, 1, 2]}),
    (3, {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    (5, {"strides": [3, 2]}),
)
"""Extents of a filter, and what else the convolution has."""


def opened(model: onnx.ModelProto) -> onnx.ModelProto:
    """Leave batch, height and width of the input ``x`` open."""
    dims = model.graph.input[0].type.tensor_type.shape.dim
    for axis, name in ((0, "n"), (2, "h"), (3, "w")):
        dims[axis].Clear()
        dims[axis].dim_param = name
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    return model


def images(channels: int) -> list[dict[str, np.ndarray]]:
    """Draw inputs of all sizes."""
    rng = np.random.default_rng(channels)
    return [{"x": rng.standard_normal((n, channels, h, w)).astype("float32")} for n, h, w in SIZES]


def check(model: onnx.ModelProto, channels: int, target: Any = None) -> None:
    """Compare with the integer reference, two runs at a time."""
    compiled = tvm_ext.compile(opened(model), target, dynamic=OPEN)
    feeds = images(channels)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(compiled.run, feeds))
    for given, results in zip(feeds, found, strict=True):
        for name, wanted in run_integers(model, given).items():
            np.testing.assert_array_equal(results[name], wanted, err_msg=f"{name} {given['x'].shape}")


def test_padded_window() -> None:
    graph = QdqGraph((1, 17, 8, 8))
    check(graph.model(graph.quantized(graph.conv(graph.quantized("x", 0.02, 100), 17, 5))), 17)


@pytest.mark.slow
@pytest.mark.parametrize("target", LEVELS.values(), ids=LEVELS)
@pytest.mark.parametrize("channels", [3, 33])
def test_windows(channels: int, target: Any) -> None:
    graph = QdqGraph((1, channels, 8, 8), seed=channels)
    data = graph.quantized("x", 0.02, 100)
    results = [graph.quantized(graph.conv(data, channels, 17, size, **more)) for size, more in WINDOWS]
    check(graph.model(*results), channels, target)


@pytest.mark.slow
@pytest.mark.parametrize("target", LEVELS.values(), ids=LEVELS)
@pytest.mark.parametrize("channels", [5, 33])
def test_depthwise(channels: int, target: Any) -> None:
    graph = QdqGraph((1, channels, 8, 8), "int8", seed=channels)
    data = graph.quantized("x", 0.02, -3)
    results = [
        graph.quantized(graph.conv(data, channels, channels, size, group=channels, **more)) for size, more in WINDOWS
    ]
    check(graph.model(*results), channels, target)


@pytest.mark.slow
@pytest.mark.parametrize("activations", ["uint8", "int8"])
@pytest.mark.parametrize("outputs", CHANNELS)
def test_channels(outputs: int, activations: str) -> None:
    graph = QdqGraph((1, 5, 8, 8), activations, seed=outputs)
    first = graph.quantized(graph.node("Relu", graph.conv(graph.quantized("x"), 5, outputs)))
    second = graph.quantized(graph.conv(first, outputs, 9, 1, per_channel=False))
    check(graph.model(second, graph.quantized(graph.node("MaxPool", first, kernel_shape=[1, 1]))), 5)


@pytest.mark.slow
@pytest.mark.parametrize("zero_point", [9, -100])
def test_groups_and_zero_points(zero_point: int) -> None:
    """Weights with zero points near the middle, and so far from it that they are no signed bytes without them."""
    graph = QdqGraph((1, 16, 8, 8))
    data = graph.quantized("x", 0.03, 7)
    results = [
        graph.quantized(graph.conv(data, 16, 32, 3, zero_point=zero_point, group=groups)) for groups in (1, 2, 4)
    ]
    check(graph.model(*results), 16)


@pytest.mark.slow
def test_residual_block() -> None:
    graph = QdqGraph((1, 16, 8, 8))
    start = graph.quantized(graph.node("Relu", graph.conv(graph.quantized("x"), 16, 32, strides=[2, 2])))
    pooled = graph.node("MaxPool", start, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    inner = graph.quantized(graph.node("Relu", graph.conv(pooled, 32, 32, bias=False)))
    branch = graph.quantized(graph.conv(inner, 32, 32, 1))
    joined = graph.quantized(graph.node("Relu", graph.node("Add", branch, pooled)))
    model = graph.model(graph.quantized(graph.conv(joined, 32, 8, 1)))
    compiled = tvm_ext.compile(opened(model), dynamic=OPEN)
    for given in images(16):
        if given["x"].size:
            peer = onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)[0]
            (found,) = compiled.run(given).values()
            assert found.shape == peer.shape
            assert np.mean(found != peer) <= 0.01, given["x"].shape


def integer_model(point: tuple[int, ...], weights: str, channels: int, groups: int, **more: Any) -> onnx.ModelProto:
    """Make a ``ConvInteger`` whose zero point is an input, and one whose weights have zero points of their own."""
    rng = np.random.default_rng(channels)
    limits = np.iinfo(weights)
    outputs = 2 * channels if groups < channels else channels
    constants = {
        "w": rng.integers(limits.min, limits.max + 1, (outputs, channels // groups, 3, 3)).astype(weights),
        "wz": rng.integers(limits.min, limits.max + 1, ()).astype(weights),
        "four": np.array(4, "uint8"),
    }
    nodes = [
        helper.make_node("ConvInteger", ["x", "w", "z"], ["y"], group=groups, **more),
        helper.make_node("ConvInteger", ["x", "w", "four", "wz"], ["v"], group=groups, **more),
        helper.make_node("ConvInteger", ["x", "w", "z", "wz"], ["u"], group=groups, **more),
    ]
    graph = helper.make_graph(
        nodes,
        "integers",
        [
            helper.make_tensor_value_info("x", TensorProto.UINT8, ["n", channels, "h", "w"]),
            helper.make_tensor_value_info("z", TensorProto.UINT8, point),
        ],
        [helper.make_tensor_value_info(name, TensorProto.INT32, None) for name in "yvu"],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("point", "channels", "groups", "more"),
    [
        ((), 16, 1, {"pads": [1, 1, 1, 1]}),
        ((1,), 5, 1, {"pads": [2, 0, 1, 3], "strides": [2, 1]}),
        ((), 16, 16, {"pads": [1, 1, 1, 1]}),
        ((), 16, 4, {"pads": [2, 2, 2, 2], "dilations": [2, 2]}),
    ],
)
@pytest.mark.slow
def test_convolutions_in_int32(point: tuple[int, ...], channels: int, groups: int, more: dict[str, Any]) -> None:
    """What lies outside of an image is the zero point, whatever it is; sums of uint8 weights reach beyond int8."""
    model = integer_model(point, "uint8", channels, groups, **more)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    compiled = tvm_ext.compile(model, dynamic={"n": (0, None), "h": (3, None), "w": (3, None)})
    rng = np.random.default_rng(1)
    for n, h, w in ((1, 3, 3), (3, 7, 31), (1, 17, 127), (2, 33, 4), (0, 5, 5)):
        inputs = {"x": rng.integers(0, 256, (n, channels, h, w)).astype("uint8")}
        for zero in (0, 255, 77):
            inputs["z"] = np.full(point, zero, "uint8")
            found = compiled.run(inputs)
            if n:
                for name, wanted in zip("yvu", session.run(None, inputs), strict=True):
                    np.testing.assert_array_equal(found[name], wanted, err_msg=f"{name} {inputs['x'].shape} {zero}")
