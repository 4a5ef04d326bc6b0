"""Ranges of channels: inputs that were not seen stay within them, also where a sample has one value of a channel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.vta.model.test_offload import Emitter
from tvm_ext.backends.vta.model.calibrate import ObservedModel, observe
from tvm_ext.backends.vta.model.equalize import equalize
from tvm_ext.backends.vta.model.offload import prepare
from tvm_ext.backends.vta.model.output_error import OutputError, folds
from tvm_ext.backends.vta.model.quantize import quantize_network
from tvm_ext.backends.vta.model.ranges import expected_ends
from tvm_ext.backends.vta.model.relax_layers import read_graph


def drawn(rng: np.random.Generator, samples: int, sizes: np.ndarray, places: int) -> np.ndarray:
    """Values behind a ReLU, (samples, channels, places)."""
    return np.maximum(rng.standard_normal((samples, len(sizes), places)), 0) * sizes[:, None]


def ends(values: np.ndarray) -> np.ndarray:
    return np.stack([values.max(axis=2), values.min(axis=2)], axis=2)


@pytest.mark.parametrize("samples", [1, 2, 3, 11])
@pytest.mark.parametrize("places", [1, 49])
def test_further_samples_are_hardly_clipped(samples: int, places: int) -> None:
    rng = np.random.default_rng(samples)
    sizes = np.ones(600)
    seen, others = drawn(rng, samples, sizes, places), drawn(rng, 50, sizes, places)
    found = expected_ends(ends(seen), places)
    assert (found[:, 0] >= seen.max(axis=(0, 2)).astype(np.float32)).all()
    assert (found[:, 1] >= 0).all()
    clipped = np.maximum(others - found[None, :, :1], 0)
    assert np.square(clipped).sum() < 0.005 * np.square(others).sum()
    assert found[:, 0].mean() < 6


@pytest.mark.parametrize("samples", [2, 4, 8])
def test_outputs_of_a_classifier_are_hardly_clipped(samples: int) -> None:
    """Each has a size of its own: what all of them have in common says nothing about the largest."""
    rng = np.random.default_rng(samples)
    means = np.array([-2.0, -4, -4, 2, 1, 8, -3, -12, 14, 0])
    clipped = total = 0.0
    for _ in range(50):
        seen = (means + 1.5 * rng.standard_normal((samples, 10)))[..., None]
        others = means + 1.5 * rng.standard_normal((50, 10))
        found = expected_ends(ends(seen), 1)
        clipped += np.square(others - np.clip(others, found[:, 1], found[:, 0])).sum()
        total += np.square(others).sum()
        assert np.abs(found).max() < 4 * np.abs(means).max()
    assert clipped < 1e-4 * total


def test_channels_with_many_values_keep_their_own_ranges() -> None:
    rng = np.random.default_rng(0)
    sizes = np.repeat([0.01, 1.0], 40)
    found = expected_ends(ends(drawn(rng, 4, sizes, 400)), 400)
    assert found[:40, 0].max() < 0.15
    assert 3 < found[40:, 0].min()


def test_a_constant_has_no_other_ends() -> None:
    values = np.full((3, 5, 2), 2.0)
    np.testing.assert_array_equal(expected_ends(values, 7), values[0])
    np.testing.assert_array_equal(expected_ends(np.zeros((1, 4, 2)), 1), 0)


def test_samples_are_parted() -> None:
    """Each is held out once, and from a fit to about two thirds of them."""
    for count in range(1, 20):
        parted = folds(count)
        assert sorted(at for held_out in parted for at in held_out) == list(range(count))
        assert all(0 < len(held_out) <= -(-count // 3) for held_out in parted)
        assert len(parted) == min(count, 3)


@pytest.mark.parametrize("samples", [1, 4])
def test_matrix_products_on_inputs_that_were_not_seen(samples: int) -> None:
    """A sample has one value of each channel; ReLUs of many are zero on all calibration inputs."""

    def body(e: Emitter, x: Any) -> Any:
        for _ in range(3):
            x = e.relu(e.emit(relax.op.matmul(x, e.constant(192, 192))))
        return x

    rng = np.random.default_rng(5)
    floats = prepare(Emitter().module((1, 192), body))[0]
    graph = read_graph(floats["main"], 1)
    assert len(graph.layers) == 3
    model = ObservedModel(floats, {name: graph.variables[name] for name in ("x", *graph.variables)}, disturbed=True)
    drawn_inputs = [{"x": x} for x in rng.standard_normal((samples + 6, 1, 192)).astype(np.float32)]
    equalized = equalize(graph.layers, observe(model, drawn_inputs[:samples]), {})
    network = replace(quantize_network(equalized.layers, equalized.observed), scales=equalized.scales)
    assert OutputError(model, drawn_inputs[samples:]).together([network]).mean() ** 0.5 < 0.04
