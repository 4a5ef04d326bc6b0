"""Weights of unsigned bytes: what they are larger by than signed ones multiplies sums that all channels share."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

onnxruntime = pytest.importorskip("onnxruntime")

import tvm_ext  # noqa: E402
from tests.quantized.qdq_graphs import QdqGraph  # noqa: E402


class UnsignedGraph(QdqGraph):
    """Weights from 0 to 255, with a zero point near the middle."""

    def weight(self, shape: tuple[int, ...], *_arguments: Any) -> str:
        """Add quantised weights."""
        values = self.rng.integers(0, 256, shape).astype("uint8")
        scale, point = self.constant(np.float32(0.004)), self.constant(np.uint8(120))
        name = self.node("DequantizeLinear", self.constant(values), scale, point)
        self.scales[name] = np.float32(0.004)
        return name


@pytest.mark.parametrize("activations", ["uint8", "int8"])
@pytest.mark.parametrize(("channels", "group"), [(48, 1), (33, 1), (48, 48), (6, 2)])
def test_no_tensor_of_all_channels_beside_the_sums(activations: str, channels: int, group: int) -> None:
    graph = UnsignedGraph((1, 8, 9, 7), activations)
    first = graph.quantized(graph.conv(graph.quantized("x"), 8, channels))
    second = graph.quantized(graph.conv(first, channels, channels, group=group))
    model, inputs = graph.model(graph.quantized(graph.conv(second, channels, 5, 1))), graph.input()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, inputs)
    compiled = tvm_ext.compile(model)
    (found,) = compiled.run(inputs).values()
    step = np.diff(np.unique(expected)).min()
    assert np.abs(found - expected).max() < 1.01 * step  # sums are rounded once, products of floats several times
    assert (found != expected).mean() < 0.01
    names = re.findall(r"call +(\w+) +in:", compiled.executable.as_text())
    assert not [name for name in names if "multiply_to_blocked" in name]
