"""Batch normalisation folds into convolutions, and means the same afterwards."""

import warnings

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.modules import STOCK
from tvm_ext.passes.fold_batch_norm import fold_batch_norm

GENERATOR = np.random.default_rng(0)
CHANNELS = 5


def const(*shape: int, dtype: str) -> relax.Expr:
    return relax.const(GENERATOR.uniform(0.5, 1.5, shape).astype(dtype), dtype)


def module(
    dtype: str, bias: bool, twice: bool = False, axis: int = 1, convolution: bool = True, flat: bool = False
) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((2, CHANNELS, 6, CHANNELS), dtype))
    with builder.function("main", [data]):
        with builder.dataflow():
            value: relax.Expr = data
            if convolution:
                value = builder.emit(relax.op.nn.conv2d(value, const(CHANNELS, CHANNELS, 3, 3, dtype=dtype), 1, 1))
            if bias and flat:
                reshaped = builder.emit(relax.op.reshape(const(CHANNELS, dtype=dtype), (1, CHANNELS, 1, 1)))
                value = builder.emit(relax.op.add(value, reshaped))
            elif bias:
                value = builder.emit(relax.op.add(value, const(1, CHANNELS, 1, 1, dtype=dtype)))
            statistics = [const(CHANNELS, dtype=dtype) for _ in range(4)]
            normal = builder.emit(relax.op.nn.batch_norm(value, *statistics, axis=axis, training=False))
            result = builder.emit(relax.TupleGetItem(normal, 0))
            if twice:
                result = builder.emit(relax.op.add(result, value))
            output = builder.emit_output(result)
        builder.emit_func_output(output)
    return builder.get()


def operators(mod: tvm.IRModule) -> list[str]:
    return [
        binding.value.op.name
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    ]


def run(mod: tvm.IRModule, dtype: str) -> np.ndarray:
    data = np.random.default_rng(1).standard_normal((2, CHANNELS, 6, CHANNELS)).astype(dtype)
    machine = relax.VirtualMachine(tvm.compile(mod, STOCK), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(data)).numpy()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("dtype", "twice"),
    [("float32", False), ("float32", True), ("float64", False), ("float64", True), ("float16", False)],
)
def test_meaning(dtype: str, bias: bool, twice: bool) -> None:
    before = module(dtype, bias, twice)
    after = relax.transform.DeadCodeElimination()(fold_batch_norm()(before))
    assert "relax.nn.batch_norm" not in operators(after)
    if not twice:
        assert operators(after) == ["relax.nn.conv2d", "relax.add"]
    tolerance = {"float16": 2e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(run(after, dtype), run(before, dtype), rtol=tolerance, atol=tolerance)


def test_bias_in_the_shape_of_importers() -> None:
    """A bias of one axis is reshaped; it is no constant itself."""
    mod = module("float32", True, flat=True)
    folded = relax.transform.DeadCodeElimination()(fold_batch_norm()(mod))
    assert operators(folded) == ["relax.nn.conv2d", "relax.add"]
    np.testing.assert_allclose(run(folded, "float32"), run(mod, "float32"), rtol=1e-4, atol=1e-4)


def test_negative_variances_are_no_warnings() -> None:
    """Channels become NaN then, as they do while a model runs."""
    data = relax.Var("data", relax.TensorType((1, 3, 2, 2), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [data]):
        with builder.dataflow():
            variance = relax.const(np.float32([-1, 1, 1e38]))
            ones = relax.const(np.float32([1, 3e38, 1]))
            normal = builder.emit(relax.op.nn.batch_norm(data, ones, ones, ones, variance, axis=1, training=False))
            output = builder.emit_output(relax.TupleGetItem(normal, 0))
        builder.emit_func_output(output)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        after = fold_batch_norm()(builder.get())
    machine = relax.VirtualMachine(tvm.compile(after, STOCK), tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(np.zeros((1, 3, 2, 2), "float32"))).numpy()
    np.testing.assert_array_equal(np.isnan(found).all(axis=(0, 2, 3)), [True, False, False])


@pytest.mark.parametrize("axis", [1, 3])
def test_without_convolution(axis: int) -> None:
    before = module("float32", bias=False, axis=axis, convolution=False)
    after = relax.transform.DeadCodeElimination()(fold_batch_norm()(before))
    assert operators(after) == ["relax.multiply", "relax.add"]
    np.testing.assert_allclose(run(after, "float32"), run(before, "float32"), rtol=1e-5, atol=1e-5)


def test_computed_statistics() -> None:
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((2, CHANNELS, 6, CHANNELS), "float32"))
    statistics = [relax.Var(name, relax.TensorType((CHANNELS,), "float32")) for name in ("g", "b", "m", "v")]
    with builder.function("main", [data, *statistics]):
        with builder.dataflow():
            normal = builder.emit(relax.op.nn.batch_norm(data, *statistics, axis=1, training=False))
            output = builder.emit_output(relax.TupleGetItem(normal, 0))
        builder.emit_func_output(output)
    before = builder.get()
    after = relax.transform.DeadCodeElimination()(fold_batch_norm()(before))
    assert "relax.nn.batch_norm" not in operators(after)
    arrays = [
        GENERATOR.uniform(0.5, 1.5, shape).astype("float32")
        for shape in [(2, CHANNELS, 6, CHANNELS)] + [(CHANNELS,)] * 4
    ]
    results = [
        relax.VirtualMachine(tvm.compile(mod, STOCK), tvm.cpu())["main"](*map(tvm.runtime.tensor, arrays)).numpy()
        for mod in (before, after)
    ]
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-5)


def test_training_mode_is_left_alone() -> None:
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((2, CHANNELS, 6, CHANNELS), "float32"))
    with builder.function("main", [data]):
        with builder.dataflow():
            statistics = [const(CHANNELS, dtype="float32") for _ in range(4)]
            normal = builder.emit(relax.op.nn.batch_norm(data, *statistics, axis=1, training=True))
            output = builder.emit_output(relax.TupleGetItem(normal, 0))
        builder.emit_func_output(output)
    before = builder.get()
    tvm.ir.assert_structural_equal(fold_batch_norm()(before), before)
