"""Fused operators against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.onnx.ops.harness import check_with_onnxruntime, import_with_converters, node_model, run_module
from tvm_ext.errors import UnsupportedOperatorError

pytest.importorskip("onnxruntime")

DOMAIN = "com.microsoft"


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def check(operator, values, attributes=None, outputs=("Y",), constants=(), domain=DOMAIN, **tolerance):
    model = node_model(operator, values, outputs, attributes, constants, domain)
    return check_with_onnxruntime(model, values, **{"atol": 1e-5, **tolerance})


@pytest.mark.parametrize("operator", ["FusedMatMul", "TransposeMatMul"])
@pytest.mark.parametrize("left", [0, 1])
@pytest.mark.parametrize("right", [0, 1])
def test_matmul(operator, left, right):
    values = {"A": draw(2, 9, 7) if left else draw(2, 7, 9), "B": draw(2, 5, 9) if right else draw(2, 9, 5)}
    check(operator, values, {"transA": left, "transB": right, "alpha": 0.25})


@pytest.mark.parametrize("transposed", [0, 1])
def test_matmul_with_the_batch_inside(transposed):
    values = {"A": draw(7, 2, 9), "B": draw(2, 9, 5)}
    if transposed:
        values = {"A": draw(9, 2, 7), "B": draw(2, 9, 5)}
    check("FusedMatMul", values, {"transBatchA": 1, "transA": transposed})


@pytest.mark.parametrize("operator", ["Gelu", "QuickGelu", "FastGelu"])
def test_activation(operator):
    check(operator, {"X": draw(3, 33) * 3}, atol=1e-4)


@pytest.mark.parametrize("operator", ["BiasGelu", "FastGelu", "BiasSplitGelu"])
def test_biased_activation(operator):
    values = {"X": draw(2, 3, 34), "bias": draw(34, seed=1)}
    if operator == "BiasSplitGelu":  # the runtime has it on GPUs only
        from math import erf

        model = node_model(operator, values, ["Y"], domain=DOMAIN)
        left, right = np.split(values["X"] + values["bias"], 2, -1)
        expected = left * right * 0.5 * (1 + np.vectorize(erf)(right / np.sqrt(2)))
        found = run_module(import_with_converters(model), list(values.values()))[0]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    else:
        check(operator, values, atol=1e-4)


def test_bias_add():
    values = {"X": draw(2, 3, 8), "bias": draw(8, seed=1), "skip": draw(2, 3, 8, seed=2)}
    found = run_module(
        import_with_converters(node_model("BiasAdd", values, ["Y"], domain=DOMAIN)), list(values.values())
    )
    np.testing.assert_allclose(found[0], values["X"] + values["bias"] + values["skip"], rtol=1e-6)


def test_bias_softmax():
    values = {"data": draw(2, 3, 4, 5), "bias": draw(2, 1, 1, 5, seed=1)}
    model = node_model("BiasSoftmax", values, ["Y"], {"axis": 3, "is_inner_broadcast": 1}, domain=DOMAIN)
    found = run_module(import_with_converters(model), list(values.values()))[0]
    power = np.exp(values["data"] + values["bias"])
    np.testing.assert_allclose(found, power / power.sum(-1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(
    ("activation", "parameters"),
    [
        ("Relu", []),
        ("Tanh", []),
        ("Sigmoid", []),
        ("LeakyRelu", [0.2]),
        ("Clip", [-0.5, 0.7]),
        ("HardSigmoid", [0.3, 0.4]),
    ],
)
def test_convolution_with_activation(activation, parameters):
    values = {"X": draw(1, 3, 9, 7), "W": draw(4, 3, 3, 3, seed=1) * 0.2, "B": draw(4, seed=2)}
    attributes = {"activation": activation, "pads": [1, 1, 1, 1]}
    attributes |= {"activation_params": parameters} if parameters else {}
    check("FusedConv", values, attributes, constants=("W", "B"))


def test_convolution_with_sum():
    values = {"X": draw(1, 3, 9, 7), "W": draw(4, 3, 3, 3, seed=1), "B": None, "Z": draw(1, 4, 9, 7, seed=2)}
    check("FusedConv", values, {"activation": "Relu", "pads": [1, 1, 1, 1]}, atol=1e-4)


@pytest.mark.parametrize(("activation", "alpha"), [("Relu", None), ("LeakyRelu", 0.1), ("Tanh", None)])
def test_gemm_with_activation(activation, alpha):
    values = {"A": draw(5, 9), "B": draw(7, 9, seed=1), "C": draw(7, seed=2)}
    attributes = {"activation": activation, "transB": 1, "alpha": 0.5, "beta": 2.0}
    attributes |= {} if alpha is None else {"activation_alpha": alpha}
    check("FusedGemm", values, attributes)


@pytest.mark.parametrize("beta", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_layer_normalisation_of_a_residual(beta, bias):
    values = {
        "input": draw(2, 5, 16),
        "skip": draw(2, 5, 16, seed=1),
        "gamma": draw(16, seed=2),
        "beta": draw(16, seed=3) if beta else None,
        "bias": draw(16, seed=4) if bias else None,
    }
    constants = ("gamma", "beta", "bias")
    check("SkipLayerNormalization", values, {"epsilon": 1e-5}, ["Y", "", "", "sum"], constants, atol=1e-4)


@pytest.mark.parametrize("bias", [False, True])
def test_root_mean_square_normalisation_of_a_residual(bias):
    values = {"input": draw(2, 5, 16), "skip": draw(2, 5, 16, seed=1), "gamma": draw(16, seed=2)}
    values["bias"] = draw(16, seed=4) if bias else None
    check("SkipSimplifiedLayerNormalization", values, {"epsilon": 1e-5}, ["Y", "", "", "sum"], ("gamma",), atol=1e-4)


def test_root_mean_square_normalisation():
    values = {"X": draw(2, 5, 16), "scale": draw(16, seed=2)}
    check("SimplifiedLayerNormalization", values, {"axis": -1, "epsilon": 1e-5}, domain="", atol=1e-4)


def test_root_mean_square_normalisation_of_several_axes_is_refused():
    values = {"X": draw(2, 5, 16), "scale": draw(5, 16, seed=2)}
    model = node_model("SimplifiedLayerNormalization", values, ["Y"], {"axis": 1})
    with pytest.raises(UnsupportedOperatorError, match=r"attribute axis is 1, only the last axis is supported"):
        import_with_converters(model)


@pytest.mark.parametrize("optional", [False, True])
def test_embedding(optional):
    random = np.random.default_rng(0)
    values = {
        "input_ids": random.integers(0, 11, (2, 5)).astype("int32"),
        "segment_ids": random.integers(0, 2, (2, 5)).astype("int32") if optional else None,
        "word_embedding": draw(11, 16),
        "position_embedding": draw(9, 16, seed=1),
        "segment_embedding": draw(2, 16, seed=2) if optional else None,
        "gamma": draw(16, seed=3),
        "beta": draw(16, seed=4),
        "mask": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], "int32") if optional else None,
    }
    constants = tuple(name for name in values if name not in ("input_ids", "segment_ids", "mask"))
    model = node_model(
        "EmbedLayerNormalization",
        values,
        ["Y", "count", "sum"],
        {"epsilon": 1e-5},
        constants,
        DOMAIN,
        output_types=[np.float32, np.int32, np.float32],
    )
    check_with_onnxruntime(model, values, atol=1e-4)


@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("activation", [0, 1])
def test_group_normalisation(channels_last, activation):
    """The runtime has it on GPUs only; the reference is its definition."""
    x = draw(2, 5, 7, 8) if channels_last else draw(2, 8, 5, 7)
    values = {"X": x, "gamma": draw(8, seed=1), "beta": draw(8, seed=2)}
    attributes = {"groups": 4, "channels_last": channels_last, "activation": activation, "epsilon": 1e-5}
    model = node_model("GroupNorm", values, ["Y"], attributes, domain=DOMAIN)
    first = np.moveaxis(x, -1, 1) if channels_last else x
    groups = first.reshape(2, 4, -1)
    groups = (groups - groups.mean(-1, keepdims=True)) / np.sqrt(groups.var(-1, keepdims=True) + 1e-5)
    expected = groups.reshape(first.shape) * values["gamma"][:, None, None] + values["beta"][:, None, None]
    expected = expected / (1 + np.exp(-expected)) if activation else expected
    expected = np.moveaxis(expected, 1, -1) if channels_last else expected
    found = run_module(import_with_converters(model), list(values.values()))[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_unknown_activation_is_refused():
    values = {"X": draw(1, 3, 5, 5), "W": draw(4, 3, 3, 3)}
    model = node_model("FusedConv", values, ["Y"], {"activation": "Selu"}, domain=DOMAIN)
    with pytest.raises(UnsupportedOperatorError, match=r"activation 'Selu' with 0 parameters is not supported"):
        import_with_converters(model)
