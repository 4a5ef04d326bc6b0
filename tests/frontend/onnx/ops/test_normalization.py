"""Normalisations against onnxruntime and the onnx package's stored results."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from tests.frontend.onnx.ops.harness import (
    check_stored,
    check_with_onnxruntime,
    import_with_converters,
    node_model,
    run_module,
    stored_cases,
)
from tvm_ext.errors import ModelError, UnsupportedOperatorError

pytest.importorskip("onnxruntime")

# Negative axes are the same axes again.
CASES = [
    case
    for case in stored_cases(["layernormalization", "rmsnormalization", "lpnormalization"])
    if "_expanded" not in case.model_name and "negative" not in case.model_name
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.model_name)
def test_stored_result(case):
    check_stored(case)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("bias", [False, True])
def test_layer_normalisation(axis, bias):
    shape = (3, 4, 5)
    rest = shape[axis:] if axis >= 0 else shape[-1:]
    values = {"X": draw(*shape), "scale": draw(*rest, seed=1), "B": draw(*rest, seed=2) if bias else None}
    model = node_model("LayerNormalization", values, ["Y"], {"axis": axis}, ("scale", "B"))
    check_with_onnxruntime(model, values)


def test_scale_that_broadcasts():
    values = {"X": draw(2, 3, 4), "scale": draw(4, seed=1), "B": draw(1, 4, seed=2)}
    model = node_model("LayerNormalization", values, ["Y"], {"axis": 1}, ("scale", "B"))
    found = run_module(import_with_converters(model), [values["X"]])[0]
    x = values["X"].astype("float64")
    expected = (x - x.mean((1, 2), keepdims=True)) / np.sqrt(x.var((1, 2), keepdims=True) + 1e-5)
    np.testing.assert_allclose(found, expected * values["scale"] + values["B"], rtol=1e-4, atol=1e-5)


def test_half_precision_is_normalised_in_single():
    """Squares of these overflow float16."""
    values = {"X": (draw(4, 64) * 300).astype("float16"), "scale": np.ones(64, "float16")}
    model = node_model("LayerNormalization", values, ["Y"], {"axis": -1}, ("scale",))
    found = run_module(import_with_converters(model), [values["X"]])[0]
    x = values["X"].astype("float64")
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("op_type", ["LayerNormalization", "RMSNormalization"])
def test_double_precision_throughout(op_type):
    values = {"X": draw(3, 7).astype("float64") + 1000, "scale": draw(7, seed=1).astype("float64")}
    opset = 23 if op_type == "RMSNormalization" else 17
    model = node_model(op_type, values, ["Y"], {"stash_type": TensorProto.DOUBLE}, ("scale",), opset=opset)
    found = run_module(import_with_converters(model), [values["X"]])[0]
    x = values["X"]
    centred = x - x.mean(-1, keepdims=True) if op_type == "LayerNormalization" else x
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * values["scale"]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("axes", [None, [0, 1, 2, 3], [-1]])
def test_mean_and_variance(axes, dtype):
    x = (draw(2, 3, 5, 7) + 100).astype(dtype)
    x[0, 0, 0] = 64  # nothing is left of equal elements
    model = node_model("MeanVarianceNormalization", {"X": x}, ["Y"], {} if axes is None else {"axes": axes}, opset=13)
    found = run_module(import_with_converters(model), [x])[0]
    over = tuple(axes or (0, 2, 3))
    centred = x.astype("float64") - x.mean(over, "float64", keepdims=True)
    expected = centred / (np.sqrt((centred**2).mean(over, keepdims=True)) + 1e-9)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=0, atol={"float16": 2e-3, "float32": 2e-4, "float64": 1e-9}[dtype])


@pytest.mark.parametrize("order", [1, 2])
def test_vector_of_zeros_stays_zero(order):
    x = draw(3, 4)
    x[1] = 0
    model = node_model("LpNormalization", {"X": x}, ["Y"], {"p": order, "axis": 1})
    check_with_onnxruntime(model, {"X": x})


def test_computed_scale_that_broadcasts_is_refused():
    values = {"X": draw(2, 3, 4), "scale": draw(4)}
    with pytest.raises(UnsupportedOperatorError, match=r"input scale has shape \(4,\), \(3, 4\) is supported"):
        import_with_converters(node_model("LayerNormalization", values, ["Y"], {"axis": 1}))


def test_unknown_norm_is_named():
    with pytest.raises(ModelError, match=r"attribute p is 3, 1 or 2 was expected"):
        import_with_converters(node_model("LpNormalization", {"X": draw(2, 2)}, ["Y"], {"p": 3}))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(2, 3, 7), (1, 5, 4, 3), (2, 1, 3, 1, 5)])
def test_instance_normalisation_is_one_operator(dtype, shape):
    values = {"X": draw(*shape).astype(dtype) * 30 + 100}
    values |= {name: draw(shape[1], seed=1).astype(dtype) for name in ("scale", "B")}
    module = import_with_converters(node_model("InstanceNormalization", values, ["Y"], {}, ("scale", "B")))
    assert module.script().count("R.nn.instance_norm") == (dtype != "float64")  # which TVM has none for
    found = run_module(module, [values["X"]])[0]
    x, axes = values["X"].astype("float64"), tuple(range(2, len(shape)))
    normal = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    scale, bias = (values[name].astype("float64").reshape(-1, *[1] * len(axes)) for name in ("scale", "B"))
    assert found.dtype == dtype
    tolerance = 2e-2 if dtype == "float16" else 1e-4
    np.testing.assert_allclose(found, normal * scale + bias, rtol=tolerance, atol=tolerance)


def test_instances_without_places():
    values = {"X": draw(2, 3), "scale": draw(3), "B": draw(3)}
    with pytest.raises(ModelError, match="input has 2 dimensions, a batch, channels and places were expected"):
        import_with_converters(node_model("InstanceNormalization", values, ["Y"], {}, ("scale", "B")))
