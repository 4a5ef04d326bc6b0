"""Products with zero and quotients by zero are those of IEEE 754."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_ext

OPERATORS: dict[str, Any] = {"multiply": np.multiply, "divide": np.divide}


@pytest.mark.parametrize("zero", [0.0, -0.0, 1e-40])
@pytest.mark.parametrize("shape", [(2, 3), (6,), ()])
def test_zero_scalars(shape: tuple[int, ...], zero: float) -> None:
    values = np.array([1, -2, 0, np.inf, -np.inf, np.nan], "float32")
    data = values.reshape(shape) if shape else values[3]
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            results = [builder.emit_output(getattr(relax.op, name)(x, relax.const(zero))) for name in OPERATORS]
        builder.emit_func_output(relax.Tuple(results))
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
    executable = tvm.compile(builder.get(), target, relax_pipeline="tvm_ext")
    computed = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(np.asarray(data)))
    for result, operator in zip(computed, OPERATORS.values(), strict=True):
        with np.errstate(all="ignore"):
            expected = operator(data, np.copysign(np.float32(0), zero))  # a denormal is taken for zero
        assert result.numpy().shape == shape
        np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("rewrite", ["off", "strict", "fast"])
@pytest.mark.parametrize("value", [0.5, -0.5, 1.5])
def test_scalars_that_turn_out_to_be_zero(value: float, rewrite: str) -> None:
    values = np.array([1, -2, 0, np.inf, -np.inf, np.nan, 3], "float32")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((7,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            tangent = builder.emit(relax.op.tan(relax.const(value)))
            divisor = builder.emit(relax.op.trunc(builder.emit(relax.op.multiply(tangent, relax.const(1.25)))))
            one = builder.emit(relax.op.divide(relax.const(np.inf, "float32"), divisor))
            results = [builder.emit_output(getattr(relax.op, name)(x, divisor)) for name in OPERATORS]
            results.append(builder.emit_output(relax.op.add(x, one)))
        builder.emit_func_output(relax.Tuple(results))
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
    compiled = tvm_ext.compile(builder.get(), target, rewrite=rewrite)
    with np.errstate(all="ignore"):
        number = np.trunc(np.tan(np.float32(value)) * np.float32(1.25))
        expected = [operator(values, number) for operator in OPERATORS.values()]
        expected.append(values + np.float32(np.inf) / number)
    for result, right in zip(compiled.run([values]).values(), expected, strict=True):
        np.testing.assert_allclose(result, right, rtol=1e-6)
