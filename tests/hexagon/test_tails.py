"""What ends a model (softmax, sigmoid, pooling), bit by bit.

Functions of floats are those of the runtime's own sources, compiled for this machine; NumPy's float32 is around them.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

import tvm_ext
from tests.hexagon.emulated import TARGET, needs_emulator
from tests.hexagon.fixed_point_reference import run_fixed_point
from tests.quantized.qdq_graphs import QdqGraph
from tvm_ext.backends.hexagon import runtime

SOURCE = Path(runtime.__file__).with_name("math.c")


@pytest.fixture(autouse=True)
def _little_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_ext.backends.hexagon.packer.choice.EFFORT", 10)


@pytest.fixture(scope="module")
def exp(tmp_path_factory: pytest.TempPathFactory) -> np.ufunc:
    """The runtime's ``expf`` on this machine; Hexagon's instruction is a fused multiply-add."""
    compiler = shutil.which("clang-19") or shutil.which("clang") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs clang-19 (apt-get install clang-19)")
    library = tmp_path_factory.mktemp("math") / "math.so"
    own = "-D__builtin_HEXAGON_F2_sffma(c,a,b)=__builtin_fmaf(a,b,c)"
    command = [compiler, "-O1", "-ffp-contract=off", "-fPIC", "-shared", own, str(SOURCE), "-o", str(library), "-lm"]
    subprocess.run(command, check=True, capture_output=True)
    function = ctypes.CDLL(str(library)).expf
    function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float]
    return np.frompyfunc(function, 1, 1)


def logits(shape: tuple[int, ...], activations: str) -> tuple[QdqGraph, str]:
    graph = QdqGraph(shape, activations)
    return graph, graph.quantized(graph.conv(graph.quantized("x"), shape[1], 17, 1), scale=0.11)


def run(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> np.ndarray:
    (result,) = tvm_ext.compile(model, TARGET).run(inputs).values()
    return result


@needs_emulator
@pytest.mark.parametrize(("activations", "axis"), [("uint8", 1), ("int8", 3)])
def test_softmax(activations: str, axis: int, exp: np.ufunc) -> None:
    graph, value = logits((1, 3, 7, 5), activations)
    inputs = graph.input()
    (x,) = run_fixed_point(graph.model(value), inputs).values()
    shifted = exp(x - x.max(axis, keepdims=True)).astype(np.float32)
    total = np.zeros_like(shifted.take([0], axis))
    for part in np.moveaxis(shifted, axis, 0):  # one after another, as the kernel adds them
        total = total + np.expand_dims(part, axis)
    expected = shifted / total
    result = run(graph.model(graph.node("Softmax", value, axis=axis)), inputs)
    np.testing.assert_array_equal(result.view(np.uint32), expected.view(np.uint32))
    assert np.unique(expected).size > 10


@needs_emulator
def test_sigmoid(exp: np.ufunc) -> None:
    graph, value = logits((1, 3, 7, 5), "int8")
    inputs = graph.input()
    (x,) = run_fixed_point(graph.model(value), inputs).values()
    expected = np.float32(1) / (np.float32(1) + exp(-x).astype(np.float32))
    result = run(graph.model(graph.node("Sigmoid", value)), inputs)
    np.testing.assert_array_equal(result.view(np.uint32), expected.view(np.uint32))
    assert np.unique(expected).size > 10


def average_of_windows(value: np.ndarray, attributes: dict[str, list[int]]) -> np.ndarray:
    """Add float32 row by row, as the scalar core does, and divide by the taps, those outside the picture included."""
    top, left, bottom, right = attributes.get("pads", [0] * 4)
    padded = np.pad(value, [(0, 0), (0, 0), (top, bottom), (left, right)])
    down, across = attributes.get("strides", [1, 1])
    windows = np.lib.stride_tricks.sliding_window_view(padded, attributes["kernel_shape"], axis=(2, 3))
    windows = windows[:, :, ::down, ::across].reshape(*value.shape[:2], -1, windows[0, 0, 0, 0].size)
    total = np.zeros(windows.shape[:-1], np.float32)
    for tap in np.moveaxis(windows, -1, 0):
        total = total + tap
    rows = (padded.shape[2] - attributes["kernel_shape"][0]) // down + 1
    return (total / np.float32(windows.shape[-1])).reshape(*value.shape[:2], rows, -1)


@needs_emulator
@pytest.mark.parametrize(
    ("pool", "attributes"),
    [
        ("MaxPool", {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 0]}),
        ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
        ("AveragePool", {"kernel_shape": [2, 3], "strides": [2, 2]}),
        ("GlobalAveragePool", {}),
    ],
)
@pytest.mark.parametrize("quantized", [True, False])
def test_pooling(pool: str, attributes: dict[str, list[int]], quantized: bool) -> None:
    graph, value = logits((1, 3, 9, 31), "int8")
    inputs = graph.input()
    scale, point = 0.17, -3
    (x,) = run_fixed_point(graph.model(value), inputs).values()
    result = graph.node(pool, value, **attributes)
    model = graph.model(graph.quantized(result, scale, point) if quantized else result)
    if pool == "GlobalAveragePool" and not quantized:
        # One sum over the whole picture is not bound to an order: it is within the last bit of the exact average.
        exact = x.astype(np.float64).mean((2, 3), keepdims=True)
        np.testing.assert_allclose(run(model, inputs), exact, rtol=2e-7, atol=1e-8)
        return
    if pool == "AveragePool":
        # What leaves a model as floats is computed in floats; an average that is quantised is one of integers.
        expected = average_of_windows(x, attributes)
        if quantized:
            steps = np.clip(np.rint(expected / np.float32(scale)) + point, -128, 127)
            expected = (steps - point).astype(np.float32) * np.float32(scale)
    else:
        (expected,) = run_fixed_point(model, inputs).values()
    np.testing.assert_array_equal(run(model, inputs), expected)
    assert np.unique(expected).size > 3
