"""Products of open extents are NumPy's, for awkward sizes and none at all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import tvm_ext
from tvm_ext.layout.relax.open_products import open_products
from tvm_ext.target import resolve_target

SIZES = (0, 1, 3, 7, 17, 31, 33, 127)


def module(shapes: list[list[object]], weight: np.ndarray | None, transposed: bool, dtype: str) -> tvm.IRModule:
    """Multiply ``a`` by a constant, or by ``b``, which may be transposed before."""
    builder = relax.BlockBuilder()
    parameters = [relax.Var(name, relax.TensorType(shape, dtype)) for name, shape in zip("ab", shapes, strict=False)]
    with builder.function("main", parameters):
        with builder.dataflow():
            right = relax.const(weight, dtype) if weight is not None else parameters[1]
            if transposed:
                right = builder.emit(relax.op.permute_dims(right, [0, 2, 1]))
            result = builder.emit_output(relax.op.matmul(parameters[0], right))
        builder.emit_func_output(result)
    return builder.get()


def kernels(mod: tvm.IRModule) -> list[str]:
    with resolve_target(None):
        return sorted(var.name_hint for var in open_products()(mod).get_global_vars())


@pytest.mark.parametrize(("dtype", "columns"), [("float32", 33), ("float32", 64), ("float64", 5)])
def test_rows_that_are_open(dtype: str, columns: int) -> None:
    rng = np.random.default_rng(columns)
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    weight = rng.standard_normal((19, columns)).astype(dtype)
    mod = module([[n, m, 19]], weight, False, dtype)
    assert kernels(mod) == ["main", "open_product"]
    model = tvm_ext.compile(mod)
    for rows, batch in [(size, 1) for size in SIZES] + [(5, 2), (700, 1), (0, 3), (3, 0)]:
        a = rng.standard_normal((batch, rows, 19)).astype(dtype)
        np.testing.assert_allclose(model.run([a])["output"], a @ weight, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transposed", [False, True])
def test_everything_open(transposed: bool) -> None:
    rng = np.random.default_rng(transposed)
    b, m, k, n = (tirx.Var(name, "int64") for name in "bmkn")
    mod = module([[b, m, k], [b, n, k] if transposed else [b, k, n]], None, transposed, "float32")
    assert kernels(mod) == ["main", "open_packing", "open_product"]
    model = tvm_ext.compile(mod)
    sizes = [
        *itertools.product((1, 3), (1, 17), (1, 33), (1, 31)),
        *((2, size, 7, size) for size in SIZES),
        (2, 5, 0, 3),
    ]
    for batch, rows, reduction, columns in sizes:
        left = rng.standard_normal((batch, rows, reduction)).astype("float32")
        right = rng.standard_normal((batch, reduction, columns)).astype("float32")
        given = right.transpose(0, 2, 1).copy() if transposed else right
        np.testing.assert_allclose(model.run([left, given])["output"], left @ right, rtol=1e-4, atol=1e-4)


def test_nan_stays_in_its_row() -> None:
    n = tirx.Var("n", "int64")
    model = tvm_ext.compile(module([[n, 4]], np.ones((4, 40), "float32"), False, "float32"))
    a = np.ones((9, 4), "float32")
    a[7, 2] = np.nan
    found = model.run([a])["output"]
    assert np.isnan(found[7]).all()
    assert (np.delete(found, 7, 0) == 4).all()


def test_products_that_are_left_alone() -> None:
    n = tirx.Var("n", "int64")
    assert kernels(module([[n, 4]], np.ones((4, 2), "float32"), False, "float32")) == ["main"]
    assert kernels(module([[3, 4]], np.ones((4, 8), "float32"), False, "float32")) == ["main"]
    assert kernels(module([[n, 4]], np.ones((4, 8), "int32"), False, "int32")) == ["main"]
