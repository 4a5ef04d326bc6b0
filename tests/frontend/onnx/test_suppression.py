"""Non-maximum suppression against onnxruntime: ties, corners in any order, limits, NaN and open numbers of boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_ext
from tests.cuda.whole_model import EmulatedModel
from tvm_ext.frontend import import_model


def model_of(
    boxes: list[Any], scores: list[Any], most: int, overlap: float, lowest: float | None, center: int = 0
) -> onnx.ModelProto:
    limits = {"most": np.array([most]), "overlap": np.array([overlap], "float32")}
    limits |= {} if lowest is None else {"lowest": np.array([lowest], "float32")}
    node = helper.make_node("NonMaxSuppression", ["boxes", "scores", *limits], ["kept"], center_point_box=center)
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("boxes", boxes), ("scores", scores))
    ]
    kept = helper.make_tensor_value_info("kept", TensorProto.INT64, None)
    constants = [numpy_helper.from_array(value, name) for name, value in limits.items()]
    made = helper.make_graph([node], "g", inputs, [kept], constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def drawn(images: int, classes: int, count: int, ties: bool = False) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(count)
    center, size = rng.uniform(0, 9, (images, count, 2)), rng.uniform(0.5, 4, (images, count, 2))
    boxes = np.concatenate([center - size / 2, center + size / 2], -1)
    swapped = rng.random((images, count)) < 0.5
    boxes[swapped] = boxes[swapped][:, [2, 3, 0, 1]]
    scores = rng.random((images, classes, count))
    if ties:
        boxes, scores = boxes.round(), scores.round(1)
    return {"boxes": boxes.astype("float32"), "scores": scores.astype("float32")}


def expected(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


CASES = [
    (1, 2, 9, 3, 0.5, 0.1, False),
    (2, 3, 33, 50, 0.3, None, False),
    (1, 2, 64, 100, 0.5, 0.5, True),
    (2, 1, 17, 2**40, 0.0, 0.2, True),
    (1, 1, 1, 1, 0.5, 0.0, False),
    (1, 2, 7, 3, 0.5, 2.0, False),
]


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_on_a_cpu(case: tuple[Any, ...], center: int) -> None:
    images, classes, count, most, overlap, lowest, ties = case
    feeds = drawn(images, classes, count, ties)
    if center:  # width and height
        feeds["boxes"][..., 2:] = np.abs(feeds["boxes"][..., 2:])
    model = model_of([images, count, 4], [images, classes, count], most, overlap, lowest, center)
    (found,) = tvm_ext.compile(model, "native").run(feeds).values()
    np.testing.assert_array_equal(found, expected(model, feeds))


@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[5]])
def test_for_cuda(case: tuple[Any, ...]) -> None:
    images, classes, count, most, overlap, lowest, ties = case
    feeds = drawn(images, classes, count, ties)
    model = model_of([images, count, 4], [images, classes, count], most, overlap, lowest)
    emulated = EmulatedModel(model)
    (found,) = emulated(*feeds.values())
    np.testing.assert_array_equal(found, expected(model, feeds))
    assert not emulated.faults


def test_scores_that_are_no_number_are_not_above_a_threshold() -> None:
    feeds = drawn(1, 2, 9)
    feeds["scores"][0, 0, 3] = feeds["scores"][0, 1, 0] = np.nan
    feeds["scores"][0, 1, 1] = np.inf
    model = model_of([1, 9, 4], [1, 2, 9], 9, 0.5, 0.1)
    (found,) = tvm_ext.compile(model, "native").run(feeds).values()
    np.testing.assert_array_equal(found, expected(model, feeds))


def test_open_numbers_of_boxes() -> None:
    model = model_of([1, "n", 4], [1, 2, "n"], 3, 0.5, 0.1)
    emulated = EmulatedModel(import_model(model, dynamic={"n": (1, 99)}).mod)
    compiled = tvm_ext.compile(model, "native", dynamic={"n": (1, 99)})
    for count in (1, 5, 21):
        feeds = drawn(1, 2, count)
        wanted = expected(model, feeds)
        np.testing.assert_array_equal(next(iter(compiled.run(feeds).values())), wanted)
        np.testing.assert_array_equal(emulated(*feeds.values())[0], wanted)
