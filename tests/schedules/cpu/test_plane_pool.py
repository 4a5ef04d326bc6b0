"""Poolings of plain tensors, which join rows first, against onnxruntime and PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import torch
import tvm
from tvm import relax

import tvm_ext
from tests.schedules.kernels import TARGETS, graph, lower
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.schedules.cpu import RULES
from tvm_ext.schedules.cpu.plane_pool import PlanePool


def words(values: Sequence[int]) -> str:
    return f"[{','.join(map(str, values))}]"


def agrees(shape: Sequence[int], node: str, behind: str = "") -> None:
    """Compare a pooling, alone or with what is behind it, with onnxruntime's."""
    text = f'<ir_version: 9, opset_import: ["": 19]> g (float{words(shape)} x) => (y) {{ {node} {behind} }}'
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="a schedule rule failed")
        compiled = tvm_ext.compile(model, native_target())
    (found,) = compiled.run({"x": x}).values()
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("width", [9, 17, 31, 33, 65])
@pytest.mark.parametrize(
    "attributes",
    [
        "kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]",
        "kernel_shape=[3,3]",
        "kernel_shape=[2,2], strides=[2,2]",
        "kernel_shape=[2,3], strides=[2,3], pads=[1,0,0,2], ceil_mode=1",
        "kernel_shape=[1,3], pads=[0,1,0,1]",
        "kernel_shape=[3,1], strides=[1,2]",
        "kernel_shape=[2,2], dilations=[2,3], pads=[1,1,1,1]",
    ],
)
def test_planes(attributes: str, width: int, kind: str) -> None:
    agrees((2, 3, 7, width), f"y = {kind}<{attributes}>(x)")


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize("ceil", [0, 1])
def test_averages_count_padding_or_not(ceil: int, include: int) -> None:
    attributes = f"kernel_shape=[3,4], strides=[2,2], pads=[1,2,1,1], ceil_mode={ceil}, count_include_pad={include}"
    agrees((1, 5, 10, 23), f"y = AveragePool<{attributes}>(x)")


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("shape", [(1, 3, 5, 6, 33), (2, 16, 1, 7, 17)])
def test_volumes(shape: tuple[int, ...], kind: str) -> None:
    agrees(shape, f"y = {kind}<kernel_shape=[3,3,3], strides=[2,2,2], pads=[1,1,1,1,1,1]>(x)")


def test_more_taps_and_vectors_than_are_written_out() -> None:
    agrees((1, 2, 13, 131), "y = MaxPool<kernel_shape=[13,11], pads=[6,5,6,5]>(x)")
    agrees((1, 2, 13, 131), "y = AveragePool<kernel_shape=[13,11], pads=[6,5,6,5]>(x)")


def test_what_is_behind_is_computed_with_it() -> None:
    pool = "a = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x)"
    agrees((1, 3, 33, 35), pool, "b = Relu(a) y = Add(b, b)")
    agrees((1, 3, 33, 35), pool, "y = Softmax<axis=-1>(a)")


def test_many_channels_before_a_convolution() -> None:
    pool = "a = AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x)"
    agrees((1, 33, 33, 35), pool, "y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(a)")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
def test_the_rule_takes_it_and_nan_reaches_every_window_that_holds_it(strides: tuple[int, int], target: str) -> None:
    x = np.random.default_rng(1).standard_normal((1, 3, 19, 37)).astype("float32")
    x[0, 0, 0, 0] = x[0, 1, 9, 17] = x[0, 2, 18, 36] = np.nan
    x[0, 1, 3] = -np.inf
    build = graph(lambda _, v: relax.op.nn.max_pool2d(v, (3, 3), strides, (1, 1, 1, 1)), [(x.shape, "float32")])
    compiled = lower(build, TARGETS[target], RULES)
    assert set(compiled.rules.values()) == {PlanePool.name}
    expected = torch.nn.functional.max_pool2d(torch.from_numpy(x), 3, strides, 1).numpy()
    assert np.isnan(expected).any()
    machine = relax.VirtualMachine(tvm.compile(build, TARGETS[target], relax_pipeline="tvm_ext"), tvm.cpu())
    np.testing.assert_array_equal(machine["main"](tvm.runtime.tensor(x)).numpy(), expected)
