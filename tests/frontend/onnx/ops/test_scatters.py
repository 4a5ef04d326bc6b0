"""Scatters against onnxruntime, in versions that ONNX gives fewer reductions than exporters write."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.onnx.ops.harness import check_with_onnxruntime, node_model


@pytest.mark.parametrize("reduction", ["max", "min"])
@pytest.mark.parametrize(("operator", "index"), [("ScatterElements", [0, -1, 1]), ("ScatterND", [[0], [-1], [1]])])
def test_extremes_before_version_18(operator: str, index: list[object], reduction: str) -> None:
    inputs = {
        "data": np.array([0, 1, 2, 0], "float32"),
        "indices": np.array(index, "int64"),
        "updates": np.array([-1, 2, 3], "float32"),
    }
    model = node_model(operator, inputs, ["y"], {"reduction": reduction}, opset=16)
    check_with_onnxruntime(model, inputs)
