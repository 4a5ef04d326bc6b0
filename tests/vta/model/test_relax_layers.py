"""Which operators are layers, what belongs to one, and why others are none."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.vta.model.test_offload import Emitter
from tvm_ext.backends.vta.model.relax_layers import ModelGraph, read_graph


def graph_of(body: Callable[[Emitter, Any], Any], shape: tuple[int, ...] = (1, 16, 8, 8), batch: int = 1) -> ModelGraph:
    return read_graph(Emitter().module(shape, body)["main"], batch)


def only(graph: ModelGraph) -> Any:
    (layer,) = graph.layers
    return layer


def test_a_layer_takes_what_follows_until_it_is_clipped() -> None:
    def body(e: Emitter, x: Any) -> Any:
        total = e.emit(relax.op.add(x, e.conv(x, 16)))
        return e.emit(relax.op.clip(total, -1, 6))

    layer = only(graph_of(body))
    assert len(layer.covers) == 4
    assert (layer.residual, layer.low, layer.high) == ("x", -1, 6)
    assert layer.bias.any()


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ([None, None], (0, np.inf)),
        ([None, (-1, 6)], (0, 6)),
        ([(-1, 6), None], (0, 6)),
        ([(-3, 2), (1, 4), (0, 9)], (1, 2)),
        ([(-3, -2), None], (0, 0)),
    ],
)
def test_bounds_one_after_the_other_are_one(
    bounds: list[tuple[float, float] | None], expected: tuple[float, float]
) -> None:
    """`relu(relu(x))` parted a region; the second one ran on the CPU."""

    def body(e: Emitter, x: Any) -> Any:
        total = e.conv(x, 16)
        for bound in bounds:
            total = e.relu(total) if bound is None else e.emit(relax.op.clip(total, *bound))
        return e.conv(total, 16, 1)

    first, second = graph_of(body).layers
    assert (first.low, first.high) == expected
    assert second.data == first.name


def test_factors_of_channels_belong_to_the_weights() -> None:
    factors = np.linspace(-1, 2, 16, dtype=np.float32).reshape(16, 1, 1)

    def body(e: Emitter, x: Any) -> Any:
        scaled = e.emit(relax.op.multiply(relax.const(factors), e.conv(x, 16)))
        return e.relu(e.emit(relax.op.add(scaled, relax.const(factors))))

    def plain(e: Emitter, x: Any) -> Any:
        return e.conv(x, 16)

    layer, without = only(graph_of(body)), only(graph_of(plain))
    assert (len(layer.covers), layer.low) == (5, 0)
    np.testing.assert_allclose(layer.weights, without.weights * factors[:, None], rtol=1e-6)
    np.testing.assert_allclose(layer.bias, (without.bias + 1) * factors[:, 0, 0], rtol=1e-5, atol=1e-6)


def test_factors_after_a_sum_or_a_bound_are_a_layer_of_their_own() -> None:
    """As those of a batch norm before its convolution are."""
    factors = np.linspace(-1, 2, 16, dtype=np.float32).reshape(16, 1, 1)

    def body(e: Emitter, x: Any) -> Any:
        total = e.emit(relax.op.add(e.conv(x, 16), x))
        scaled = e.emit(relax.op.multiply(total, relax.const(factors)))
        return e.relu(e.emit(relax.op.add(scaled, relax.const(np.float32(0.5)))))

    first, second = graph_of(body).layers
    assert (first.residual, second.operator, second.groups, second.low) == ("x", "scale", 16, 0)
    np.testing.assert_array_equal(second.weights.reshape(-1), factors.reshape(-1))
    np.testing.assert_array_equal(second.bias, np.full(16, 0.5))


@pytest.mark.parametrize(
    "other",
    [np.ones((1, 16, 8, 8)), np.linspace(0, 1, 8), np.full(1, np.inf), np.full((16, 1, 1), np.nan)],
    ids=["values of places", "of columns", "infinite", "nan"],
)
def test_other_factors_are_none(other: np.ndarray) -> None:
    def body(e: Emitter, x: Any) -> Any:
        return e.emit(relax.op.multiply(x, relax.const(other.astype(np.float32))))

    assert not graph_of(body).layers


def test_a_second_residual_is_a_layer_of_its_own() -> None:
    def body(e: Emitter, x: Any) -> Any:
        total = e.emit(relax.op.add(e.conv(x, 16), x))
        return e.emit(relax.op.add(total, x))

    first, second = graph_of(body).layers
    assert (first.operator, first.residual) == ("conv2d", "x")
    assert (second.operator, second.data, second.residual) == ("add", first.name, "x")
    np.testing.assert_array_equal(second.weights, np.ones((16, 1, 1, 1)))


def test_what_others_read_is_not_covered() -> None:
    """The sum before the ReLU leaves the function, so that it must be stored."""

    def body(e: Emitter, x: Any) -> Any:
        total = e.conv(x, 16)
        return [total, e.relu(total)]

    graph = graph_of(body)
    assert only(graph).low == -np.inf
    assert len(graph.nodes) == 2 or graph.nodes[-1].layer is None


def test_of_two_branches_one_adds_the_other() -> None:
    def body(e: Emitter, x: Any) -> Any:
        return e.relu(e.emit(relax.op.add(e.conv(x, 16), e.conv(x, 16, 1))))

    first, second = graph_of(body).layers
    assert second.residual == first.name or first.residual == second.name
    assert [node.name for node in graph_of(body).nodes if node.layer] == [first.name, second.name]


def test_matrices_after_pictures_are_convolutions_with_large_windows() -> None:
    def body(e: Emitter, x: Any) -> Any:
        return e.emit(relax.op.matmul(e.emit(relax.op.reshape(x, (1, 16 * 6))), e.constant(96, 10)))

    layer = only(graph_of(body, (1, 16, 2, 3)))
    assert (layer.kernel, layer.across, layer.in_shape) == (2, (3, 1, 0), (1, 16, 2, 3))
    more_rows = graph_of(
        lambda e, x: e.emit(relax.op.matmul(e.emit(relax.op.reshape(x, (4, 96))), e.constant(96, 10))), (4, 16, 2, 3)
    )
    assert only(more_rows).in_shape == (1, 96, 1, 4)


def conv(**fields: Any) -> Callable[[Emitter, Any], Any]:
    shape = fields.pop("weights", (16, 16, 3, 3))
    return lambda e, x: e.emit(relax.op.nn.conv2d(x, e.constant(*shape), **fields))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (conv(dilation=2), "dilation is 2"),
        (conv(padding=(0, 1, 1, 1)), r"padding is \[0, 1, 1, 1\]; VTA's is the same on both sides"),
        (conv(padding=3), "padding is 3; expected less than the window, 3"),
        (conv(weights=(16, 3, 3, 8), data_layout="NHWC", kernel_layout="OHWI"), "layout NHWC"),
        (lambda e, x: e.emit(relax.op.nn.conv2d(x, e.emit(relax.op.reshape(x, (4, 16, 4, 4))))), "not constant"),
        (lambda e, x: e.emit(relax.op.matmul(x, x)), "right operand is not a constant matrix"),
        (lambda e, x: e.emit(relax.op.matmul(x, e.constant(8, 8))), "four dimensions"),
        (
            lambda e, x: e.emit(relax.op.nn.conv2d_transpose(x, e.constant(16, 8, 2, 2), strides=3)),
            "window is smaller than its stride",
        ),
    ],
)
def test_why_an_operator_is_no_layer(body: Callable[[Emitter, Any], Any], reason: str) -> None:
    graph = graph_of(body)
    assert not graph.layers
    (found,) = graph.refused.values()
    assert re.search(reason, found), found


def test_padded_maxima_need_inputs_that_are_not_negative() -> None:
    def pool(before: Callable[[Emitter, Any], Any]) -> Callable[[Emitter, Any], Any]:
        return lambda e, x: e.emit(relax.op.nn.max_pool2d(before(e, x), (3, 3), (2, 2), (1, 1, 1, 1)))

    assert not graph_of(pool(lambda e, x: x)).layers
    assert only(graph_of(pool(lambda e, x: e.relu(x)))).kind == "max_pool2d"
    assert only(graph_of(pool(lambda e, x: e.emit(relax.op.clip(x, 0, 6))))).kind == "max_pool2d"
    assert not graph_of(pool(lambda e, x: e.emit(relax.op.clip(x, -1, 6)))).layers


def test_functions_with_branches_have_no_layers() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 16, 8, 8), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.nn.relu(x)))
    graph = read_graph(builder.get()["main"], 1)
    assert not graph.nodes
    assert not graph.layers


def test_half_precision_is_refused_with_its_dtype() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 4, 4, 4), "float16"))
    weights = relax.const(np.ones((4, 4, 1, 1), np.float16))
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(builder.emit(relax.op.nn.conv2d(x, weights)))
        builder.emit_func_output(output)
    mod: tvm.IRModule = builder.get()
    assert "dtype float16" in next(iter(read_graph(mod["main"], 1).refused.values()))
