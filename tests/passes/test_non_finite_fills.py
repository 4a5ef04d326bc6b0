"""Tensors filled with an infinity or NaN, through the pipeline and with TVM's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_ext  # noqa: F401 - registers the pipeline
from tvm_ext.passes.non_finite_fills import broadcast_fills

VALUES = (np.inf, -np.inf, np.nan)


def fills(shape: tuple[Any, ...], dtype: str) -> tvm.IRModule:
    """Make a module that masks its input by each value, as a fill of a shape and as one like the input."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            made = [relax.op.full(shape, relax.const(value, "float32"), dtype) for value in VALUES]
            made += [relax.op.full_like(x, relax.const(value, dtype)) for value in (*VALUES, 2.5)]
            root = builder.emit(relax.op.log(relax.const(0.0, dtype)))  # infinite once constants are folded
            made.append(relax.op.full(shape, root, dtype))
            kept = [
                relax.op.where(relax.op.greater(x, relax.const(0, dtype)), x, fill) for fill in map(builder.emit, made)
            ]
            results = [builder.emit_output(builder.normalize(result)) for result in kept]
        builder.emit_func_output(relax.Tuple(results))
    return builder.get()


def check(executable: Any, shape: tuple[int, ...], dtype: str) -> None:
    """Compare with numpy."""
    data = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(data))
    wanted = (*VALUES, *VALUES, 2.5, -np.inf)
    for result, value in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(result.numpy(), np.where(data > 0, data, np.asarray(value, dtype)))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("shape", [(3, 7), (1,), ()])
def test_fills(shape: tuple[int, ...], dtype: str) -> None:
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
    check(tvm.compile(fills(shape, dtype), target, relax_pipeline="tvm_ext"), shape, dtype)


def test_fills_of_a_symbolic_shape() -> None:
    mod = fills((tvm.tirx.Var("n", "int64"), 5), "float32")
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
    check(tvm.compile(mod, target, relax_pipeline="tvm_ext"), (3, 5), "float32")


def test_broadcasts_compile_with_the_pipeline_of_tvm() -> None:
    """The importer of torch hands them on, whatever pipeline follows."""
    check(tvm.compile(broadcast_fills(fills((3, 7), "float32")), "llvm"), (3, 7), "float32")
