"""Concatenations taken apart: the same results up to rounding, for every consumer that can work part by part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from tests.memory.relax.modules import random_net, results
from tests.modules import STOCK, arguments, run
from tvm_ext.memory.relax.partial_convolution import concatenations, partial_convolutions

Array = np.ndarray
GENERATOR = np.random.default_rng(0)


def constant(*shape: int) -> Any:
    return relax.const(GENERATOR.standard_normal(shape).astype("float32"))


def net(consumer: Callable[[Any], Any], sizes: tuple[int, ...] = (3, 5, 1), axis: int = 1) -> tvm.IRModule:
    """Operands of the sizes, made by an activation each, concatenated and given to a consumer."""
    builder = relax.BlockBuilder()
    shapes = [(2, size, 6, 7) if axis == 1 else (2, 4, size) for size in sizes]
    inputs = [relax.Var(f"x{i}", relax.TensorType(shape, "float32")) for i, shape in enumerate(shapes)]
    with builder.function("main", inputs):
        with builder.dataflow():
            made = [builder.emit(relax.op.exp(value)) for value in inputs]
            joined = builder.emit(relax.op.concat(made, axis=axis))
            result = builder.emit_output(consumer(joined))
        builder.emit_func_output(result)
    return builder.get()


def operators(mod: tvm.IRModule) -> list[str]:
    return [
        binding.value.op.name.removeprefix("relax.")
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call) and hasattr(binding.value.op, "name")
    ]


def interpreted(mod: tvm.IRModule, values: list[Array]) -> list[Array]:
    return run(tvm.compile(mod, STOCK), values)


CONSUMERS: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "convolution": (
        lambda x: relax.op.nn.conv2d(x, constant(4, 9, 3, 2), (2, 1), (1, 0), (1, 2)),
        ["nn.conv2d", "nn.conv2d", "nn.conv2d", "add", "add"],
    ),
    "depthwise": (lambda x: relax.op.nn.conv2d(x, constant(9, 1, 3, 3), groups=9), ["nn.conv2d"] * 3 + ["concat"]),
    "depthwise twice": (
        lambda x: relax.op.nn.conv2d(x, constant(18, 1, 3, 3), groups=9),
        ["nn.conv2d"] * 3 + ["concat"],
    ),
    "grouped": (lambda x: relax.op.nn.conv2d(x, constant(6, 3, 3, 3), groups=3), ["concat", "nn.conv2d"]),
    "activation": (relax.op.nn.relu, ["nn.relu"] * 3 + ["concat"]),
    "clip": (lambda x: relax.op.clip(x, 1, 2), ["clip"] * 3 + ["concat"]),
    "maximum pooling": (lambda x: relax.op.nn.max_pool2d(x, (3, 3)), ["nn.max_pool2d"] * 3 + ["concat"]),
    "average pooling": (lambda x: relax.op.nn.avg_pool2d(x, (2, 2), (2, 2)), ["nn.avg_pool2d"] * 3 + ["concat"]),
    "mean": (lambda x: relax.op.mean(x, axis=[2, 3]), ["mean"] * 3 + ["concat"]),
    "mean of channels": (lambda x: relax.op.mean(x, axis=[1]), ["concat", "mean"]),
    "slice of the image": (
        lambda x: relax.op.strided_slice(x, [3, 2], [1, 0], [7, 5], [2, 1]),
        ["strided_slice"] * 3 + ["concat"],
    ),
    "slice of channels": (lambda x: relax.op.strided_slice(x, [1], [2], [7]), ["concat", "strided_slice"]),
    "bias": (lambda x: relax.op.add(x, constant(9, 1, 1)), ["add"] * 3 + ["concat"]),
    "a constant of more axes": (lambda x: relax.op.multiply(constant(3, 1, 9, 1, 1), x), ["multiply"] * 3 + ["concat"]),
    "a constant of many values and more axes": (
        lambda x: relax.op.add(relax.op.multiply(x, constant(2, 1, 1, 1, 1)), constant(9, 6, 7)),
        ["multiply"] * 3 + ["add"] * 3 + ["concat"],
    ),
    "scale": (lambda x: relax.op.divide(relax.const(np.float32(2)), x), ["divide"] * 3 + ["concat"]),
    "weights not known": (lambda x: relax.op.add(x, x), ["concat", "add"]),
}


@pytest.mark.parametrize("name", CONSUMERS)
def test_consumers(name: str) -> None:
    consumer, expected = CONSUMERS[name]
    before = relax.transform.Normalize()(net(consumer))
    (joined,) = concatenations(before["main"])
    after = partial_convolutions([joined])(before)
    assert operators(after)[3:] == expected
    values = arguments(before)
    np.testing.assert_allclose(interpreted(after, values)[0], interpreted(before, values)[0], rtol=1e-4, atol=1e-4)


def test_product() -> None:
    before = relax.transform.Normalize()(net(lambda x: relax.op.matmul(x, constant(9, 6)), axis=2))
    after = partial_convolutions(concatenations(before["main"]))(before)
    assert operators(after)[3:] == ["matmul", "matmul", "matmul", "add", "add"]
    values = arguments(before)
    np.testing.assert_allclose(interpreted(after, values)[0], interpreted(before, values)[0], rtol=1e-4, atol=1e-4)


def test_expected_module() -> None:
    """Before and after, written out."""
    weight = GENERATOR.standard_normal((2, 5, 1, 1)).astype("float32")

    def build(apart: bool) -> tvm.IRModule:
        builder = relax.BlockBuilder()
        a = relax.Var("a", relax.TensorType((1, 2, 4, 4), "float32"))
        b = relax.Var("b", relax.TensorType((1, 3, 4, 4), "float32"))
        with builder.function("main", [a, b]):
            with builder.dataflow():
                if apart:
                    left, right = (
                        builder.emit(relax.op.nn.conv2d(value, relax.const(np.ascontiguousarray(part))))
                        for value, part in ((a, weight[:, :2]), (b, weight[:, 2:]))
                    )
                    result = builder.emit_output(relax.op.tanh(builder.emit(relax.op.add(right, left))))
                else:
                    joined = builder.emit(relax.op.concat([a, b], axis=1))
                    convolved = builder.emit(relax.op.nn.conv2d(joined, relax.const(weight)))
                    result = builder.emit_output(relax.op.tanh(convolved))
            builder.emit_func_output(result)
        return builder.get()

    after = partial_convolutions(concatenations(build(False)["main"]))(build(False))
    tvm.ir.assert_structural_equal(after, build(True), map_free_vars=True)


@pytest.mark.parametrize("constant_shape", [(), (1, 4)])
def test_vectors_of_double_precision(constant_shape: tuple[int, ...]) -> None:
    """A constant with more axes than the concatenation, whose axis is then another one of the result."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", relax.TensorType((size,), "float64")) for i, size in enumerate((2, 1, 1))]
    factor = GENERATOR.standard_normal(constant_shape)
    with builder.function("main", inputs):
        with builder.dataflow():
            joined = builder.emit(relax.op.concat(inputs, axis=0))
            result = builder.emit_output(relax.op.multiply(relax.const(factor, "float64"), joined))
        builder.emit_func_output(result)
    before = builder.get()
    after = partial_convolutions(concatenations(before["main"]))(before)
    assert "multiply" in operators(after)[:3]
    values = [GENERATOR.standard_normal(size) for size in (2, 1, 1)]
    np.testing.assert_array_equal(interpreted(after, values)[0], factor * np.concatenate(values))


def test_integers_and_many_operands_are_left_alone() -> None:
    many = net(relax.op.nn.relu, (1,) * 17)
    assert concatenations(many["main"]) == []


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 10**6))
def test_random_nets_with_everything_taken_apart(seed: int) -> None:
    before = random_net(seed)
    after = partial_convolutions(concatenations(before["main"]))(before)
    values = arguments(before, seed)
    for left, right in zip(results(after, values), results(before, values), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-3, atol=1e-3)
