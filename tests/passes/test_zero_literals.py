"""Products with zero and quotients by zero are those of IEEE 754."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

OPERATORS: dict[str, Any] = {"multiply": np.multiply, "divide": np.divide}


@pytest.mark.parametrize("zero", [0.0, -0.0])
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
            expected = operator(data, np.float32(zero))
        assert result.numpy().shape == shape
        np.testing.assert_array_equal(result.numpy(), expected)
