"""Scaling, linear models and encodings of ``ai.onnx.ml`` against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tvm_ext
from tests.frontend.onnx.ops.test_trees import OUTPUTS, ROWS
from tvm_ext.errors import ModelError, TvmExtError, UnsupportedOperatorError

ort = pytest.importorskip("onnxruntime")
FLOAT, INTEGER = TensorProto.FLOAT, TensorProto.INT64
HOLES = np.where(ROWS > 1, np.nan, ROWS).astype("float32")
WHOLE = np.random.default_rng(1).integers(-3, 4, (7, 5))
EMPTY = ROWS * (np.arange(33)[:, None] % 3 > 0)
WEIGHTS = [round(float(value), 2) for value in np.random.default_rng(2).standard_normal(15)]


def model_of(operator: str, attributes: dict[str, Any], outputs: dict[str, int], x: np.ndarray) -> Any:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], list(outputs), domain="ai.onnx.ml", **attributes)],
        "graph",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info(name, made, None) for name, made in outputs.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 4)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize(
    ("operator", "x", "attributes", "outputs"),
    [
        ("Scaler", ROWS, {"offset": [1.0, 2, 3, 4, 5], "scale": [0.5, 1, 2, 3, -1]}, {"y": FLOAT}),
        ("Scaler", WHOLE, {"offset": [1.0], "scale": [0.5]}, {"y": FLOAT}),
        ("Normalizer", EMPTY, {"norm": "L1"}, {"y": FLOAT}),
        ("Normalizer", EMPTY, {"norm": "L2"}, {"y": FLOAT}),
        ("Normalizer", np.abs(EMPTY), {"norm": "MAX"}, {"y": FLOAT}),
        ("Imputer", HOLES, {"imputed_value_floats": WEIGHTS[:5], "replaced_value_float": np.nan}, {"y": FLOAT}),
        ("Imputer", ROWS, {"imputed_value_floats": [9.0], "replaced_value_float": 0.5}, {"y": FLOAT}),
        ("Imputer", WHOLE, {"imputed_value_int64s": [9], "replaced_value_int64": 2}, {"y": INTEGER}),
        ("LinearRegressor", ROWS, {"coefficients": WEIGHTS[:5]}, {"y": FLOAT}),
        ("LinearRegressor", ROWS, {"coefficients": WEIGHTS, "intercepts": WEIGHTS[:3], "targets": 3}, {"y": FLOAT}),
        ("LabelEncoder", WHOLE, {"keys_int64s": [1, 2, 0], "values_floats": [0.5, 1.5, 2.5]}, {"y": FLOAT}),
        ("LabelEncoder", WHOLE, {"keys_int64s": [-3, 3], "values_int64s": [7, 8], "default_int64": 4}, {"y": INTEGER}),
        ("LabelEncoder", HOLES, {"keys_floats": [np.nan, 0.5], "values_int64s": [7, 8]}, {"y": INTEGER}),
        ("OneHotEncoder", WHOLE, {"cats_int64s": [-3, 0, 2]}, {"y": FLOAT}),
        ("OneHotEncoder", ROWS[:, :1], {"cats_int64s": [1, 0], "zeros": 1}, {"y": FLOAT}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_as_in_onnxruntime(operator: str, x: np.ndarray, attributes: dict[str, Any], outputs: dict[str, int]) -> None:
    model = model_of(operator, attributes, outputs, x)
    (wanted,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    (found,) = tvm_ext.compile(model, "native").run({"x": x}).values()
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("after", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_linear_classifiers(after: str) -> None:
    attributes = {"coefficients": WEIGHTS, "intercepts": WEIGHTS[:3], "classlabels_ints": [5, 1, 3]}
    model = model_of("LinearClassifier", attributes | {"post_transform": after}, OUTPUTS, ROWS)
    wanted = ort.InferenceSession(model.SerializeToString()).run(None, {"x": ROWS})
    for found, expected in zip(tvm_ext.compile(model, "native").run({"x": ROWS}).values(), wanted, strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_columns_of_several_inputs() -> None:
    inputs = {"a": ROWS[:7], "b": ROWS[7:14, :2]}
    graph = helper.make_graph(
        [helper.make_node("FeatureVectorizer", list(inputs), ["y"], domain="ai.onnx.ml", inputdimensions=[5, 2])],
        "graph",
        [helper.make_tensor_value_info("a", FLOAT, [7, 5]), helper.make_tensor_value_info("b", FLOAT, [7, 2])],
        [helper.make_tensor_value_info("y", FLOAT, [7, 7])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    (found,) = tvm_ext.compile(model, "native").run(inputs).values()
    np.testing.assert_array_equal(found, np.concatenate(list(inputs.values()), 1))


@pytest.mark.parametrize(
    ("operator", "attributes", "error", "message"),
    [
        ("LinearRegressor", {"coefficients": WEIGHTS[:4]}, TvmExtError, "4 coefficients for 1 targets and 5 columns"),
        (
            "LinearRegressor",
            {"coefficients": WEIGHTS[:5], "post_transform": "PROBIT"},
            UnsupportedOperatorError,
            "PROBIT",
        ),
        ("Imputer", {"replaced_value_float": 1.0}, TvmExtError, "no value to take the place of a missing float32"),
        ("Normalizer", {"norm": "L3"}, TvmExtError, "its norm is L3"),
        (
            "LabelEncoder",
            {"keys_floats": [1.0], "values_int64s": [1, 2]},
            ModelError,
            "number of values 2 must be the same",
        ),
    ],
)
def test_what_is_wrong_is_said(operator: str, attributes: dict[str, Any], error: type, message: str) -> None:
    outputs = {"y": INTEGER if operator == "LabelEncoder" else FLOAT}
    with pytest.raises(error, match=message):
        tvm_ext.compile(model_of(operator, attributes, outputs, ROWS), "native")
