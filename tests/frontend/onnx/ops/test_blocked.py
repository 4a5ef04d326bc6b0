"""Quantisation in blocks against the onnx package's stored results and its definition."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.onnx.ops.harness import (
    check_stored,
    import_with_converters,
    node_model,
    run_module,
    stored_cases,
)
from tvm_ext.errors import ModelError

CASES = [
    case
    for case in stored_cases(["quantizelinear", "dequantizelinear"])
    if "blocked" in case.model_name or case.model_name in ("test_quantizelinear_axis", "test_dequantizelinear_axis")
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.model_name)
def test_stored_result(case):
    check_stored(case)
    check_stored(case, constants_after=1)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("zero_point", [False, True])
def test_last_block_may_be_short(axis, zero_point):
    random = np.random.default_rng(0)
    shape, size = (7, 9), 4
    blocks = list(shape)
    blocks[axis] = -(-shape[axis] // size)
    values = {
        "x": random.integers(-128, 128, shape).astype("int8"),
        "scale": random.random(blocks).astype("float32"),
        "zero_point": random.integers(-20, 20, blocks).astype("int8") if zero_point else None,
    }
    attributes = {"axis": axis, "block_size": size}
    model = node_model(
        "DequantizeLinear", values, ["y"], attributes, ("scale", "zero_point"), opset=21, output_types=[np.float32]
    )
    found = run_module(import_with_converters(model), [values["x"]])[0]

    def whole(parameter):
        return np.repeat(parameter, size, axis).take(range(shape[axis]), axis)

    levels = values["x"].astype("float32") - (whole(values["zero_point"]) if zero_point else 0)
    np.testing.assert_allclose(found, levels * whole(values["scale"]), rtol=1e-6)


def test_wrong_number_of_blocks_is_named():
    values = {"x": np.zeros((2, 8), "int8"), "scale": np.ones((2, 3), "float32")}
    model = node_model("DequantizeLinear", values, ["y"], {"axis": 1, "block_size": 4}, opset=21)
    with pytest.raises(ModelError, match=r"has shape \(2, 3\), \(2, 2\) was expected for blocks of 4"):
        import_with_converters(model)
