"""Operators that select, move or repeat elements of quantised tensors, on the integers: equal to onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import tvm_ext
from tests.quantized.qdq_graphs import QdqGraph
from tests.quantized.test_integer_arithmetic import operators

SHAPE = (2, 8, 6, 5)


def node(op: str, *constants: tuple[Any, str], **attributes: Any) -> Callable[[QdqGraph, str], str]:
    """Give what adds a node whose operands behind the first are constants; one without elements is left out."""

    def add(graph: QdqGraph, data: str) -> str:
        operands = [graph.constant(np.array(value, dtype)) if np.size(value) else "" for value, dtype in constants]
        return graph.node(op, data, *operands, **attributes)

    return add


def split(graph: QdqGraph, data: str) -> str:
    graph.nodes.append(helper.make_node("Split", [data], ["first", "second"], axis=1))
    return graph.node("Sub", graph.quantized("first", 0.05, 100), graph.quantized("second", 0.05, 100))


NOTHING = ([], "float32")
MOVES = {
    "resize": node("Resize", NOTHING, ([1, 1, 2, 3], "float32"), mode="nearest"),
    "resize floor": node(
        "Resize", NOTHING, ([1, 1, 2, 2], "float32"), mode="nearest",
        coordinate_transformation_mode="asymmetric", nearest_mode="floor",
    ),
    "expand": node("Expand", ([3, 2, 8, 6, 5], "int64")),
    "gather": node("Gather", ([3, 1, 1, -1], "int64"), axis=1),
    "gather elements": node("GatherElements", (np.arange(480).reshape(SHAPE) % 8, "int64"), axis=1),
    "flip": node("Slice", ([-1], "int64"), ([-9], "int64"), ([2], "int64"), ([-1], "int64")),
    "pad": node("Pad", ([0, 0, 1, 2, 0, 0, 1, 0], "int64")),
    "mirrored": node("Pad", ([0, 0, 1, 2, 0, 0, 1, 0], "int64"), mode="reflect"),
    "split": split,
}  # fmt: skip


def model(move: Callable[[QdqGraph, str], str], activations: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    graph = QdqGraph(SHAPE, activations)
    data = graph.quantized(graph.conv(graph.quantized("x"), 8, 8), 0.05, 100)
    return graph.model(graph.quantized(move(graph, data), 0.05, 100)), graph.input()


@pytest.mark.parametrize("activations", ["uint8", "int8"])
@pytest.mark.parametrize("name", MOVES)
def test_integers_are_moved(name: str, activations: str) -> None:
    graph, inputs = model(MOVES[name], activations)
    if name != "split":
        # Before the convolution and behind it: what is moved has its steps, and is not rounded again.
        assert operators(graph)["quantize:uint8"] == 2
    (expected,) = onnxruntime.InferenceSession(graph.SerializeToString()).run(None, inputs)
    (result,) = tvm_ext.compile(graph).run(inputs).values()
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    "move",
    [
        node("Resize", NOTHING, ([1, 1, 2, 2], "float32"), mode="linear"),
        node("Pad", ([0, 0, 1, 2, 0, 0, 1, 0], "int64"), (0.7, "float32")),
    ],
    ids=["linear", "padded with 0.7"],
)
def test_what_computes_elements_stays(move: Callable[[QdqGraph, str], str]) -> None:
    graph, inputs = model(move, "uint8")
    assert operators(graph)["quantize:uint8"] == 3
    (expected,) = onnxruntime.InferenceSession(graph.SerializeToString()).run(None, inputs)
    (result,) = tvm_ext.compile(graph).run(inputs).values()
    assert np.abs(result - expected).max() < 0.0501
