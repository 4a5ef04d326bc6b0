"""Depthwise convolutions between kernels of planes: which they are, shuffles that they read, and their values."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

import tvm_ext
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.errors import GraphError
from tvm_ext.layout.convolution_plan import ConvolutionShape
from tvm_ext.layout.plane_plan import PlanePlan, Shuffle, channels_read, plan_planes, shuffle_of, verify_planes
from tvm_ext.layout.relax.plane_depthwise import planes
from tvm_ext.schedules.cpu.machine import machine_of

SHUFFLED = Shuffle((2, 3), (1, 0))


def shape_of(channels: int, extents: tuple[int, int], taps: int = 3, **fields: Any) -> ConvolutionShape:
    geometry = {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1)} | fields
    return ConvolutionShape(1, channels, channels, channels, extents, (taps, taps), **geometry)


def network(
    shape: tuple[int, ...], weight: np.ndarray, padding: list[int], shuffle: Shuffle, more: str = ""
) -> tvm.IRModule:
    """Build a shuffle, a depthwise convolution, and something behind it."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    batch, channels, *image = shape
    with builder.function("main", [x]):
        with builder.dataflow():
            y: Any = x
            if more == "blocked before":
                eye = np.eye(channels, dtype="float32")[:, :, None, None]
                y = builder.emit(relax.op.nn.conv2d(y, relax.const(eye)))
            if shuffle.factors:
                order = [0, *(1 + axis for axis in shuffle.order)]
                order += range(len(order), len(order) + 2)
                y = builder.emit(relax.op.reshape(y, (batch, *shuffle.factors, *image)))
                y = builder.emit(relax.op.permute_dims(y, order))
                y = builder.emit(relax.op.reshape(y, shape))
            read = y
            y = builder.emit(relax.op.nn.conv2d(y, relax.const(weight), padding=padding, groups=channels))
            if more == "arithmetic":
                bias = np.arange(channels, dtype="float32").reshape(-1, 1, 1)
                y = builder.emit(relax.op.nn.relu(builder.emit(relax.op.add(y, relax.const(bias)))))
            if more == "blocked behind":
                eye = np.eye(channels, dtype="float32")[:, :, None, None]
                y = builder.emit(relax.op.nn.conv2d(y, relax.const(eye)))
            outs = [builder.emit_output(relax.op.negative(y))]
            if more == "read twice":
                outs.append(builder.emit_output(relax.op.exp(read)))
        builder.emit_func_output(relax.Tuple(outs))
    return builder.get()


def convolved(data: np.ndarray, weight: np.ndarray, padding: list[int]) -> np.ndarray:
    top, left, bottom, right = padding
    padded = np.pad(data, ((0, 0), (0, 0), (top, bottom), (left, right)))
    views = np.lib.stride_tricks.sliding_window_view(padded, weight.shape[2:], axis=(2, 3))
    return np.einsum("nchwij,cij->nchw", views, weight[:, 0])


def run(mod: tvm.IRModule, data: np.ndarray, **options: Any) -> list[np.ndarray]:
    return [np.asarray(item) for item in tvm_ext.compile(mod, **options).run([data]).values()]


def is_plane(mod: tvm.IRModule) -> bool:
    with native_target():
        found = planes()(mod)
    return any("plane_depthwise" in variable.name_hint for variable in found.functions)


CASES = [  # channels, rows, columns, taps, padding, shuffle
    (6, 7, 7, 3, [1, 1, 1, 1], SHUFFLED), (6, 5, 17, 3, [0, 2, 1, 0], SHUFFLED),
    (1, 33, 31, 3, [1, 1, 1, 1], Shuffle()), (17, 4, 4, 1, [0, 0, 0, 0], Shuffle()),
    (30, 13, 14, 5, [2, 2, 2, 2], Shuffle((2, 3, 5), (2, 0, 1))), (8, 127, 9, 3, [1, 1, 1, 1], Shuffle((4, 2), (1, 0))),
    (3, 9, 65, 7, [3, 3, 3, 3], Shuffle()),
]  # fmt: skip


@pytest.mark.parametrize(("channels", "rows", "columns", "taps", "padding", "shuffle"), CASES)
@pytest.mark.parametrize("more", ["", "arithmetic", "read twice"])
def test_values(
    channels: int, rows: int, columns: int, taps: int, padding: list[int], shuffle: Shuffle, more: str
) -> None:
    rng = np.random.default_rng(channels)
    data = rng.integers(-4, 5, (2, channels, rows, columns)).astype("float32")
    data[0, 0, 0, 0] = np.nan
    data[1, -1, -1, -1] = np.inf
    weight = rng.integers(1, 5, (channels, 1, taps, taps)).astype("float32")
    shuffled = data[:, channels_read(shuffle)] if shuffle.factors else data
    wanted = convolved(shuffled, weight, padding)
    if more == "arithmetic":
        wanted = np.maximum(wanted + np.arange(channels, dtype="float32").reshape(-1, 1, 1), 0)
    found = run(network(data.shape, weight, padding, shuffle, more), data)
    np.testing.assert_array_equal(found[0], -wanted)
    if more == "read twice":
        np.testing.assert_allclose(found[1], np.exp(shuffled), rtol=1e-6)


@pytest.mark.parametrize(
    ("more", "wanted"),
    [("", True), ("arithmetic", True), ("blocked before", False), ("blocked behind", False), ("read twice", True)],
)
def test_planes_stay_between_planes_only(more: str, wanted: bool) -> None:
    weight = np.ones((6, 1, 3, 3), "float32")
    assert is_plane(network((1, 6, 9, 9), weight, [1, 1, 1, 1], SHUFFLED, more)) == (wanted and native_lanes() >= 4)


def native_lanes() -> int:
    return machine_of(native_target()).lanes("float32")


def test_without_prologues_nothing_is_shuffled_inside() -> None:
    rng = np.random.default_rng(0)
    data = rng.standard_normal((1, 6, 9, 9), "float32")
    mod = network(data.shape, rng.standard_normal((6, 1, 3, 3), "float32"), [1, 1, 1, 1], SHUFFLED)
    np.testing.assert_allclose(run(mod, data)[0], run(mod, data, prologues=False)[0], rtol=1e-5, atol=1e-5)


@settings(max_examples=12)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=3), st.integers(1, 9), st.integers(4, 21), st.data())
def test_any_shuffle(factors: list[int], rows: int, columns: int, drawn: st.DataObject) -> None:
    order = drawn.draw(st.permutations(range(len(factors))))
    shuffle, channels = Shuffle(tuple(factors), tuple(order)), int(np.prod(factors))
    if channels == 1:
        return
    rng = np.random.default_rng(channels)
    data = rng.integers(-4, 5, (1, channels, rows, columns)).astype("float32")
    weight = rng.integers(-4, 5, (channels, 1, 3, 3)).astype("float32")
    array = data.reshape(1, *factors, rows, columns)
    turned = array.transpose(0, *(1 + axis for axis in order), len(factors) + 1, len(factors) + 2).reshape(data.shape)
    np.testing.assert_array_equal(data[:, channels_read(shuffle)], turned)
    found = run(network(data.shape, weight, [1, 1, 1, 1], shuffle), data)
    np.testing.assert_array_equal(found[0], -convolved(turned, weight, [1, 1, 1, 1]))


def test_what_is_no_shuffle() -> None:
    assert shuffle_of((1, 6, 5, 5), (1, 2, 3, 5, 5), (0, 2, 1, 3, 4)) == SHUFFLED
    assert shuffle_of((1, 6, 5, 5), (1, 2, 3, 5, 5), (0, 1, 2, 4, 3)) is None  # rows and columns
    assert shuffle_of((2, 6, 5, 5), (1, 4, 3, 5, 5), (0, 2, 1, 3, 4)) is None  # images
    assert shuffle_of((1, 6, 4, 4), (1, 6, 2, 2, 4), (0, 2, 1, 3, 4)) is None
    assert shuffle_of((1, 6, 4, 4), (1, 6, 4, 4), (0, 1, 2, 3)) is None


def test_plans() -> None:
    machine = machine_of(tvm.target.Target({"kind": "llvm", "mcpu": "znver5"}))
    assert plan_planes(shape_of(6, (7, 7)), Shuffle(), machine) == PlanePlan(8, 8)
    assert plan_planes(shape_of(6, (28, 28)), SHUFFLED, machine) == PlanePlan(16, 32, SHUFFLED)
    for extents, fields in itertools.product([(7, 7)], [{"strides": (2, 2)}, {"dilation": (2, 2)}]):
        assert plan_planes(shape_of(6, extents, **fields), Shuffle(), machine) is None
    assert plan_planes(shape_of(6, (7, 3)), Shuffle(), machine) is None
    assert plan_planes(shape_of(6, (14, 14), 5, padding=(2, 2, 2, 2)), Shuffle(), machine) is not None
    assert plan_planes(shape_of(6, (28, 28), 5, padding=(2, 2, 2, 2)), Shuffle(), machine) is None


@pytest.mark.parametrize(
    "plan",
    [PlanePlan(8, 16), PlanePlan(4, 4), PlanePlan(8, 8, Shuffle((2, 2), (1, 0))), PlanePlan(8, 8, Shuffle((6,), ()))],
)
def test_wrong_plans_are_refused(plan: PlanePlan) -> None:
    with pytest.raises(GraphError, match="planes"):
        verify_planes(plan, shape_of(6, (7, 7)))
