"""Elementwise operators and rearrangements against onnxruntime and the onnx package's stored results."""

from __future__ import annotations

import numpy as np
import pytest

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

CASES = {
    case.model_name: case
    for case in stored_cases(["pow", "isinf", "onehot", "eyelike", "spacetodepth", "reversesequence", "dropout"])
}
AS_THEY_ARE = [
    "test_isinf",
    "test_isinf_float16",
    "test_isinf_negative",
    "test_isinf_positive",
    "test_pow_bcast_array",
    "test_spacetodepth",
    "test_spacetodepth_crd_mode_example",
    "test_reversesequence_time",
    "test_reversesequence_batch",
    "test_dropout_default_mask",
]
WITH_CONSTANTS = [
    "test_eyelike_populate_off_main_diagonal",
    "test_eyelike_with_dtype",
    "test_onehot_negative_indices",
    "test_onehot_with_axis",
    "test_onehot_without_axis",
    "test_pow_types_float32_int64",
    "test_pow_types_int32_float32",
    "test_pow_types_int64_int64",
    "test_reversesequence_time",
    "test_training_dropout_zero_ratio_mask",
]


@pytest.mark.parametrize("name", AS_THEY_ARE)
def test_stored_result(name):
    check_stored(CASES[name])


@pytest.mark.parametrize("name", WITH_CONSTANTS)
def test_stored_result_with_constants(name):
    check_stored(CASES[name], constants_after=1)


def check(operator, values, attributes=None, outputs=("Y",), constants=(), **options):
    model = node_model(operator, values, outputs, attributes, constants, **options)
    return check_with_onnxruntime(model, values)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0, 3.0, -1.5])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1, 1)])
def test_constant_powers(exponent, shape):
    x = np.random.default_rng(0).random((3, 5)).astype("float32") + 0.1
    check("Pow", {"X": x, "Y": np.full(shape, exponent, "float32")}, constants=("Y",), outputs=("Z",))


@pytest.mark.parametrize("exponent", [2, 3])
def test_small_powers_are_products(exponent):
    x = np.zeros((2, 2), "float32")
    model = node_model("Pow", {"X": x, "Y": np.float32(exponent)}, ["Z"], constants=("Y",))
    assert "power" not in import_with_converters(model).script()


@pytest.mark.parametrize("operator", ["Elu", "Selu"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_exponential_units(operator, dtype):
    x = (np.random.default_rng(1).standard_normal((3, 33)) * 4).astype(dtype)
    model = node_model(operator, {"X": x}, ["Y"], {"alpha": 0.7})
    alpha, gamma = (0.7, 1.0) if operator == "Elu" else (0.7, 1.05070102214813232421875)
    wide = x.astype("float64")
    expected = gamma * np.where(wide > 0, wide, alpha * np.expm1(np.minimum(wide, 0)))
    found = run_module(import_with_converters(model), [x])[0]
    assert found.dtype == dtype
    np.testing.assert_allclose(
        found, expected, rtol=1e-2 if dtype == "float16" else 1e-5, atol=1e-2 if dtype == "float16" else 1e-6
    )


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("depth_shape", [(), (1,)])
@pytest.mark.parametrize("dtype", ["int64", "int32", "float32"])
def test_one_hot(axis, depth_shape, dtype):
    values = {
        "indices": np.array([[0, 2, -1], [4, 1, -5]]).astype(dtype),
        "depth": np.full(depth_shape, 5, "int64"),
        "values": np.array([-1.0, 3.0], "float32"),
    }
    model = node_model("OneHot", values, ["Y"], {"axis": axis}, ("depth", "values"), output_types=[np.float32])
    found = run_module(import_with_converters(model), [values["indices"]])[0]
    position = values["indices"].astype(int) % 5
    np.testing.assert_array_equal(found, np.moveaxis(np.eye(5)[position] * 4 - 1, -1, axis))


def test_one_hot_agrees_with_onnxruntime():
    values = {"indices": np.array([[0, 7], [-6, 1]]), "depth": np.int64(5), "values": np.array([0, 1], "float32")}
    check("OneHot", values, constants=("depth", "values"), output_types=[np.float32])


@pytest.mark.parametrize(("time", "batch"), [(0, 1), (1, 0)])
@pytest.mark.parametrize("rest", [(), (3,), (2, 2)])
@pytest.mark.parametrize("known", [False, True])
def test_reverse_sequence(time, batch, rest, known):
    x = np.random.default_rng(2).standard_normal(((7, 4) if time == 0 else (4, 7)) + rest).astype("float32")
    values = {"X": x, "lengths": np.array([7, 1, 4, 3])}
    constants = ("lengths",) if known else ()
    check("ReverseSequence", values, {"time_axis": time, "batch_axis": batch}, constants=constants)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_space_to_depth_undoes_depth_to_space(mode):
    x = np.random.default_rng(3).standard_normal((1, 8, 4, 6)).astype("float32")
    forward = node_model("SpaceToDepth", {"X": x}, ["Y"], {"blocksize": 2, "mode": mode}, opset=28)
    packed = run_module(import_with_converters(forward), [x])[0]
    backward = node_model("DepthToSpace", {"X": packed}, ["Y"], {"blocksize": 2, "mode": mode})
    np.testing.assert_array_equal(run_module(import_with_converters(backward), [packed])[0], x)


def test_training_is_refused():
    values = {"X": np.zeros((2, 3), "float32"), "ratio": np.float32(0.5), "training": np.array(True)}
    model = node_model("Dropout", values, ["Y"], constants=("ratio", "training"))
    with pytest.raises(UnsupportedOperatorError, match=r"dropout while training \(input training_mode\)"):
        import_with_converters(model)


@pytest.mark.parametrize(
    ("operator", "values", "attributes", "message"),
    [
        ("SpaceToDepth", {"X": np.zeros((1, 1, 3, 4), "float32")}, {"blocksize": 2}, "blocks of 2 do not divide"),
        ("EyeLike", {"X": np.zeros(3, "float32")}, {}, "2 dimensions were expected"),
        (
            "ReverseSequence",
            {"X": np.zeros((2, 2), "float32"), "l": np.array([1, 2])},
            {"time_axis": 1, "batch_axis": 1},
            "they have to be 0 and 1",
        ),
    ],
    ids=["SpaceToDepth", "EyeLike", "ReverseSequence"],
)
def test_broken_rules_are_named(operator, values, attributes, message):
    with pytest.raises(ModelError, match=message):
        import_with_converters(node_model(operator, values, ["Y"], attributes))
