"""What the tensor expressions mean, against numpy on unpacked data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.vta.scheduled_functions import run_on_cpu
from tvm_ext.backends.vta.codegen.compute import Epilogue, conv2d, matmul
from tvm_ext.backends.vta.codegen.layouts import bias_as_weights, pack_bias, pack_data, pack_weights, unpack_data
from tvm_ext.backends.vta.config import load_config
from tvm_ext.errors import VTAProgramError


def integers(rng: np.random.Generator, *shape: int) -> NDArray[np.int8]:
    return rng.integers(-128, 128, shape).astype(np.int8)


@settings(max_examples=5, deadline=None)
@given(st.data())
def test_conv2d(data: st.DataObject) -> None:
    draw = data.draw
    config = load_config(draw(st.sampled_from(["sim", "sim_2x16", "sim_4x8"])))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    kernel, (sy, sx) = draw(st.integers(1, 3)), draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    pad = draw(st.integers(0, kernel - 1))
    inputs, weights = (
        integers(rng, config.batch, 2 * config.block, 6, 5),
        integers(rng, 24, 2 * config.block, kernel, kernel),
    )
    epilogue = Epilogue(9, -100, 90, draw(st.sampled_from(["accumulators", "weights"])), rounding=256,
                        residual=True, first_shift=draw(st.integers(0, 9)), residual_repeats=3)  # fmt: skip
    bias = rng.integers(-9999, 9999, 24).astype(np.int32)
    wide = np.pad(inputs.astype(np.int64), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, (kernel, kernel), (2, 3))[:, :, ::sy, ::sx]
    total = np.einsum("nchwyx,ocyx->nohw", windows, weights.astype(np.int64)) + bias[:, None, None]
    residual = integers(rng, *total.shape)
    expected = ((total >> epilogue.first_shift) + 3 * 5 * residual.astype(np.int64) + 256) >> (9 - epilogue.first_shift)
    biases = bias_as_weights(bias, config) if epilogue.bias == "weights" else (pack_bias(bias, config),)
    packed = pack_weights(weights, config)
    func = conv2d(config, (1, 2, 6, 5), (len(packed), kernel, kernel), (sy, sx), pad, epilogue)
    identity = 5 * np.eye(config.block, dtype=np.int8)
    found = run_on_cpu(func, [pack_data(inputs, config), packed, *biases, pack_data(residual, config), identity])
    np.testing.assert_array_equal(unpack_data(found, total.shape), np.clip(expected, -100, 90))


def test_matmul() -> None:
    config, rng = load_config("sim_4x8"), np.random.default_rng(0)
    left, right = integers(rng, 12, 24), integers(rng, 40, 24)
    packed = pack_data(left.reshape(12, 24, 1, 1), config), pack_weights(right.reshape(40, 24, 1, 1), config)
    data, weights = packed[0].reshape(3, 3, 4, 8), packed[1].reshape(5, 3, 8, 8)
    found = run_on_cpu(matmul(config, 3, 3, 5, Epilogue(7)), [data, weights])
    expected = np.clip((left.astype(np.int64) @ right.T.astype(np.int64)) >> 7, -128, 127)
    np.testing.assert_array_equal(unpack_data(found.reshape(3, 5, 1, 1, 4, 8), (12, 40, 1, 1))[:, :, 0, 0], expected)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shift": 32}, "shift of an epilogue is 32; expected 0 to 31"),
        ({"shift": 3, "first_shift": 4}, "first_shift of an epilogue is 4; expected 0 to 3"),
        ({"residual_repeats": 0}, "residual_repeats of an epilogue is 0; expected 1 to"),
    ],
)
def test_epilogues_that_cannot_be(values: dict[str, int], message: str) -> None:
    with pytest.raises(VTAProgramError, match=message):
        Epilogue(**values)
