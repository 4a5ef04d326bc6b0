"""Convolutions with moved windows against onnxruntime, which has them for float32 and float64."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_ext
from tests.frontend.onnx.ops.harness import node_model, run_onnxruntime

pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("batch", "channels", "spread", "group", "size", "kernel"),
    [
        (1, 1, 1, 1, (7, 7), (3, 3)),
        (2, 6, 3, 2, (9, 17), (1, 3)),
        (1, 33, 1, 1, (5, 31), (3, 1)),
        (1, 4, 4, 1, (3, 33), (2, 2)),
        (3, 8, 2, 4, (1, 9), (1, 1)),
    ],
)
def test_windows_are_moved(
    batch: int,
    channels: int,
    spread: int,
    group: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    masked: bool,
) -> None:
    rng = np.random.default_rng(channels)
    strides, dilations, pads = (1, 2), (1, 1), (1, 0, 0, 1)
    rows, columns = ((size[at] + pads[at] + pads[at + 2] - kernel[at]) // strides[at] + 1 for at in (0, 1))
    count = kernel[0] * kernel[1]
    values = {
        "X": rng.standard_normal((batch, channels, *size)),
        "W": rng.standard_normal((2 * group, channels // group, *kernel)),
        "offset": rng.standard_normal((batch, 2 * spread * count, rows, columns)) * 3,  # some leave the picture
        "B": rng.standard_normal(2 * group),
        "mask": rng.standard_normal((batch, spread * count, rows, columns)) if masked else None,
    }
    inputs = {name: None if value is None else value.astype("float32") for name, value in values.items()}
    attributes = {"group": group, "offset_group": spread, "strides": strides, "dilations": dilations, "pads": pads}
    model = node_model("DeformConv", inputs, ["Y"], {**attributes, "kernel_shape": kernel}, opset=19)
    given = {name: value for name, value in inputs.items() if value is not None}
    (found,) = tvm_ext.compile(model).run(given).values()
    (expected,) = run_onnxruntime(model, given)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("offset", [np.inf, -np.inf, np.nan, 3e38, -3e9])
def test_places_beyond_any_picture_are_zero(offset: float) -> None:
    rng = np.random.default_rng(0)
    inputs = {
        "X": rng.standard_normal((1, 3, 6, 7)).astype("float32"),
        "W": rng.standard_normal((4, 3, 2, 2)).astype("float32"),
        "offset": rng.standard_normal((1, 8, 5, 6)).astype("float32"),
    }
    inputs["offset"][0, 1, 2, 3] = inputs["offset"][0, 4, 1, 1] = offset
    model = node_model("DeformConv", inputs, ["Y"], {"kernel_shape": (2, 2), "pads": (0, 0, 0, 0)}, opset=19)
    (found,) = tvm_ext.compile(model).run(inputs).values()
    (expected,) = run_onnxruntime(model, inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
