"""The few largest elements of a row, and the smallest, are those of a stable sort."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tvm_ext.backends.cpu.target import native_target
from tvm_ext.schedules.cpu.few_largest import few_largest


def runner(shape: tuple[Any, ...], count: int, kind: str, largest: bool = True, **options: Any) -> Any:
    x = relax.Var("x", relax.TensorType(shape, kind))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.topk(x, count, -1, largest=largest, **options))
        builder.emit_func_output(result)
    executable = tvm.compile(builder.get(), native_target(), relax_pipeline="tvm_ext")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    assert "few_largest" in executable.mod.imports[0].inspect_source()
    return machine["main"]


def sorted_places(x: np.ndarray, largest: bool) -> np.ndarray:
    """Sort, NaN as the largest and the first of equal elements in front."""
    if x.dtype.kind == "f":
        x = np.unique(np.where(np.isnan(x), np.inf, x), return_inverse=True)[1].reshape(x.shape) + 10**6 * np.isnan(x)
    x = x.astype("int64")
    return np.argsort(-x if largest else x, -1, kind="stable")


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    ("shape", "count"),
    [
        ((1,), 1),
        ((3, 7), 7),
        ((17, 17), 3),
        ((3, 31), 16),
        ((2, 3, 33), 5),
        ((7, 127), 1),
        ((2, 1000), 10),
        ((3, 17), 17),
        ((2, 3, 33), 20),
        ((2, 1000), 100),
        ((1, 127), 126),
        ((2, 2100), 2048),
    ],
)
def test_shapes(shape: tuple[int, ...], count: int, largest: bool) -> None:
    run = runner(shape, count, "float32", largest)
    rng = np.random.default_rng(count)
    drawn = rng.choice(np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1, -1, 2], "float32"), shape)
    for x in (rng.standard_normal(shape).astype("float32"), np.sort(drawn), drawn, np.zeros(shape, "float32")):
        values, places = (part.numpy() for part in run(tvm.runtime.tensor(x)))
        expected = sorted_places(x, largest)[..., :count]
        np.testing.assert_array_equal(places, expected)
        np.testing.assert_array_equal(values, np.take_along_axis(x, expected, -1))


@pytest.mark.parametrize("count", [5, 20])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float16", "float64"])
def test_types(dtype: str, count: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 9, (7, 37)).astype(dtype)
    if "int" in dtype:
        x = np.where(x > 6, np.iinfo(dtype).min, np.where(x > 4, np.iinfo(dtype).max, x)).astype(dtype)
    for largest in (True, False):
        values = runner(x.shape, count, dtype, largest, ret_type="values")(tvm.runtime.tensor(x)).numpy()
        places = runner(x.shape, count, dtype, largest, ret_type="indices", dtype="int32")(
            tvm.runtime.tensor(x)
        ).numpy()
        wide = x.astype("int64")
        expected = np.argsort(np.invert(wide) if largest else wide, -1, kind="stable")[:, :count]
        assert places.dtype == "int32"
        np.testing.assert_array_equal(places, expected)
        np.testing.assert_array_equal(values, np.take_along_axis(x, expected, -1))


def test_open_rows() -> None:
    run = runner((tirx.Var("n", "int64"), 3, 19), 4, "float32")
    for rows in (1, 7, 33):
        x = np.random.default_rng(rows).standard_normal((rows, 3, 19)).astype("float32")
        values, places = (part.numpy() for part in run(tvm.runtime.tensor(x)))
        expected = sorted_places(x, True)[..., :4]
        np.testing.assert_array_equal(places, expected)
        np.testing.assert_array_equal(values, np.take_along_axis(x, expected, -1))


@pytest.mark.parametrize(("rows", "length", "count"), [(1, 7, 7), (3, 33, 5), (2, 127, 20), (5, 31, 16)])
def test_one_thread_without_vectors(rows: int, length: int, count: int) -> None:
    """As targets without a library have it."""
    kernel = few_largest(rows, length, count, True, "int32", "int64", None)
    assert "parallel" not in kernel.script()
    run = tvm.compile(kernel.with_attr("global_symbol", "main"), native_target())
    x = np.random.default_rng(count).integers(-9, 9, (rows, length)).astype("int32")
    places = tvm.runtime.tensor(np.zeros((rows, count), "int64"))
    run["main"](tvm.runtime.tensor(x), places)
    np.testing.assert_array_equal(places.numpy(), sorted_places(x, True)[:, :count])
