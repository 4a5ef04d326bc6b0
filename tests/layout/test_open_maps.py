"""One pixel that is spread over a map of open extents: kernels with rules, whether the batch is open or not."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_ext

GENERATOR = np.random.default_rng(0)
MAP = {"h": (8, 128), "w": (8, 128)}


def model(batch: int | str, channels: int, excites: bool) -> onnx.ModelProto:
    """A convolution, then squeeze and excitation; or the average of each channel taken off it."""
    shapes = {"stem": (channels, 3, 3, 3), "squeeze": (8, channels, 1, 1), "excite": (channels, 8, 1, 1)}
    nodes = [
        helper.make_node("Conv", ["x", "stem"], ["map"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["map"], ["mean"]),
    ]
    if excites:
        nodes += [
            helper.make_node("Conv", ["mean", "squeeze"], ["few"]),
            helper.make_node("Relu", ["few"], ["active"]),
            helper.make_node("Conv", ["active", "excite"], ["many"]),
            helper.make_node("HardSigmoid", ["many"], ["gate"]),
            helper.make_node("Mul", ["map", "gate"], ["y"]),
        ]
    else:
        nodes.append(helper.make_node("Sub", ["map", "mean"], ["y"]))
    weights = [
        numpy_helper.from_array(GENERATOR.standard_normal(shape).astype("float32"), name)
        for name, shape in shapes.items()
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, "h", "w"])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "graph", [given], [result], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("excites", [True, False], ids=["excites", "centres"])
@pytest.mark.parametrize("batch", [1, 2, "n"])
def test_spread_pixels(batch: int | str, excites: bool) -> None:
    made = model(batch, 24, excites)
    limits: dict[str, Any] = MAP | ({"n": (1, 4)} if batch == "n" else {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of kernels without tiles, and of rules that fail
        compiled = tvm_ext.compile(made, dynamic=limits)
    session = onnxruntime.InferenceSession(made.SerializeToString())
    for height, width in ((33, 50), (8, 9), (17, 127)):
        x = GENERATOR.standard_normal((2 if batch == "n" else int(batch), 3, height, width)).astype("float32")
        np.testing.assert_allclose(compiled.run({"x": x})["y"], session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-4)
