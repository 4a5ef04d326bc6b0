"""Scales, and layers in integers against the floats they stand for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vta.integer_reference import run_network
from tvm_ext.backends.vta.model.accuracy import compare_layers
from tvm_ext.backends.vta.model.layers import IntegerLayer, IntegerNetwork, Layer, merge_groups, verify_network
from tvm_ext.backends.vta.model.quantize import FINER_STEPS, choose_fraction, quantize_network, to_integers
from tvm_ext.errors import GraphError, InputError


def convolution(name: str, data: str, scale: float = 1.0, residual: str | None = None, **fields: object) -> Layer:
    """A 1x1 convolution of three channels."""
    rng = np.random.default_rng(len(name))
    weights = (scale * rng.standard_normal((3, 3, 1, 1))).astype(np.float32)
    shape = (1, 3, 4, 4)
    layer = Layer(name, "conv2d", data, shape, shape, weights=weights, bias=np.ones(3, np.float32), residual=residual)
    return replace(layer, **fields)


def in_floats(layers: list[Layer], tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    tensors = dict(tensors)
    for layer in layers:
        if layer.kind == "max_pool2d":
            tensors[layer.name] = tensors[layer.data]
            continue
        total = np.einsum("oi,nihw->nohw", layer.weights[:, :, 0, 0], tensors[layer.data])
        total = total + layer.bias[:, None, None] + (tensors[layer.residual] if layer.residual else 0)
        tensors[layer.name] = np.clip(total, layer.low, layer.high)
    return tensors


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(-20, 20), st.integers(1, 40))
def test_no_coarser_scale_loses_less(seed: int, exponent: int, size: int) -> None:
    values = np.random.default_rng(seed).standard_normal(size) * 2.0**exponent
    chosen = choose_fraction(values)
    largest = np.abs(values).max()

    def error(fraction: int) -> float:
        return float(np.square(np.ldexp(to_integers(values, fraction).astype(float), -fraction) - values).sum())

    most = int(np.floor(np.log2(127 / largest))) + FINER_STEPS
    assert error(chosen) == min(error(fraction) for fraction in range(most - 12, most + 1))


def test_integers_round_halves_upwards_and_are_clipped() -> None:
    values = np.array([0.24, 0.25, -0.25, -0.26, 100.0, -100.0])
    np.testing.assert_array_equal(to_integers(values, 1), [0, 1, 0, -1, 127, -128])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.floats(0.01, 100), st.floats(0.01, 100), st.sampled_from([-np.inf, 0.0]))
def test_layers_are_near_their_floats(seed: int, scale: float, size: float, low: float) -> None:
    """Chains with residuals whose ranges differ by orders of magnitude."""
    x = (size * np.random.default_rng(seed).standard_normal((1, 3, 4, 4))).astype(np.float32)
    layers = [
        convolution("a", "x", scale, low=low),
        replace(convolution("pool", "a"), kind="max_pool2d", weights=None, bias=None),
        convolution("bb", "pool", 1 / scale, residual="x"),
        convolution("ccc", "bb", 0.1, residual="pool", low=low),
    ]
    expected = in_floats(layers, {"x": x})
    network = quantize_network(layers, expected)
    found = run_network(network, {"x": to_integers(x, network.fractions["x"])})
    rows = {row.name: row for row in compare_layers(network, expected, found)}
    assert network.fractions["pool"] == network.fractions["a"]
    assert rows["a"].signal_to_noise > 20
    assert rows["bb"].signal_to_noise > 15
    for integer in network.layers:
        assert integer.shift >= 0
        assert integer.residual_shift >= 0


def test_a_residual_finer_than_the_sums_gets_fewer_bits() -> None:
    """The small tensor is added to large sums, through a pooling that has its steps."""
    layers = [
        convolution("a", "x", 1e-6, bias=np.zeros(3, np.float32)),
        replace(convolution("pool", "a"), kind="max_pool2d", weights=None, bias=None),
        convolution("sum", "y", 1e3, residual="pool"),
    ]
    x = np.random.default_rng(0).standard_normal((1, 3, 4, 4)).astype(np.float32)
    expected = in_floats(layers, {"x": x, "y": 100 * x})
    network = quantize_network(layers, expected)
    assert network.fractions["a"] == network.fractions["pool"] < choose_fraction(expected["a"])
    assert network.layers[2].residual_shift >= 0


def test_large_biases_do_not_overflow() -> None:
    layer = convolution("a", "x", bias=np.full(3, 3e7, np.float32), weights=np.full((3, 3, 1, 1), 1e-4, np.float32))
    x = np.random.default_rng(0).standard_normal((1, 3, 4, 4)).astype(np.float32)
    network = quantize_network([layer], in_floats([layer], {"x": x}))
    values = run_network(network, {"x": to_integers(x, network.fractions["x"])})["a"]
    np.testing.assert_allclose(np.ldexp(values.astype(float), -network.fractions["a"]), 3e7, rtol=0.01)


def test_known_fractions_come_first() -> None:
    layer = convolution("a", "x")
    network = quantize_network([layer], {}, {"x": 3, "a": 2})
    assert network.fractions == {"a": 2, "x": 3}


def test_what_is_not_observed_is_named() -> None:
    with pytest.raises(InputError, match=r"tensor 'x' .* calibration data"):
        quantize_network([convolution("a", "x")], {"a": np.ones(3)})


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(InputError, match=r"tensor 'x' .* not finite"):
        quantize_network([convolution("a", "x")], {"a": np.ones(3), "x": np.array([1.0, bad])})
    layer = convolution("a", "x", bias=np.array([0, bad, 0], np.float32))
    with pytest.raises(InputError, match="layer 'a' has weights or biases that are not finite"):
        quantize_network([layer], {"a": np.ones(3), "x": np.ones(3)})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shift": -1}, "shifts by -1"),
        ({"residual_shift": -2}, "and -2"),
        ({"low": 3, "high": 2}, "clipped to 3..2"),
        ({"high": 128}, "clipped to -128..128"),
        ({"bias": np.full(3, 2**31 - 1, np.int32)}, "32 bits"),
        ({"residual_shift": 25}, "32 bits"),
        ({"bias": None}, "without weights or bias"),
    ],
)
def test_the_verifier_sees_what_vta_cannot_do(fields: dict[str, object], message: str) -> None:
    layer = convolution("a", "x", residual="x")
    good = IntegerLayer(layer, np.ones((3, 3, 1, 1), np.int8), np.zeros(3, np.int32), 4, 2)
    verify_network(IntegerNetwork((good,), {"a": 0, "x": 0}))
    with pytest.raises(GraphError, match=message):
        verify_network(IntegerNetwork((replace(good, **fields),), {"a": 0, "x": 0}))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 6), st.sampled_from([4, 8, 16]))
def test_merged_groups_see_what_groups_saw(groups: int, inputs: int, outputs: int, block: int) -> None:
    rng = np.random.default_rng(0)
    weights = rng.integers(-9, 9, (groups * outputs, inputs, 1, 1))
    data = rng.integers(-9, 9, groups * inputs)
    expected = np.einsum("goi,gi->go", weights.reshape(groups, outputs, inputs), data.reshape(groups, inputs)).ravel()
    merged = merge_groups(weights, groups, block)
    padded = np.pad(data, (0, merged.groups * merged.weights.shape[1] - len(data)))
    found = np.einsum(
        "goi,gi->go",
        merged.weights.reshape(merged.groups, -1, merged.weights.shape[1]),
        padded.reshape(merged.groups, -1),
    ).ravel()
    np.testing.assert_array_equal(found[: len(expected)], expected)
    assert not found[len(expected) :].any()
    if merged.groups > 1:
        assert not merged.weights.shape[1] % block
        assert not len(merged.weights) // merged.groups % block
