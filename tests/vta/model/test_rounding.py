"""Weights rounded for what a layer sees: sums are nearer than with each weight rounded to the nearest."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.vta.model.test_equalize import chain, convolve
from tvm_ext.backends.vta.model.layers import Layer
from tvm_ext.backends.vta.model.rounding import SeenInputs, round_weights, windows_at
from tvm_ext.backends.vta.model.unfold import unfold_layer


def layer_and_data(groups: int = 1, seed: int = 0) -> tuple[Layer, np.ndarray]:
    """A convolution of channels that go together and are positive, as those behind a ReLU."""
    rng = np.random.default_rng(seed)
    layer = chain(rng, 0.5, groups=groups)[1]
    common = rng.standard_normal((4, 2, *layer.in_shape[2:]))
    mixed = np.einsum("oc,ncyx->noyx", rng.standard_normal((8, 2)), common)
    data = np.maximum(mixed + 0.1 * rng.standard_normal(mixed.shape) + 0.5, 0)
    return replace(layer, low=-np.inf, in_shape=data.shape, out_shape=(4, *layer.out_shape[1:])), data


def sums(layer: Layer, weights: np.ndarray, data: np.ndarray) -> np.ndarray:
    return convolve(replace(layer, weights=weights, bias=np.zeros(len(weights))), data)


@pytest.mark.parametrize(("groups", "unfolded"), [(1, False), (1, True), (4, False), (8, False)])
def test_sums_are_nearer(groups: int, unfolded: bool) -> None:
    plain, data = layer_and_data(groups)
    layer = unfold_layer(plain) if unfolded else plain
    fraction = int(np.floor(np.log2(40 / np.abs(layer.weights).max())))
    seen = SeenInputs([{layer.data: data[:2]}]).of(replace(layer, out_shape=(2, *layer.out_shape[1:])), np.ones(1))
    assert seen.shape == (2 * np.prod(layer.out_shape[2:]), groups, layer.weights[0].size)
    exact = sums(layer, layer.weights, data)
    noise = {}
    for name, inputs in (("nearest", None), ("seen", seen)):
        rounded = round_weights(layer, fraction, inputs)
        found = sums(layer, np.ldexp(rounded.integers.astype(float), -fraction), data)
        found += np.ldexp(rounded.bias, -fraction)[None, :, None, None]
        noise[name] = np.square(found - exact)
    assert noise["seen"][:2].mean() < 0.6 * noise["nearest"][:2].mean()
    assert noise["seen"][2:].mean() < 0.7 * noise["nearest"][2:].mean()  # what was not seen


def test_no_rounding_of_a_few_weights_is_much_better() -> None:
    """All roundings up and down of six weights, beside those chosen: within a tenth of the best one's error."""
    rng = np.random.default_rng(3)
    mixing = rng.standard_normal((6, 6))
    seen = (rng.standard_normal((500, 6)) @ mixing).astype(np.float32)[:, None]
    weights = rng.uniform(-20, 20, (16, 6, 1, 1))
    layer = Layer("y", "conv2d", "x", (1, 6, 1, 1), (1, 16, 1, 1), weights=weights, bias=np.zeros(16))
    found = round_weights(layer, 0, seen).integers[:, :, 0, 0]
    centred = seen[:, 0] - seen[:, 0].mean(axis=0)
    best, chosen, nearest = [], [], []
    for row, taken in zip(weights[:, :, 0, 0], found, strict=True):
        errors = {
            up: np.square(centred @ (np.floor(row) + up - row)).mean() for up in itertools.product((0, 1), repeat=6)
        }
        best.append(min(errors.values()))
        chosen.append(np.square(centred @ (taken - row)).mean())
        nearest.append(np.square(centred @ (np.floor(row + 0.5) - row)).mean())
    assert np.mean(chosen) < 0.6 * np.mean(nearest)
    assert np.mean(chosen) < 3 * np.mean(best)


def test_inputs_that_never_change() -> None:
    """Nothing but their mean matters; none at all leaves the nearest integers."""
    layer, _ = layer_and_data()
    flat = np.full((64, 1, layer.weights[0].size), 0.75, np.float32)
    rounded = round_weights(layer, 5, flat)
    wide = np.ldexp(layer.weights.astype(float), 5)
    missing = 0.75 * (wide - rounded.integers).sum(axis=(1, 2, 3))
    np.testing.assert_allclose(rounded.bias, missing, atol=1e-4)
    silent = round_weights(layer, 5, np.zeros_like(flat))
    np.testing.assert_array_equal(silent.integers, np.floor(wide + 0.5))
    assert not silent.bias.any()


def test_windows_are_what_a_convolution_multiplies() -> None:
    layer, data = layer_and_data(groups=4)
    layer = replace(layer, padding=1, stride=2)
    padded = np.pad(data, ((0, 0), (0, 0), (1, 1), (1, 1)))
    found = windows_at(layer, data, np.array([[3, 0, 2], [1, 2, 0]]))
    for row, (n, y, x) in zip(found, [(3, 0, 4), (1, 4, 0)], strict=True):
        np.testing.assert_array_equal(row, padded[n, :, y : y + 3, x : x + 3].reshape(4, -1))
