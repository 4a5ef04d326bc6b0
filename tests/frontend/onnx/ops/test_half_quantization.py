"""Quantisation of halves: limits and differences of 16-bit integers are none."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_ext

SCALE = np.float16(0.5)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("where", ["lowest", "middle", "highest"])
@pytest.mark.parametrize("axis", [None, 1])
def test_limits_and_zero_points(dtype: str, where: str, axis: int | None) -> None:
    limits = np.iinfo(dtype)
    point = {"lowest": limits.min, "middle": (limits.min + limits.max) // 2, "highest": limits.max}[where]
    extent = () if axis is None else (8,)
    scale, points = np.full(extent, SCALE), np.full(extent, point, dtype)
    attributes = {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "point"], ["q"], **attributes),
        helper.make_node("DequantizeLinear", ["q", "scale", "point"], ["y"], **attributes),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [3, 8])],
        [
            helper.make_tensor_value_info("q", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [3, 8]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT16, [3, 8]),
        ],
        [numpy_helper.from_array(scale, "scale"), numpy_helper.from_array(points, "point")],
    )
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = (np.random.default_rng(0).standard_normal((3, 8)) * 1e4).astype("float16")
    x[0, :4] = 6e4, -6e4, 0.3, -0.3
    found = tvm_ext.compile(model).run({"x": x})
    levels = np.clip(np.rint(x.astype("float64") / float(SCALE)) + point, limits.min, limits.max)
    np.testing.assert_array_equal(found["q"], levels.astype(dtype))
    np.testing.assert_array_equal(found["y"], ((levels - point) * float(SCALE)).astype("float16"))
