"""Running sums and products along axes of any extent, none included, whose neighbours in memory stay as they are."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import tvm_ext
from tests.fusion.relax.test_fuse import build
from tvm_ext.passes.running_sums import running_sums

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
        mod = relax.backend.DispatchSortScan()(running_sums()(module(name)))
    (kernel,) = (function for function in mod.functions.values() if isinstance(function, tirx.PrimFunc))
    library = tvm.compile(tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")}), "llvm")
    dtype = "float64" if "doubles" in name else "float32"
    memory = tvm.runtime.tensor(np.full(GUARD, 77, dtype))
    shape = (0,) if name == "flat" else (0, 3)
    library["main"](tvm.runtime.tensor(np.zeros((0, 3), "float32")), memory._create_view(shape, dtype))
    np.testing.assert_array_equal(memory.numpy(), np.full(GUARD, 77, dtype))
