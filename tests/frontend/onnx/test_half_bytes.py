"""Tensors of 2 and 4 bits that a model makes and moves: as ONNX's own evaluator has them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tvm_ext
from tests.frontend.compiled import TARGET
from tvm_ext.errors import UnsupportedOperatorError

SHAPE = (5, 7)
DATA = np.linspace(-12, 12, 35, dtype="float32").reshape(SHAPE)[:, ::-1].copy()
LIMITS = {"INT4": (-8, 7), "UINT4": (0, 15), "INT2": (-2, 1), "UINT2": (0, 3)}
STEPS: dict[str, tuple[tuple[int, ...], dict[str, int]]] = {
    "tensor": ((), {}),
    "axis": ((5,), {"axis": -2}),
    "blocks": ((5, 3), {"axis": 1, "block_size": 3}),
}


def model(dtype: str, steps: str, point: int | None, returned: bool = False) -> onnx.ModelProto:
    """Quantise, move, and dequantise with other steps."""
    number, (shape, attributes) = getattr(TensorProto, dtype), STEPS[steps]
    scale = np.linspace(0.2, 0.6, int(np.prod(shape)), dtype="float32").reshape(shape)
    given = ["x", "scale"] + ([] if point is None else ["point"])
    typed = {"output_dtype": number} if point is None else {}
    nodes = [
        helper.make_node("QuantizeLinear", given, ["q"], **attributes, **typed),
        helper.make_node("Transpose", ["q"], ["t"], perm=[1, 0]),
        helper.make_node("Unsqueeze", ["t", "first"], ["u"]),
        helper.make_node("DequantizeLinear", ["u", "half"], ["y"]),
    ]
    constants = [
        helper.make_tensor("scale", TensorProto.FLOAT, scale.shape, scale.reshape(-1)),
        helper.make_tensor("half", TensorProto.FLOAT, (), [0.5]),
        helper.make_tensor("first", TensorProto.INT64, (1,), [0]),
    ]
    if point is not None:
        constants.append(helper.make_tensor("point", number, scale.shape, [point] * scale.size))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 7, 5))]
    if returned:
        outputs.append(helper.make_tensor_value_info("t", number, (7, 5)))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)]
    graph = helper.make_graph(nodes, "narrow", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize(
    ("dtype", "point"),
    [("INT4", -3), ("INT4", None), ("UINT4", 9), ("UINT4", None), ("INT2", 1), ("UINT2", None)],
)
def test_made_and_moved(dtype: str, point: int | None, steps: str) -> None:
    proto = model(dtype, steps, point)
    (expected,) = ReferenceEvaluator(proto).run(None, {"x": DATA})
    low, high = LIMITS[dtype]
    assert (expected.min(), expected.max()) == (low / 2, high / 2)  # data beyond both limits
    found = tvm_ext.compile(proto, TARGET).run({"x": DATA})
    np.testing.assert_array_equal(found["y"], expected)


def test_one_that_is_returned_is_refused() -> None:
    with pytest.raises(UnsupportedOperatorError, match=r"its output 't' is returned, and TVM has no tensors of int4"):
        tvm_ext.compile(model("INT4", "tensor", 0, returned=True), TARGET)
