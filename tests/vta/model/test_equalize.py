"""Channels of one size: the scaled layers are the same function, and int8 keeps more of it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.vta.integer_reference import run_network
from tvm_ext.backends.vta.model.equalize import equalize, scale_layer
from tvm_ext.backends.vta.model.layers import IntegerNetwork, Layer
from tvm_ext.backends.vta.model.quantize import quantize_network
from tvm_ext.backends.vta.model.unfold import unfold_columns, unfold_layer


def convolve(layer: Layer, data: np.ndarray) -> np.ndarray:
    """A convolution without padding and stride, in float64."""
    if layer.unfold is not None:
        data = unfold_columns(data, layer.unfold)
    kernel, across = layer.kernel, (layer.across or (layer.kernel,))[0]
    windows = np.lib.stride_tricks.sliding_window_view(data, (kernel, across), axis=(2, 3))
    n, _, rows, columns = windows.shape[:4]
    by_group = windows.reshape(n, layer.groups, -1, rows, columns, kernel, across)
    weights = layer.weights.reshape(layer.groups, -1, *layer.weights.shape[1:])
    sums = np.einsum("ngcyxij,gocij->ngoyx", by_group, weights).reshape(n, -1, rows, columns)
    return np.clip(sums + layer.bias[None, :, None, None], layer.low, layer.high)


def chain(rng: np.random.Generator, spread: float, high: float = np.inf, groups: int = 1) -> list[Layer]:
    """Three convolutions, ReLU between them; channels and weights differ in size."""
    layers, names = [], ["x", "a", "b", "c"]
    for at, (data, name) in enumerate(itertools.pairwise(names)):
        each = 8 // (groups if at == 1 else 1)
        sizes = np.exp(spread * rng.standard_normal((8, 1, 1, 1)))
        weights = (rng.standard_normal((8, each, 3, 3)) * sizes / 6).astype(np.float32)
        layers.append(
            Layer(
                name, "conv2d", data, (1, 8, 12 - 2 * at, 12 - 2 * at), (1, 8, 10 - 2 * at, 10 - 2 * at), 3,
                groups=8 // each, weights=weights, bias=rng.standard_normal(8).astype(np.float32),
                low=0.0 if name != "c" else -np.inf, high=high if name != "c" else np.inf,
            )
        )  # fmt: skip
    return layers


def run(layers: list[Layer], x: np.ndarray) -> dict[str, np.ndarray]:
    tensors = {"x": x}
    for layer in layers:
        tensors[layer.name] = convolve(layer, tensors[layer.data])
    return tensors


def rows(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: values.swapaxes(0, 1).reshape(values.shape[1], -1) for name, values in tensors.items()}


@pytest.mark.parametrize("groups", [1, 4, 8])
@pytest.mark.parametrize("high", [np.inf, 6.0])
def test_the_same_function(groups: int, high: float) -> None:
    rng = np.random.default_rng(groups)
    layers = chain(rng, 1.0, high, groups)
    x = rng.standard_normal((1, 8, 12, 12)) * np.exp(rng.standard_normal((8, 1, 1)))
    tensors = run(layers, x)
    found = equalize(layers, rows(tensors), {})
    scaled = run(list(found.layers), x * found.scales["x"][:, None, None])
    for name, values in tensors.items():
        factors = found.scales[name][:, None, None]
        assert (factors > 0).all()
        np.testing.assert_allclose(scaled[name] / factors, values, rtol=1e-4, atol=1e-4)
    assert (np.ptp(found.scales["a"]) == 0) == np.isfinite(high)  # a bound is one number for all channels


def test_an_unfolded_layer() -> None:
    rng = np.random.default_rng(0)
    layer = chain(rng, 1.0)[0]
    x = rng.standard_normal((1, 8, 12, 12))
    scales = {"x": rng.uniform(0.5, 2, 8), "a": rng.uniform(0.5, 2, 8)}
    found = convolve(scale_layer(unfold_layer(layer), scales), x * scales["x"][:, None, None])
    np.testing.assert_allclose(found / scales["a"][:, None, None], convolve(layer, x), rtol=1e-4, atol=1e-4)


def noise(layers: list[Layer], x: np.ndarray, equalized: bool) -> float:
    """Relative error of the last tensor in integers."""
    tensors = run(layers, x)
    observed, scales = rows(tensors), {}
    if equalized:
        found = equalize(layers, observed, {})
        network = replace(quantize_network(found.layers, found.observed), scales=found.scales)
    else:
        network = IntegerNetwork(**vars(quantize_network(layers, observed)) | {"scales": scales})
    integers = run_network(network, {"x": network.integers("x", x)})
    error = network.floats("c", integers["c"]) - tensors["c"]
    return float(np.sqrt(np.square(error).sum() / np.square(tensors["c"]).sum()))


def test_less_is_lost() -> None:
    """Over many networks: never much more, and far less where channels differ, as those of trained networks do."""
    for spread, gain in ((0.0, 0.9), (1.5, 0.6)):
        plain, better = [], []
        for seed in range(12):
            rng = np.random.default_rng(seed)
            layers = chain(rng, spread)
            x = rng.standard_normal((1, 8, 12, 12)) * np.exp(spread * rng.standard_normal((8, 1, 1)))
            plain.append(noise(layers, x, False))
            better.append(noise(layers, x, True))
        assert np.mean(better) < gain * np.mean(plain), (spread, np.mean(plain), np.mean(better))


def test_sums_keep_their_factors_together() -> None:
    rng = np.random.default_rng(0)
    layers = chain(rng, 1.0)
    same = replace(layers[0], name="s", data="x", residual="a")
    pool = Layer("p", "max_pool2d", "s", (1, 8, 10, 10), (1, 8, 5, 5), 2, 2)
    tensors = run(layers, rng.standard_normal((1, 8, 12, 12)))
    tensors |= {"s": tensors["a"] * 2, "p": tensors["a"]}
    found = equalize([layers[0], same, pool, *layers[1:]], rows(tensors), {})
    for name in ("s", "p"):
        np.testing.assert_array_equal(found.scales[name], found.scales["a"])
    kept = equalize([layers[0], same, pool, *layers[1:]], rows(tensors), {"p": 3})
    np.testing.assert_array_equal(kept.scales["a"], np.ones(8))


@pytest.mark.parametrize("dead", [5, 7])
def test_channels_that_fill_a_block_up_count_for_nothing(dead: int) -> None:
    """Zeros in the middle of a chain: the factors of the others are what they are without them."""
    rng = np.random.default_rng(dead)
    layers = chain(rng, 1.0)
    living = 8 - dead
    first, second = layers[0], layers[1]
    first = replace(first, weights=first.weights.copy(), bias=first.bias.copy())
    second = replace(second, weights=second.weights.copy())
    first.weights[living:], first.bias[living:], second.weights[:, living:] = 0, 0, 0
    wide = [first, second, layers[2]]
    narrow = [
        replace(first, weights=first.weights[:living], bias=first.bias[:living], out_shape=(1, living, 10, 10)),
        replace(second, weights=second.weights[:, :living], in_shape=(1, living, 10, 10)),
        layers[2],
    ]
    tensors = run(wide, rng.standard_normal((1, 8, 12, 12)))
    # what is expected beyond the largest that was seen is no exact zero
    observed = rows(tensors) | {"a": np.maximum(rows(tensors)["a"], 0.01)}
    found = equalize(wide, observed, {}).scales["a"]
    alone = equalize(narrow, rows(tensors) | {"a": observed["a"][:living]}, {}).scales["a"]
    np.testing.assert_allclose(found[:living] / found[0], alone / alone[0], rtol=1e-6)
    assert np.ptp(np.log2(found)) < 8
    network = quantize_network(*[getattr(equalize(wide, observed, {}), at) for at in ("layers", "observed")])
    assert all(integer.shift < 16 for integer in network.layers)


def test_a_channel_of_bias_alone_is_alive() -> None:
    rng = np.random.default_rng(3)
    layers = chain(rng, 1.0)
    weights = layers[0].weights.copy()
    weights[2] = 0
    bias = layers[0].bias.copy()
    bias[2] = 40.0
    layers[0] = replace(layers[0], weights=weights, bias=bias)
    tensors = run(layers, rng.standard_normal((1, 8, 12, 12)))
    scales = equalize(layers, rows(tensors), {}).scales["a"]
    assert scales[2] == scales.min()


def test_all_zero() -> None:
    """Nothing to balance: no division by zero, and factors of one size."""
    layers = [replace(x, weights=x.weights * 0, bias=x.bias * 0) for x in chain(np.random.default_rng(0), 1.0)]
    found = equalize(layers, rows(run(layers, np.zeros((1, 8, 12, 12)))), {})
    assert all(np.isfinite(factors).all() and np.ptp(factors) == 0 for factors in found.scales.values())
