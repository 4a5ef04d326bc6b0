"""Convolutions of volumes in integers, as convolutions of images whose planes stand among the channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import te

import tvm_ext
from tests.quantized.qdq_graphs import QdqGraph
from tests.quantized.test_integer_arithmetic import LEVELS, check
from tests.quantized.test_moved_zero_points import check as check_moved
from tests.quantized.test_moved_zero_points import integers, made
from tvm_ext.schedules.compute.tap_planes import tap_planes


@pytest.mark.parametrize("target", LEVELS.values(), ids=LEVELS)
@pytest.mark.parametrize("activations", ["uint8", "int8"])
def test_a_chain_of_volumes(activations: str, target: Any) -> None:
    """Windows along all axes, along one and along two, strided, dilated, padded on one side, grouped."""
    graph = QdqGraph((2, 3, 7, 9, 8), activations)
    first = graph.quantized(graph.node("Relu", graph.conv(graph.quantized("x"), 3, 24, strides=[2, 1, 1])))
    second = graph.quantized(graph.conv(first, 24, 24, 3, dilations=[1, 2, 1], pads=[2, 0, 1, 0, 1, 1]))
    third = graph.quantized(graph.conv(second, 24, 48, 1, group=3))
    joined = graph.quantized(graph.node("Add", graph.quantized(graph.conv(third, 48, 48, 1)), third))
    last = graph.quantized(graph.conv(joined, 48, 17, 3, per_channel=False, strides=[1, 2, 2]))
    model = graph.model(last)
    check(model, graph.input(), target)


def test_what_integers_are_computed() -> None:
    graph = QdqGraph((1, 8, 5, 9, 8))
    model = graph.model(graph.quantized(graph.conv(graph.quantized("x"), 8, 16)))
    compiled = tvm_ext.compile(model)
    assert any(row["form"].startswith("int8") for row in compiled.metadata["decisions"]["layout"])


@pytest.mark.parametrize("groups", [1, 4, 16])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"pads": [1, 1, 1, 0, 2, 1]},
        {"pads": [2, 0, 1, 3, 0, 0], "strides": [2, 1, 2]},
        {"pads": [2, 2, 2, 2, 2, 2], "dilations": [2, 1, 2]},
    ],
)
def test_zero_points_of_a_run(groups: int, attributes: dict[str, Any]) -> None:
    """``ConvInteger`` whose zero point is an input of the model; depthwise ones are TVM's own kernels."""
    inputs = {"x": integers("uint8", 2, 16, 7, 6, 9), "z": integers("uint8")}
    constants = {"w": integers("int8", 32, 16 // groups, 3, 2, 3), "wz": np.array(0, "int8")}
    node = helper.make_node("ConvInteger", ["x", "w", "z", "wz"], ["y"], group=groups, **attributes)
    check_moved(made([node], inputs, constants), inputs)


@pytest.mark.parametrize("padding", [(0, 0), (1, 0), (2, 1)])
@pytest.mark.parametrize(("taps", "step", "dilation"), [(1, 1, 1), (3, 1, 1), (3, 2, 1), (2, 1, 2)])
def test_planes_that_taps_meet(taps: int, step: int, dilation: int, padding: tuple[int, int]) -> None:
    volumes = np.arange(2 * 3 * 5 * 2 * 7, dtype="uint8").reshape(2, 3, 5, 2, 7)
    padded = np.pad(volumes, [(0, 0), (0, 0), padding, (0, 0), (0, 0)], constant_values=9)
    count = (padded.shape[2] - dilation * (taps - 1) - 1) // step + 1
    expected = np.stack(
        [padded[:, :, first : first + (count - 1) * step + 1 : step] for first in range(0, taps * dilation, dilation)],
        axis=2,
    )
    data = te.placeholder(volumes.shape, "uint8")
    images = tap_planes(data, taps, step, dilation, padding, 9)
    kernel = tvm.compile(te.create_prim_func([data, images]), "llvm")
    found = tvm.runtime.tensor(np.zeros([int(extent) for extent in images.shape], "uint8"))
    kernel(tvm.runtime.tensor(volumes), found)
    np.testing.assert_array_equal(found.numpy(), expected.transpose(0, 3, 1, 2, 4, 5).reshape(found.shape))
