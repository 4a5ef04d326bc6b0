"""Tensors without elements give what NumPy says, through the whole pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

import tvm_ext

GENERATOR = np.random.default_rng(0)


def values(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype("float32")


def constant(*shape: int) -> relax.Expr:
    return relax.const(values(*shape))


def convolutions(x: relax.Expr) -> relax.Expr:
    hidden = op.nn.relu(op.nn.conv2d(x, constant(8, 3, 3, 3), padding=1))
    return op.nn.max_pool2d(op.nn.conv2d(hidden, constant(8, 8, 3, 3), padding=1), (2, 2))


# name: (operator, arguments, expected)
CASES: dict[str, tuple[Callable[..., Any], list[np.ndarray], Any]] = {
    "sum": (lambda x: op.sum(x, axis=0), [values(0, 3)], np.zeros(3)),
    "sum_all": (op.sum, [values(0, 3)], np.zeros(())),
    "sum_keepdims": (lambda x: op.sum(x, axis=1, keepdims=True), [values(4, 0)], np.zeros((4, 1))),
    "mean": (lambda x: op.mean(x, axis=1), [values(4, 0)], np.full(4, np.nan)),
    "variance": (lambda x: op.variance(x, axis=1), [values(4, 0)], np.full(4, np.nan)),
    "max": (lambda x: op.max(x, axis=1), [values(4, 0)], np.full(4, -np.inf)),
    "min": (lambda x: op.min(x, axis=1), [values(4, 0)], np.full(4, np.inf)),
    "max_int": (lambda x: op.max(x, axis=1), [np.zeros((2, 0), "int32")], np.full(2, -(2**31))),
    "prod": (lambda x: op.prod(x, axis=1), [values(4, 0)], np.ones(4)),
    "product_k": (op.matmul, [values(4, 0), values(0, 5)], np.zeros((4, 5))),
    "product_m": (op.matmul, [values(0, 3), values(3, 5)], np.zeros((0, 5))),
    "batched_product": (op.matmul, [values(2, 4, 0), values(2, 0, 5)], np.zeros((2, 4, 5))),
    "concat": (lambda x, y: op.concat((x, y), axis=0), [values(0, 3), np.ones((2, 3), "float32")], np.ones((2, 3))),
    "concat_nothing": (lambda x, y: op.concat((x, y), axis=0), [values(0, 3), values(0, 3)], np.zeros((0, 3))),
    "element_wise": (lambda x: op.nn.relu(op.exp(x)), [values(0, 3)], np.zeros((0, 3))),
    "broadcast": (op.add, [values(0, 3), values(1, 3)], np.zeros((0, 3))),
    "softmax": (lambda x: op.nn.softmax(x, axis=1), [values(4, 0)], np.zeros((4, 0))),
    "layer_norm": (
        lambda x: op.nn.layer_norm(x, constant(4), constant(4), axes=[-1]),
        [values(0, 4)],
        np.zeros((0, 4)),
    ),
    "pad": (lambda x: op.nn.pad(x, [1, 1, 0, 0], pad_value=2.0), [values(0, 3)], np.full((2, 3), 2.0)),
    "convolutions": (convolutions, [values(0, 3, 8, 8)], np.zeros((0, 8, 7, 7))),
    "transpose": (lambda x: op.permute_dims(x, [2, 1, 0]), [values(0, 3, 8)], np.zeros((8, 3, 0))),
    "reshape": (lambda x: op.reshape(x, (0, 24)), [values(0, 3, 8)], np.zeros((0, 24))),
    "take": (lambda x, i: op.take(x, i, axis=0), [values(5, 3), np.zeros(0, "int64")], np.zeros((0, 3))),
    "sliced_sum": (lambda x: op.sum(op.strided_slice(x, [0], [2], [2]), axis=0), [values(5, 3)], np.zeros(3)),
    "argmax": (lambda x: op.argmax(x, axis=1), [values(0, 3)], np.zeros(0)),
    "top": (lambda x: op.topk(x, k=2, axis=1)[0], [values(0, 3)], np.zeros((0, 2))),
}


def build(operator: Callable[..., Any], arguments: list[np.ndarray]) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    types = [relax.TensorType(array.shape, str(array.dtype)) for array in arguments]
    parameters = [relax.Var(f"x{index}", kind) for index, kind in enumerate(types)]
    with builder.function("main", parameters):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(operator(*parameters)))
        builder.emit_func_output(result)
    return builder.get()


def run(mod: tvm.IRModule, arguments: list[np.ndarray], **options: Any) -> np.ndarray:
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
    executable = tvm.compile(mod, target, relax_pipeline=relax.get_pipeline("tvm_ext", **options))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arguments)).numpy()


@pytest.mark.parametrize("name", CASES)
def test_static(name: str) -> None:
    operator, arguments, expected = CASES[name]
    result = run(build(operator, arguments), arguments, memory=("stock", "arena", "optimal")[len(name) % 3])
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result, expected)


def test_an_empty_weight() -> None:
    empty = relax.const(np.zeros((0, 3), "float32"))
    x = values(2, 3)
    result = run(build(lambda value: op.concat((op.exp(empty), op.tanh(value)), axis=0), [x]), [x])
    np.testing.assert_allclose(result, np.tanh(x), rtol=1e-5)


def test_views_of_an_open_batch_of_nothing() -> None:
    batch = tvm.tirx.Var("n", "int64")
    x, builder = relax.Var("x", relax.TensorType((batch, 2, 2, 0), "float32")), relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(op.squeeze(builder.emit(op.expand_dims(x, [1, 5])), [5]))
        builder.emit_func_output(result)
    (found,) = tvm_ext.compile(builder.get()).run([np.zeros((3, 2, 2, 0), "float32")]).values()
    assert found.shape == (3, 1, 2, 2, 0)


def run_open(operator: Callable[[relax.BlockBuilder, relax.Expr, Any], relax.Expr], dtype: str) -> Any:
    """Run an operator of ``x: [n, 0, 4]``, of which there are three."""
    batch = tvm.tirx.Var("n", "int64")
    x, builder = relax.Var("x", relax.TensorType((batch, 0, 4), dtype)), relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(operator(builder, x, batch))
        builder.emit_func_output(result)
    (found,) = tvm_ext.compile(builder.get()).run([tvm.runtime.empty((3, 0, 4), dtype)]).values()
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool"])
def test_an_open_batch_of_nothing_is_reshaped(dtype: str) -> None:
    """An extent of 0 is that, and not the one that the operand has in its place."""

    def rows(builder: relax.BlockBuilder, x: relax.Expr, batch: Any) -> relax.Expr:
        apart = relax.ShapeExpr([batch, 0, 2, 2]), relax.ShapeExpr([0, batch, 4])
        for shape in apart:
            x = builder.emit(relax.Call(tvm.ir.Op.get("relax.reshape"), [x, shape]))
        return op.permute_dims(x, [0, 2, 1])

    assert run_open(rows, dtype).shape == (0, 4, 3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_sums_of_nothing_of_an_open_batch(dtype: str) -> None:
    found = run_open(lambda _builder, x, _batch: op.sum(x, 1), dtype)
    assert not np.asarray(found).astype("float32").any()
    assert found.shape == (3, 4)


def test_greatest_of_nothing_of_an_open_batch() -> None:
    np.testing.assert_array_equal(run_open(lambda _builder, x, _batch: op.max(x, 1), "int8"), np.full((3, 4), -128))
