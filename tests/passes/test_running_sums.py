"""Running sums and products along axes of any extent, none included, whose neighbours in memory stay as they are."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import tvm_ext
from tests.fusion.relax.test_fuse import build
from tests.schedules.kernels import TARGETS
from tvm_ext.passes.running_sums import running_sums
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.cpu.running_sum import strip_width

GUARD = 64
CASES = {
    "rows": (lambda x: relax.op.cumsum(x, 0), lambda x: np.cumsum(x, 0)),
    "columns": (lambda x: relax.op.cumsum(x, -1), lambda x: np.cumsum(x, -1)),
    "flat": (lambda x: relax.op.cumsum(x), lambda x: np.cumsum(x)),
    "of doubles": (lambda x: relax.op.cumsum(x, 0, dtype="float64"), lambda x: np.cumsum(x, 0, dtype="float64")),
    "exclusive": (
        lambda x: relax.op.cumsum(x, 0, exclusive=True),
        lambda x: np.concatenate([np.zeros_like(x[:1]), np.cumsum(x, 0)])[: len(x)],
    ),
    "products": (lambda x: relax.op.cumprod(x, 0), lambda x: np.cumprod(x, 0)),
    "exclusive products": (
        lambda x: relax.op.cumprod(x, 0, exclusive=True),
        lambda x: np.concatenate([np.ones_like(x[:1]), np.cumprod(x, 0)])[: len(x)],
    ),
}


def module(name: str) -> tvm.IRModule:
    rows = tirx.Var("n", "int64")
    return build(lambda emit, x: emit(CASES[name][0](x)), (rows, 3))


@pytest.mark.parametrize("name", CASES)
def test_any_number_of_rows(name: str) -> None:
    compiled = tvm_ext.compile(module(name), "native")
    for count in (0, 1, 2, 7, 33, 0):
        x = np.random.default_rng(count).standard_normal((count, 3)).astype("float32")
        (found,) = compiled.run([x]).values()
        expected = CASES[name][1](x)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_stored_for_no_rows(name: str) -> None:
    """The kernel itself, its result in front of memory that it must not touch."""
    with tvm.target.Target("llvm"):
        mod = relax.backend.DispatchSortScan()(running_sums(machine_of(tvm.target.Target("llvm")))(module(name)))
    (kernel,) = (function for function in mod.functions.values() if isinstance(function, tirx.PrimFunc))
    library = tvm.compile(tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")}), "llvm")
    dtype = "float64" if "doubles" in name else "float32"
    memory = tvm.runtime.tensor(np.full(GUARD, 77, dtype))
    shape = (0,) if name == "flat" else (0, 3)
    library["main"](tvm.runtime.tensor(np.zeros((0, 3), "float32")), memory._create_view(shape, dtype))
    np.testing.assert_array_equal(memory.numpy(), np.full(GUARD, 77, dtype))


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("shape", [(7, 33), (1, 17), (3, 5, 31), (2, 9, 3, 7), (600, 1000), (5, 127, 1), (4, 0, 8)])
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("flat", "columns")])
def test_known_extents_go_row_by_row(name: str, shape: tuple[int, ...], target: str) -> None:
    """The axis in the middle, the first one among them; strips, several threads, and extents of 1 and 0."""
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    x = 1 + x / 1000 if "products" in name else x
    axis = len(shape) // 2 - (len(shape) == 2)
    join = relax.op.cumprod if "products" in name else relax.op.cumsum
    dtype = "float64" if "doubles" in name else "float32"
    exclusive = "exclusive" in name
    mod = build(lambda emit, v: emit(join(v, axis, dtype, exclusive)), shape)
    compiled = tvm_ext.compile(mod, target)
    (found,) = compiled.run([x]).values()
    expected = (np.cumprod if "products" in name else np.cumsum)(x.astype("float64"), axis)
    if exclusive and x.size:
        first = np.full_like(expected.take([0], axis), float("products" in name))
        expected = np.concatenate([first, expected.take(range(shape[axis] - 1), axis)], axis)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "int64", "int32", "uint8", "float64"])
def test_types(dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 3, (2, 9, 33)).astype(dtype)
    given = relax.Var("x", relax.TensorType(x.shape, dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [given]):
        builder.emit_func_output(builder.emit(relax.op.cumsum(given, 1)))
    (found,) = tvm_ext.compile(builder.get(), "native").run([x]).values()
    np.testing.assert_array_equal(found, np.cumsum(x, 1, dtype=dtype))


def test_strips_divide_the_columns_or_take_them_all() -> None:
    machine = machine_of(tvm.target.Target({"kind": "llvm", "mcpu": "znver3", "num-cores": 2}))
    assert strip_width(2, 1000, 4, machine) == 1000  # a core each
    assert strip_width(1, 1000, 4, machine) == 500
    assert strip_width(1, 1009, 4, machine) == 1009
    assert strip_width(1, 100_000, 4, machine) == 2000  # what the L1 cache keeps
