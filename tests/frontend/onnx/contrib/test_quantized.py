"""onnxruntime's operators on quantised tensors."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.onnx.ops.harness import (
    check_with_onnxruntime,
    import_with_converters,
    inputs_of,
    node_model,
    run_module,
    run_onnxruntime,
)
from tests.frontend.onnx.ops.test_integer import assert_close_integers, integers, weights
from tvm_ext.errors import ModelError

pytest.importorskip("onnxruntime")

DOMAIN = "com.microsoft"


def check(operator, values, attributes=None, dtype="uint8", dynamic=("X", "A", "B", "I0", "I1", "data", "condition")):
    constants = tuple(name for name in values if name not in dynamic)
    model = node_model(operator, values, ["Y"], attributes, constants, DOMAIN, output_types=[np.dtype(dtype)])
    inputs = inputs_of(model, values)
    found = run_module(import_with_converters(model), list(inputs.values()))[0]
    expected = run_onnxruntime(model, inputs)[0]
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert_close_integers(found, expected)


def quantised(random, name, dtype, *shape):
    return {
        name: integers(random, dtype, *shape),
        f"{name}_scale": np.float32(random.random() * 0.05 + 0.005),
        f"{name}_zero_point": integers(random, dtype),
    }


def output(random, dtype):
    return {"Y_scale": np.float32(0.03), "Y_zero_point": integers(random, dtype)}


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("shape", [(2, 7, 9), (1, 7, 1)], ids=["same shape", "broadcast"])
@pytest.mark.parametrize("operator", ["QLinearAdd", "QLinearMul"])
def test_binary(operator, shape, dtype):
    random = np.random.default_rng(0)
    values = quantised(random, "A", dtype, 2, 7, 9) | quantised(random, "B", dtype, *shape) | output(random, dtype)
    check(operator, values, dtype=dtype)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("QLinearSigmoid", {}),
        ("QLinearLeakyRelu", {"alpha": 0.2}),
        ("QLinearSoftmax", {"opset": 13, "axis": -1}),
        ("QLinearSoftmax", {"opset": 12, "axis": 1}),
        ("QLinearGlobalAveragePool", {"channels_last": 0}),
        ("QLinearGlobalAveragePool", {"channels_last": 1}),
        ("QLinearAveragePool", {"kernel_shape": [3, 2], "strides": [2, 1]}),
        ("QLinearAveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
        ("QLinearAveragePool", {"kernel_shape": [2, 2], "channels_last": 1}),
    ],
    ids=str,
)
def test_unary(operator, attributes, dtype):
    random = np.random.default_rng(1)
    values = quantised(random, "X", dtype, 2, 5, 7, 9) | output(random, dtype)
    if operator in ("QLinearSigmoid", "QLinearSoftmax"):
        values["Y_scale"] = np.float32(1 / 256)
    check(operator, values, attributes, dtype)


def test_concatenation_of_different_scales():
    random = np.random.default_rng(2)
    values = (
        output(random, "uint8") | quantised(random, "I0", "uint8", 2, 3, 5) | quantised(random, "I1", "uint8", 2, 4, 5)
    )
    check("QLinearConcat", values, {"axis": 1})


def test_where():
    random = np.random.default_rng(3)
    values = {"condition": random.random((4, 9)) > 0.5}
    values |= quantised(random, "X", "uint8", 4, 9) | quantised(random, "B", "uint8", 1, 9)
    check("QLinearWhere", values | output(random, "uint8"))


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("per_column", [False, True])
def test_gemm_to_integers(transposed, per_column):
    random = np.random.default_rng(4)
    values = quantised(random, "A", "uint8", 5, 33)
    values["b"] = weights(random, "int8", *((9, 33) if transposed else (33, 9)))
    values["b_scale"] = (random.random((9,) if per_column else ()) * 0.01 + 0.001).astype("float32")
    values["b_zero_point"] = np.zeros((9,) if per_column else (), "int8")
    values["C"] = random.integers(-900, 900, 9).astype("int32")
    check("QGemm", values | output(random, "uint8"), {"transB": transposed, "alpha": 0.5})


def test_gemm_to_floats():
    random = np.random.default_rng(5)
    values = quantised(random, "A", "uint8", 5, 33)
    values |= {"b": weights(random, "int8", 33, 9), "b_scale": np.float32(0.01), "b_zero_point": np.int8(0)}
    values["C"] = random.integers(-900, 900, 9).astype("int32")
    constants = tuple(name for name in values if name != "A")
    model = node_model("QGemm", values, ["Y"], {}, constants, DOMAIN, output_types=[np.float32])
    check_with_onnxruntime(model, values)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("points", ["none", "packed", "float"])
@pytest.mark.parametrize("depth", [64, 50])
def test_product_with_packed_weights(bits, points, depth):
    """The runtime has no kernel for every width, so the weights are unpacked here by the operator's definition."""
    random = np.random.default_rng(6)
    columns, size = 5, 16
    blocks = -(-depth // size)
    levels = random.integers(0, 2**bits, (columns, blocks, size))
    scales = (random.random(columns * blocks) * 0.1).astype("float32")

    def pack(values):
        per_byte = 8 // bits
        values = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -values.shape[-1] % per_byte)])
        groups = values.reshape(*values.shape[:-1], -1, per_byte)
        return (groups << (np.arange(per_byte) * bits)).sum(-1).astype("uint8")

    middle = np.full((columns, blocks), 2.0 ** (bits - 1))
    stored = None
    if points == "packed":
        whole = random.integers(0, 2**bits, (columns, blocks))
        middle, stored = whole, pack(whole).reshape(-1)
    elif points == "float":
        middle = random.random((columns, blocks)).astype("float32")
        stored = middle.reshape(-1)
    values = {
        "A": random.standard_normal((3, depth)).astype("float32"),
        "B": pack(levels),
        "scales": scales,
        "zero_points": stored,
    }
    weights = ((levels - middle[..., None]) * scales.reshape(columns, blocks, 1)).reshape(columns, -1)[:, :depth]
    attributes = {"K": depth, "N": columns, "bits": bits, "block_size": size}
    model = node_model("MatMulNBits", values, ["Y"], attributes, ("B", "scales", "zero_points"), DOMAIN)
    found = run_module(import_with_converters(model), [values["A"]])[0]
    np.testing.assert_allclose(found, values["A"] @ weights.T, rtol=1e-4, atol=1e-4)
    if bits == 4 and points != "float":
        np.testing.assert_allclose(run_onnxruntime(model, {"A": values["A"]})[0], found, rtol=1e-4, atol=1e-4)


def test_incomplete_concatenation_is_named():
    random = np.random.default_rng(7)
    values = output(random, "uint8") | {"I0": integers(random, "uint8", 2, 2), "I0_scale": np.float32(1)}
    with pytest.raises(ModelError, match=r"4 inputs, scale and zero point and then groups of three were expected"):
        import_with_converters(node_model("QLinearConcat", values, ["Y"], {"axis": 1}, domain=DOMAIN))
