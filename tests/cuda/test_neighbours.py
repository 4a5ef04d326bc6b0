"""How an operand lies in memory decides how its tiles are copied, whatever is computed in the kernel before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax, te

from tests.cuda.whole_model import EmulatedModel
from tvm_ext.backends.cuda.async_copies import with_async_copies
from tvm_ext.backends.cuda.emulator.emulate import Emulator
from tvm_ext.schedules.cuda.product import find_product
from tvm_ext.schedules.cuda.tensor_matmul import TensorMatmul
from tvm_ext.schedules.rule import new_schedule
from tvm_ext.target import resolve_target

TARGET = resolve_target({"kind": "cuda", "arch": "sm_80"})
ROWS, COLUMNS, DEPTH = 33, 40, 96


def _shape(way: str) -> tuple[int, ...]:
    return {
        "as it is": (COLUMNS, DEPTH),
        "turned": (DEPTH, COLUMNS),
        "divided": (COLUMNS, 6, 16),
        "joined and turned": (12, 8, COLUMNS),
        "a part": (COLUMNS, DEPTH + 8),
        "a part off the grid": (COLUMNS, DEPTH + 3),
        "padded at the end": (COLUMNS, DEPTH - 1),
        "of two": (COLUMNS, DEPTH),
    }[way]


def _operand(way: str, x: Any) -> Any:
    """Give the columns of the product by their depth, as a computation of its own."""
    compute = {
        "as it is": lambda j, k: x[j, k],
        "turned": lambda j, k: x[k, j],
        "divided": lambda j, k: x[j, k // 16, k % 16],
        "joined and turned": lambda j, k: x[k // 8, k % 8, j],
        "a part": lambda j, k: x[j, k + 8],
        "a part off the grid": lambda j, k: x[j, k + 3],
        "padded at the end": lambda j, k: te.if_then_else(k < DEPTH - 1, x[j, k], te.const(0, "float16")),
        "of two": lambda j, k: x[j, k] * te.const(2, "float16") + x[j, k],
    }[way]
    return te.compute((COLUMNS, DEPTH), compute, name="operand")


def _values(way: str, x: np.ndarray) -> np.ndarray:
    given = {
        "turned": lambda: x.T,
        "divided": lambda: x.reshape(COLUMNS, DEPTH),
        "joined and turned": lambda: x.reshape(DEPTH, COLUMNS).T,
        "a part": lambda: x[:, 8:],
        "a part off the grid": lambda: x[:, 3:],
        "padded at the end": lambda: np.pad(x, ((0, 0), (0, 1))),
        "of two": lambda: x * np.float16(2) + x,
    }
    return given.get(way, lambda: x)()


@pytest.mark.parametrize(
    ("way", "lies"),
    [
        ("as it is", (True, 32)),
        ("turned", (False, 8)),
        ("divided", (True, 32)),
        ("joined and turned", (False, 8)),
        ("a part", (True, 8)),
        ("a part off the grid", (True, 1)),
        ("padded at the end", (True, 1)),
        ("of two", (True, 32)),
    ],
)
def test_columns(way: str, lies: tuple[bool, int]) -> None:
    a = te.placeholder((ROWS, DEPTH), "float16", name="a")
    x = te.placeholder(_shape(way), "float16", name="x")
    columns, k = _operand(way, x), te.reduce_axis((0, DEPTH), name="k")
    product = te.compute(
        (ROWS, COLUMNS),
        lambda i, j: te.sum(a[i, k].astype("float32") * columns[j, k].astype("float32"), axis=k),
        name="product",
    )
    func = te.create_prim_func([a, x, product])
    found = find_product(new_schedule(func))
    assert found is not None
    assert found.row_vector == (True, 32)
    assert found.column_vector == lies
    with TARGET:
        schedule = TensorMatmul().apply(func, TARGET)
    assert schedule is not None
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype("float16") for shape in ((ROWS, DEPTH), _shape(way))]
    ready = with_async_copies(schedule.mod["main"], TARGET)
    wanted = arrays[0].astype("float32") @ _values(way, arrays[1]).astype("float32").T
    run = Emulator(ready, TARGET)([*arrays, np.zeros((ROWS, COLUMNS), "float32")])
    np.testing.assert_allclose(run.arrays[2], wanted, rtol=1e-4, atol=1e-4)
    assert not run.report.faults


@pytest.mark.parametrize("fuse", ["stock", "mapping-type"])
def test_rows_with_themselves(fuse: str) -> None:
    """A kernel of one operand, which Relax looks into for a reshape."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 33, 96), "float16"))
    with builder.function("main", [x]):
        with builder.dataflow():
            turned = builder.emit(relax.op.permute_dims(x, [0, 2, 1]))
            result = builder.emit_output(relax.op.matmul(x, turned))
        builder.emit_func_output(result)
    emulated = EmulatedModel(builder.get(), TARGET, fuse=fuse)
    given = np.random.default_rng(0).standard_normal((2, 33, 96)).astype("float16")
    wide = given.astype("float32")
    (found,) = emulated(given)
    np.testing.assert_allclose(found.astype("float32"), wide @ wide.transpose(0, 2, 1), rtol=2e-3, atol=2e-2)
    assert "cuda.tensor_matmul" in emulated.rules.values()
    assert not emulated.faults
