from __future__ import annotations

import numpy as np
import pytest

from tvm_ext.backends.vta.codegen.layouts import bias_as_weights, pack_bias, pack_data, pack_weights, unpack_data
from tvm_ext.backends.vta.config import load_config
from tvm_ext.errors import InputError


@pytest.mark.parametrize("name", ["sim", "sim_2x16", "sim_4x8"])
def test_where_values_go(name: str) -> None:
    config = load_config(name)
    batch, block = config.batch, config.block
    rng = np.random.default_rng(0)
    data, weights = rng.integers(1, 99, (5, 21, 3, 2)), rng.integers(1, 99, (19, 21, 2, 3))
    packed, packed_weights, bias = (
        pack_data(data, config),
        pack_weights(weights, config),
        pack_bias(weights[:, 0, 0, 0], config),
    )
    for n, c, h, w in np.ndindex(data.shape):
        assert packed[n // batch, c // block, h, w, n % batch, c % block] == data[n, c, h, w]
    for o, i, h, w in np.ndindex(weights.shape):
        assert packed_weights[o // block, i // block, h, w, o % block, i % block] == weights[o, i, h, w]
    for o in range(19):
        assert (bias[o // block, :, o % block] == weights[o, 0, 0, 0]).all()
    # The rest is zero.
    assert np.count_nonzero(packed) == data.size
    assert np.count_nonzero(packed_weights) == weights.size
    np.testing.assert_array_equal(unpack_data(packed, data.shape), data)


def test_what_cannot_be_packed() -> None:
    for shape in ((), (0, 3, 1, 1)):
        with pytest.raises(InputError, match=r"an array of shape \[.*\] cannot be packed in blocks"):
            pack_data(np.zeros(shape), load_config("sim"))


@pytest.mark.parametrize("name", ["sim", "sim_2x16", "sim_4x8"])
def test_a_bias_as_weights(name: str) -> None:
    config = load_config(name)
    most = 127 * 127 * (config.block - 2) + 127 * 126 + 63
    bias = np.array([0, 1, -1, 63, 64, -63, -64, 127, -128, 16129, 16130, -50_000, 99_999, most, -most], np.int32)
    bias = np.concatenate([bias, np.random.default_rng(0).integers(-most, most, 500).astype(np.int32)])
    weights, inputs = bias_as_weights(bias, config)
    found = np.einsum("bi,koi->bko", inputs.astype(np.int64), weights.astype(np.int64)).reshape(config.batch, -1)
    assert (found[:, : bias.size] == bias).all()
    assert (found[:, bias.size :] == 0).all()
    with pytest.raises(InputError, match=rf"a bias of {most + 1} is larger than {most}, which GEMM can add"):
        bias_as_weights(np.array([3, -most - 1]), config)
