"""MatMulNBits against onnxruntime: bits, blocks, zero points, a reduction that fills no block, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.onnx.ops.harness import (
    import_with_converters,
    inputs_of,
    node_model,
    run_module,
    run_onnxruntime,
)
from tvm_ext.errors import UnsupportedOperatorError

pytest.importorskip("onnxruntime")


def values_of(reduction: int, columns: int, bits: int, size: int, zeros: bool = False) -> dict[str, np.ndarray]:
    random = np.random.default_rng(reduction)
    blocks = -(-reduction // size)
    values = {
        "A": random.standard_normal((2, 3, reduction)).astype("float32"),
        "B": random.integers(0, 256, (columns, blocks, size * bits // 8)).astype("uint8"),
        "scales": (random.random((columns, blocks)) * 0.1 + 0.01).astype("float32"),
    }
    if zeros:
        values["zero_points"] = random.integers(0, 256, (columns, -(-blocks * bits // 8))).astype("uint8")
    return values


def model_of(values: dict[str, np.ndarray], **attributes: int):
    constants = tuple(name for name in values if name != "A")
    return node_model("MatMulNBits", values, ["Y"], attributes, constants, "com.microsoft", output_types=[np.float32])


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    ("reduction", "columns", "bits", "size"),
    [(64, 7, 4, 32), (100, 5, 4, 32), (31, 3, 8, 32), (384, 9, 4, 128), (128, 1, 8, 64)],
)
def test_values(reduction: int, columns: int, bits: int, size: int, zeros: bool) -> None:
    values = values_of(reduction, columns, bits, size, zeros)
    model = model_of(values, K=reduction, N=columns, bits=bits, block_size=size)
    inputs = inputs_of(model, values)
    found = run_module(import_with_converters(model), list(inputs.values()))[0]
    expected = run_onnxruntime(model, inputs)[0]
    assert found.shape == expected.shape == (2, 3, columns)
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 3}, "weights of 3 bits"),
        ({"K": 65}, "input B is uint8"),
        ({"N": 8}, "input B is uint8"),
        ({"block_size": 0}, "block_size 0"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, int], message: str) -> None:
    attributes = {"K": 64, "N": 7, "bits": 4, "block_size": 32} | change
    with pytest.raises(UnsupportedOperatorError, match=message):
        import_with_converters(model_of(values_of(64, 7, 4, 32), **attributes))


@pytest.mark.parametrize(
    ("reduction", "bits", "size", "zeros"), [(33, 4, 16, False), (100, 4, 32, True), (64, 8, 16, True)]
)
def test_rows_whose_blocks_are_listed(reduction: int, bits: int, size: int, zeros: bool) -> None:
    values = values_of(reduction, 7, bits, size, zeros)
    blocks = values["scales"].shape[1]
    values["g_idx"] = np.random.default_rng(1).integers(0, blocks, reduction).astype("int32")
    model = model_of(values, K=reduction, N=7, bits=bits, block_size=size)
    if not zeros:
        model.graph.node[0].input.insert(3, "")
    found = run_module(import_with_converters(model), [values["A"]])[0]
    shifts = np.arange(0, 8, bits)

    def unpacked(packed: np.ndarray, count: int) -> np.ndarray:
        parts: np.ndarray = (packed.astype("int64").reshape(7, -1, 1) >> shifts) & (2**bits - 1)
        return parts.reshape(7, -1)[:, :count]

    order = values["g_idx"]
    points = unpacked(values["zero_points"], blocks)[:, order] if zeros else 2 ** (bits - 1)
    weights = (unpacked(values["B"], reduction) - points) * values["scales"].astype("float64")[:, order]
    np.testing.assert_allclose(found, values["A"] @ weights.T, atol=1e-5 * np.abs(weights).max() * reduction)
    if not zeros:  # onnxruntime takes no notice of zero points then, and knows 4 bits only
        expected = run_onnxruntime(model, {"A": values["A"]})[0]
        np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
