"""Rows scattered by the kernel of our own are those of numpy, in whatever shapes and types."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tvm_ext.backends.cpu.target import native_target
from tvm_ext.passes.row_scatters import row_scatters
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.cpu.row_scatter import row_scatter

WAYS = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def module(shapes: tuple[Any, Any, Any], dtype: str, places: str, reduction: str) -> tvm.IRModule:
    """Scatter rows that are computed, into a table that is."""
    types = (dtype, places, dtype)
    operands = [relax.Var(name, relax.TensorType(*both)) for name, *both in zip("xiu", shapes, types, strict=True)]
    builder = relax.BlockBuilder()
    with builder.function("main", operands):
        with builder.dataflow():
            x, i, u = operands
            x, u = (builder.emit(relax.op.add(value, relax.const(1, dtype))) for value in (x, u))
            result = builder.emit_output(relax.op.scatter_nd(x, i, u, reduction))
        builder.emit_func_output(result)
    mod = builder.get()
    after = row_scatters(machine_of(native_target()))(mod)
    assert "scatter_nd" not in str(after["main"])
    return mod


def values(shapes: tuple[Any, Any, Any], dtype: str, places: str) -> list[np.ndarray]:
    rng = np.random.default_rng(len(dtype))
    x, u = (rng.integers(0, 4, shape).astype(dtype) for shape in (shapes[0], shapes[2]))
    limits = np.array(shapes[0][: shapes[1][-1]])
    return [x, rng.integers(-1, limits + 1, shapes[1]).astype(places), u]  # one place on either side is outside


def wanted(x: np.ndarray, index: np.ndarray, u: np.ndarray, reduction: str) -> np.ndarray:
    result, u = x + 1, u + 1
    for where in np.ndindex(index.shape[:-1]):
        place = tuple(int(at) for at in index[where])
        if all(0 <= at < extent for at, extent in zip(place, x.shape, strict=False)):
            result[place] = u[where] if reduction == "update" else WAYS[reduction](result[place], u[where])
    return result


SHAPES = [
    ((7, 3), (31, 1), (31, 3)),
    ((17, 33), (127, 1), (127, 33)),
    ((31, 17), (31, 1), (31, 17)),  # what is written might be stored where the result is
    ((3, 7, 5), (2, 9, 2), (2, 9, 5)),
    ((3, 7, 31, 2), (17, 1), (17, 7, 31, 2)),
    ((7, 9), (33, 2), (33,)),
    ((7,), (1, 1), (1,)),
    ((1, 1), (3, 1), (3, 1)),
]


@pytest.mark.parametrize("reduction", ["update", *WAYS])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_shapes(shapes: tuple[Any, Any, Any], reduction: str) -> None:
    run = tvm.compile(module(shapes, "float32", "int64", reduction), native_target(), relax_pipeline="tvm_ext")
    operands = values(shapes, "float32", "int64")
    found = relax.VirtualMachine(run, tvm.cpu())["main"](*map(tvm.runtime.tensor, operands)).numpy()
    np.testing.assert_array_equal(found, wanted(*operands, reduction))


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize(("reduction", "places"), [("add", "int32"), ("max", "int64")])
def test_types(dtype: str, reduction: str, places: str) -> None:
    shapes = ((7, 19), (31, 1), (31, 19))
    run = tvm.compile(module(shapes, dtype, places, reduction), native_target(), relax_pipeline="tvm_ext")
    operands = values(shapes, dtype, places)
    found = relax.VirtualMachine(run, tvm.cpu())["main"](*map(tvm.runtime.tensor, operands)).numpy()
    np.testing.assert_array_equal(found, wanted(*operands, reduction))


def test_open_extents() -> None:
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    mod = module(((n, 3, 5), (m, 2), (m, 5)), "float32", "int64", "add")
    run = relax.VirtualMachine(tvm.compile(mod, native_target(), relax_pipeline="tvm_ext"), tvm.cpu())["main"]
    for rows, updates in ((1, 1), (7, 3), (17, 127), (3, 0)):
        operands = values(((rows, 3, 5), (updates, 2), (updates, 5)), "float32", "int64")
        found = run(*map(tvm.runtime.tensor, operands)).numpy()
        np.testing.assert_array_equal(found, wanted(*operands, "add"))


def test_cores_share_the_columns() -> None:
    machine = replace(machine_of(native_target()), cores=2)
    kernel = row_scatter([64], 5000, 512, "int64", "float32", WAYS["add"], machine)
    assert "T.parallel(T.int64(2))" in kernel.script()
    one = row_scatter([64], 5000, 512, "int64", "float32", WAYS["add"], replace(machine, cores=1))
    assert "parallel" not in one.script()
    shapes = ((64, 512), (5000, 1), (5000, 512))
    run = tvm.compile(module(shapes, "float32", "int64", "update"), native_target(), relax_pipeline="tvm_ext")
    operands = values(shapes, "float32", "int64")
    found = relax.VirtualMachine(run, tvm.cpu())["main"](*map(tvm.runtime.tensor, operands)).numpy()
    np.testing.assert_array_equal(found, wanted(*operands, "update"))
