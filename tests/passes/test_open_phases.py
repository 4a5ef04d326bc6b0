"""Transposed convolutions over open extents as ordinary ones, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm

import tvm_ext
from tvm_ext.passes.open_phases import open_phases

RNG = np.random.default_rng(3)


def transposed(kernel: tuple[int, ...], **attributes: object) -> onnx.ModelProto:
    rank, value = len(kernel), onnx.helper.make_tensor_value_info
    weight = RNG.standard_normal((5, 3, *kernel)).astype("float32")
    node = onnx.helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attributes)
    inside, outside = ["n", 5, *"hw"[:rank]], ["n", 3, *"pq"[:rank]]
    graph = onnx.helper.make_graph(
        [node], "g", [value("x", 1, inside)], [value("y", 1, outside)], [onnx.numpy_helper.from_array(weight, "w")]
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)


@pytest.mark.parametrize(
    ("kernel", "attributes"),
    [
        ((4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((3, 5), {"strides": [2, 3], "pads": [1, 0, 2, 1], "output_padding": [1, 1]}),
        ((3, 2), {"strides": [1, 2]}),
        ((16,), {"strides": [5], "pads": [4, 3]}),
    ],
)
def test_phases(kernel: tuple[int, ...], attributes: dict[str, list[int]]) -> None:
    model = transposed(kernel, **attributes)
    mod = open_phases()(tvm_ext.import_model(model, dynamic="*").mod)
    assert "d_transpose" not in mod.script()
    compiled = tvm_ext.compile(model, dynamic="*")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for size in ((1, 3, 2), (2, 7, 17), (3, 33, 4)):
        x = RNG.standard_normal((size[0], 5, *size[1 : 1 + len(kernel)])).astype("float32")
        (expected,) = session.run(None, {"x": x})
        np.testing.assert_allclose(compiled.run({"x": x})["y"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kernel", "attributes"),
    [((2, 2), {"strides": [2, 2]}), ((3, 3), {"strides": [1, 1]}), ((3, 3), {"strides": [2, 2], "dilations": [2, 1]})],
)
def test_what_is_left_alone(kernel: tuple[int, ...], attributes: dict[str, list[int]]) -> None:
    mod = tvm_ext.import_model(transposed(kernel, **attributes), dynamic="*").mod
    tvm.ir.assert_structural_equal(open_phases()(mod), mod)


def test_known_extents_are_left_alone() -> None:
    mod = tvm_ext.import_model(transposed((4, 4), strides=[2, 2]), input_shapes={"x": (2, 5, 3, 7)}).mod
    tvm.ir.assert_structural_equal(open_phases()(mod), mod)
