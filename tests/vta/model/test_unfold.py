"""Unfolded inputs: the same convolution, in fewer steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vta.integer_reference import run_layer
from tvm_ext.backends.vta.config import VTAConfig
from tvm_ext.backends.vta.model.layers import IntegerLayer, Layer
from tvm_ext.backends.vta.model.region import geometry
from tvm_ext.backends.vta.model.unfold import unfold_columns, unfold_layer, unfold_layers


def convolution(data: str = "x", channels: int = 3, kernel: tuple[int, int] = (3, 3), size: int = 8) -> Layer:
    weights = np.random.default_rng(0).integers(-9, 9, (5, channels, *kernel)).astype(np.float32)
    across = (kernel[1], 2, kernel[1] // 2)
    out = (size + 2 * across[2] - kernel[1]) // 2 + 1
    rows = size - kernel[0] + 1
    shapes = (1, channels, size, size), (1, 5, rows, out)
    return Layer("a", "conv2d", data, *shapes, kernel[0], weights=weights, across=across)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 5), st.integers(5, 9), st.integers(1, 3))
def test_unfolded_convolutions_are_the_same(channels: int, rows: int, columns: int, size: int, stride: int) -> None:
    layer = convolution(channels=channels, kernel=(rows, columns), size=size)
    padding = columns // 2
    width = (size + 2 * padding - columns) // stride + 1
    layer = replace(layer, across=(columns, stride, padding), out_shape=(1, 5, size - rows + 1, width))
    data = np.random.default_rng(1).integers(-128, 128, layer.in_shape).astype(np.int8)
    bias = np.zeros(5, np.int32)
    expected = run_layer(IntegerLayer(layer, layer.weights.astype(np.int8), bias, 5), {"x": data})
    unfolded = unfold_layer(layer)
    plain = replace(unfolded, unfold=None)
    picture = unfold_columns(data, layer.across)
    assert picture.shape == unfolded.in_shape
    found = run_layer(IntegerLayer(plain, plain.weights.astype(np.int8), bias, 5), {"x": picture})
    np.testing.assert_array_equal(found, expected)
    again = run_layer(IntegerLayer(unfolded, unfolded.weights.astype(np.int8), bias, 5), {"x": data})
    np.testing.assert_array_equal(again, expected)


def test_a_first_layer_takes_fewer_steps() -> None:
    layer = convolution(kernel=(7, 7), size=20)
    config = VTAConfig()
    before, after = geometry(layer, config), geometry(unfold_layer(layer), config)
    # Two blocks in place of the seven places of a row, of which those on padding have no step.
    assert after.steps * before.horizontal.products == before.steps * 2 * before.out_width
    assert after.steps < 0.35 * before.steps


def test_only_layers_that_gain_are_unfolded() -> None:
    first = convolution()
    assert set(unfold_layers([first], 16)) == {"a"}
    assert not unfold_layers([replace(first, name="b"), replace(first, name="c")], 16), "two read the same input"
    assert not unfold_layers([convolution(channels=16)], 16), "its channels fill a block"
    assert not unfold_layers([convolution(kernel=(3, 1))], 16), "its window has one column"
    other = replace(convolution(data="y"), name="y2")
    assert not unfold_layers([replace(first, name="y", groups=3), other], 16), "groups, and a tensor of another layer"
