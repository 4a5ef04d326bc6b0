"""Reductions over infinities, and over extents that may be zero when the module runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})


@I.ir_module
class Symbolic:
    @R.function
    def main(x: R.Tensor(("n", 5), "float32"), w: R.Tensor((5, 7), "float32")):
        _n = T.int64()
        with R.dataflow():
            a = R.matmul(x, w)
            b = R.nn.softmax(a, axis=-1)
            c = R.sum(b, axis=0)
            d = R.max(a, axis=0)
            e = R.matmul(R.permute_dims(a), b)
            f = R.sum(a)
            R.output(c, d, e, f)
        return (c, d, e, f)


def run(mod: tvm.IRModule, *arguments: np.ndarray) -> list[np.ndarray]:
    machine = relax.VirtualMachine(tvm.compile(mod, TARGET, relax_pipeline="tvm_ext"), tvm.cpu())
    results = machine["main"](*map(tvm.runtime.tensor, arguments))
    return [item.numpy() for item in results]


def test_symbolic_extents_of_nothing() -> None:
    generator = np.random.default_rng(0)
    machine = relax.VirtualMachine(tvm.compile(Symbolic, TARGET, relax_pipeline="tvm_ext"), tvm.cpu())
    w = generator.standard_normal((5, 7)).astype("float32")
    for n in (0, 1, 33, 0):
        x = generator.standard_normal((n, 5)).astype("float32")
        a = x @ w
        b = np.exp(a) / np.exp(a).sum(axis=1, keepdims=True)
        expected = (b.sum(0), a.max(0, initial=-np.inf), a.T @ b, a.sum())
        results = [item.numpy() for item in machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(w))]
        for result, values in zip(results, expected, strict=True):
            np.testing.assert_allclose(result, values, rtol=1e-4, atol=1e-5)


def reductions(shape: tuple[int, ...], dtype: str, axis: int) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            results = [builder.emit_output(operator(x, axis=axis)) for operator in (relax.op.max, relax.op.min)]
        builder.emit_func_output(relax.Tuple(results))
    return builder.get()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
@pytest.mark.parametrize(("shape", "axis"), [((3, 17), 1), ((17, 3), 0), ((4, 33, 5), 1), ((2, 1), 1)])
def test_extremes(shape: tuple[int, ...], axis: int, dtype: str) -> None:
    limits: Any = np.finfo(dtype) if "float" in dtype else np.iinfo(dtype)
    infinite = "float" in dtype
    for value in (limits.max, limits.min, *((np.inf, -np.inf) if infinite else ())):
        x = np.full(shape, value, dtype)
        largest, smallest = run(reductions(shape, dtype, axis), x)
        np.testing.assert_array_equal(largest, x.max(axis))
        np.testing.assert_array_equal(smallest, x.min(axis))


@pytest.mark.parametrize("channels", [3, 16])
def test_pooling_of_infinities(channels: int) -> None:
    x = relax.Var("x", relax.TensorType((1, channels, 7, 9), "float32"))
    builder = relax.BlockBuilder()
    weight = relax.const(np.zeros((channels, channels, 1, 1), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            convolved = builder.emit(relax.op.log(relax.op.nn.conv2d(x, weight)))  # minus infinity, in a blocked layout
            pooled = [
                builder.emit_output(relax.op.nn.max_pool2d(data, (3, 3), (2, 2), (1, 1, 1, 1)))
                for data in (relax.op.log(relax.op.nn.relu(x)), convolved)
            ]
        builder.emit_func_output(relax.Tuple(pooled))
    for result in run(builder.get(), np.full((1, channels, 7, 9), -1, "float32")):
        np.testing.assert_array_equal(result, np.full(result.shape, -np.inf))


@pytest.mark.parametrize("operator", [relax.op.argmax, relax.op.argmin])
@pytest.mark.parametrize("extent", [1, 5, 37])
def test_the_place_of_an_extreme_is_a_place(operator: Any, extent: int) -> None:
    """Where all values are the infinity that nothing is larger than, TVM's own kernels give -1."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, extent), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(operator(x, axis=1))
        builder.emit_func_output(result)
    values = np.random.default_rng(0).standard_normal((4, extent)).astype("float32")
    values[0], values[1], values[2, -1] = -np.inf, np.inf, np.inf
    machine = relax.VirtualMachine(tvm.compile(builder.get(), TARGET, relax_pipeline="tvm_ext"), tvm.cpu())
    expected = (np.argmax if operator is relax.op.argmax else np.argmin)(values, axis=1)
    np.testing.assert_array_equal(machine["main"](tvm.runtime.tensor(values)).numpy(), expected)
