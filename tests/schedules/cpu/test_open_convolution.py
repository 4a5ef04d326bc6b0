"""Convolutions and poolings of open extents give what onnxruntime gives, by kernels that are written out for them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import tvm_ext
from tests.shapes.dynamic_model import DynamicModel, make, node, weights
from tvm_ext.artifact.compiled_model import CompiledModel

onnxruntime = pytest.importorskip("onnxruntime")

WIDTHS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 61)


def compiled(case: DynamicModel) -> CompiledModel:
    """Compile without a warning of kernels that no rule took."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return tvm_ext.compile(case.model, dynamic=case.dynamic)


def agree(case: DynamicModel, sizes: list[dict[str, int]], tolerance: float = 1e-4) -> None:
    session, model = onnxruntime.InferenceSession(case.model.SerializeToString()), compiled(case)
    for seed, size in enumerate(sizes):
        feeds = case.feeds(size, seed)
        for want, got in zip(session.run(None, feeds), model.run(feeds).values(), strict=True):
            assert want.shape == got.shape, size
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, err_msg=str(size))


def images(least: int = 1) -> list[dict[str, int]]:
    widths = [width for width in WIDTHS if width >= least]
    return [
        {"n": 1 + number % 3, "h": max(least, (5 * number) % 19), "w": width} for number, width in enumerate(widths)
    ]


def image_model(nodes: list[Any], constants: list[Any], channels: int, least: int = 1) -> DynamicModel:
    limits = {"n": (0, 3), "h": (least, 80), "w": (least, 80)}
    return make("images", nodes, {"x": ["n", channels, "h", "w"]}, limits, constants)


@pytest.mark.parametrize(
    ("channels", "out", "kernel", "options"),
    [
        (3, 16, (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        (16, 16, (3, 3), {"pads": [1, 1, 1, 1]}),
        (31, 33, (1, 1), {}),
        (32, 64, (1, 1), {"strides": [2, 2]}),
        (17, 7, (3, 2), {"pads": [1, 0, 2, 1], "dilations": [2, 1]}),
        (24, 48, (5, 1), {"pads": [2, 0, 2, 0], "strides": [1, 3]}),
        (32, 32, (3, 3), {"pads": [1, 1, 1, 1], "group": 2}),
        (64, 48, (3, 3), {"pads": [1, 1, 1, 1], "group": 4, "strides": [2, 1]}),
        (600, 600, (1, 1), {}),
        (1, 1, (3, 3), {"pads": [1, 1, 1, 1]}),
    ],
)
def test_convolutions_over_channels(channels: int, out: int, kernel: tuple[int, int], options: dict[str, Any]) -> None:
    shape = (out, channels // options.get("group", 1), *kernel)
    case = image_model([node("Conv", ["x", "w", "b"], ["y"], **options)], weights(w=shape, b=(out,)), channels, 5)
    agree(case, [*images(5), {"n": 0, "h": 9, "w": 9}, {"n": 1, "h": 80, "w": 80}], 1e-3)


@pytest.mark.parametrize(
    ("channels", "kernel", "options"),
    [
        (16, (3, 3), {"pads": [1, 1, 1, 1]}),
        (33, (3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
        (7, (5, 5), {"pads": [2, 2, 2, 2]}),
        (20, (7, 3), {"pads": [3, 0, 3, 2], "strides": [1, 2]}),
        (16, (3, 3), {"pads": [2, 2, 2, 2], "dilations": [2, 2]}),
        (8, (2, 2), {}),
        (16, (9, 9), {"pads": [4, 4, 4, 4], "strides": [3, 3]}),
    ],
)
def test_depthwise_convolutions(channels: int, kernel: tuple[int, int], options: dict[str, Any]) -> None:
    nodes = [node("Conv", ["x", "w", "b"], ["y"], group=channels, **options)]
    case = image_model(nodes, weights(w=(channels, 1, *kernel), b=(channels,)), channels, 7)
    agree(case, [*images(7), {"n": 0, "h": 9, "w": 9}, {"n": 2, "h": 80, "w": 79}])


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [3, 2], "strides": [1, 2], "pads": [1, 0, 1, 1]},
        {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "count_include_pad": 1},
    ],
)
def test_poolings_behind_a_convolution(kind: str, options: dict[str, Any]) -> None:
    if kind == "MaxPool" and "count_include_pad" in options:
        options = {key: value for key, value in options.items() if key != "count_include_pad"} | {"dilations": [2, 1]}
    nodes = [node("Conv", ["x", "w"], ["c"]), node(kind, ["c"], ["y"], **options)]
    agree(image_model(nodes, weights(w=(20, 3, 1, 1)), 3, 5), [*images(5), {"n": 0, "h": 9, "w": 9}])


def test_what_follows_is_computed_as_tiles_are_stored() -> None:
    nodes = [
        node("Conv", ["x", "w", "b"], ["a"], pads=[1, 1, 1, 1]), node("HardSigmoid", ["a"], ["gate"]),
        node("Mul", ["a", "gate"], ["s"]), node("Conv", ["s", "d"], ["e"], pads=[1, 1, 1, 1], group=24),
        node("Sigmoid", ["e"], ["f"]), node("Mul", ["e", "f"], ["g"]), node("Add", ["g", "s"], ["h1"]),
        node("GlobalAveragePool", ["h1"], ["p"]), node("Conv", ["p", "v"], ["q"]), node("Relu", ["q"], ["r"]),
        node("Mul", ["h1", "r"], ["y"]),
    ]  # fmt: skip
    constants = weights(w=(24, 5, 3, 3), b=(24,), d=(24, 1, 3, 3), v=(24, 24, 1, 1))
    agree(image_model(nodes, constants, 5), [*images(), {"n": 3, "h": 1, "w": 1}])


@pytest.mark.parametrize(("channels", "out", "scales"), [(16, 16, [2, 2]), (24, 7, [2, 2]), (3, 33, [3, 1])])
def test_images_are_enlarged_by_filters_that_do_not_overlap(channels: int, out: int, scales: list[int]) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"]), node("ConvTranspose", ["a", "t", "b"], ["c"], strides=scales),
        node("Sigmoid", ["c"], ["y"]),
    ]  # fmt: skip
    constants = weights(w=(channels, 3, 1, 1), t=(channels, out, *scales), b=(out,))
    agree(image_model(nodes, constants, 3), [*images(), {"n": 0, "h": 2, "w": 2}])


def test_signals_and_volumes() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[2, 2], strides=[2]), node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "d"], ["y"], pads=[3, 3], group=12),
    ]  # fmt: skip
    case = make("signal", nodes, {"x": ["n", 10, "t"]}, {"n": (1, 3), "t": (1, 4000)},
                weights(w=(12, 10, 5), d=(12, 1, 7)))  # fmt: skip
    agree(case, [{"n": 1 + t % 3, "t": t} for t in (1, 2, 9, 16, 100, 1001, 4000)])
    nodes = [node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1, 1, 1])]
    limits = {"n": (1, 2), "d": (1, 9), "h": (1, 9), "w": (1, 40)}
    case = make("volume", nodes, {"x": ["n", 4, "d", "h", "w"]}, limits, weights(w=(9, 4, 3, 3, 3)))
    sizes = [(1, 1, 1, 1), (2, 5, 3, 17), (1, 9, 9, 40)]
    agree(case, [dict(zip("ndhw", size, strict=True)) for size in sizes])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_borders_and_unused_lanes_hand_on_nothing(value: float) -> None:
    """One element that is not finite shows where it is read, and nowhere else."""
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]), node("Conv", ["a", "v"], ["b"]),
        node("MaxPool", ["b"], ["y"], kernel_shape=[2, 2]),
    ]  # fmt: skip
    case = image_model(nodes, weights(w=(5, 3, 3, 3), v=(7, 5, 1, 1)), 3, 2)
    session, model = onnxruntime.InferenceSession(case.model.SerializeToString()), compiled(case)
    for place in ((0, 0), (0, 16), (8, 3)):
        x = case.feeds({"n": 1, "h": 9, "w": 17})["x"]
        x[0, 1, place[0], place[1]] = value
        want, got = session.run(None, {"x": x})[0], model.run({"x": x})["y"]
        finite = np.isfinite(want)
        # onnxruntime's pooling loses NaN; whatever is not finite must lie within reach of the element.
        rows, columns = np.nonzero(~np.isfinite(got[0, 0]))
        assert len(rows)
        assert (abs(rows - place[0]) <= 2).all()
        assert (abs(columns - place[1]) <= 2).all()
        both = finite & np.isfinite(got)
        np.testing.assert_allclose(got[both], want[both], rtol=1e-4, atol=1e-4)


def test_every_number_of_columns_is_covered_once() -> None:
    nodes = [node("Conv", ["x", "w"], ["y"])]
    case = image_model(nodes, weights(w=(16, 1, 1, 1)), 1)
    agree(case, [{"n": 1, "h": 1, "w": width} for width in range(1, 33)])
