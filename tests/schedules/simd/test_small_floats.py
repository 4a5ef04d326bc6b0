"""Numbers of 8 bits in floating point, to which TVM rounds one lane at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_ext.backends.cpu.target import native_target


def half_sum(x: Any, y: Any, kind: str) -> Any:
    """Round, and widen again."""
    rounded = relax.op.astype(relax.op.astype(x, kind), "float32")
    return relax.op.multiply(relax.op.add(rounded, relax.op.astype(y, "float32")), relax.const(0.5, "float32"))


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "astype": (lambda x, y, kind: relax.op.astype(x, kind), lambda x, y, kind: x.astype(kind)),
    "add": (lambda x, y, kind: relax.op.add(y, y), lambda x, y, kind: (2 * y.astype("float32")).astype(kind)),
    "relu": (lambda x, y, kind: relax.op.nn.relu(y), lambda x, y, kind: np.maximum(y, np.zeros((), kind))),
    "concat": (lambda x, y, kind: relax.op.concat([y, y], 1), lambda x, y, kind: np.concatenate([y, y], 1)),
    "transpose": (lambda x, y, kind: relax.op.permute_dims(y), lambda x, y, kind: y.T),
    "widened": (half_sum, lambda x, y, kind: 0.5 * (x.astype(kind).astype("float32") + y.astype("float32"))),
}


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rows", [5, "n"])
def test_float8(case: str, kind: str, rows: int | str) -> None:
    compute, expected = CASES[case]
    shape = [tvm.tirx.Var(rows, "int64") if isinstance(rows, str) else rows, 67]
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType(shape, dtype)) for name, dtype in (("x", "float32"), ("y", kind)))
    with builder.function("main", [x, y]):
        with builder.dataflow():
            result = builder.emit_output(compute(x, y, kind))
        builder.emit_func_output(result)
    executable = tvm.compile(builder.finalize(), native_target(), relax_pipeline="tvm_ext")
    rng, dtype = np.random.default_rng(0), np.dtype(getattr(ml_dtypes, kind))
    # TVM takes denormal ones for zero.
    values = rng.uniform(0.25, 4, (2, 5, 67)) * rng.choice([-1, 1], (2, 5, 67))
    given = values[0].astype("float32"), values[1].astype(dtype)
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, given)).numpy()
    np.testing.assert_array_equal(found, expected(*given, dtype))
