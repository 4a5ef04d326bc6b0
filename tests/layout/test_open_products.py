"""Products of open extents are NumPy's, for awkward sizes and none at all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

import tvm_ext
from tvm_ext.layout.relax.open_products import open_products
from tvm_ext.passes.vector_code import UNPROVED_ATTRIBUTE
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


def branches(func: tirx.PrimFunc) -> list[tirx.IfThenElse]:
    found: list[tirx.IfThenElse] = []
    tvm_ffi.structural_walk(func.body, [(tirx.IfThenElse, found.append)])
    return found


@pytest.mark.parametrize(
    ("dtype", "columns"), [("float32", 33), ("float32", 64), ("float32", 3), ("float64", 5), ("float64", 2)]
)
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


@pytest.mark.parametrize(
    ("cpu", "columns"), [("x86-64-v2", (17, 33)), ("haswell", (49, 65)), ("skylake-avx512", (131, 200))]
)
def test_columns_that_leave_a_part_of_a_vector_in_the_last_of_several_tiles(cpu: str, columns: tuple[int, ...]) -> None:
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": 1})
    for count in columns:
        weight = np.ones((19, count), "float32")
        with target:
            mod = relax.get_pipeline("tvm_ext")(module([[1, tirx.Var("m", "int64"), 19]], weight, False, "float32"))
        (product,) = (func for var, func in mod.functions.items() if var.name_hint == "open_product")
        assert UNPROVED_ATTRIBUTE not in product.attrs, (count, product.attrs[UNPROVED_ATTRIBUTE])


@pytest.mark.parametrize(
    ("cpu", "columns"), [("x86-64-v2", 17), ("haswell", 50), ("skylake-avx512", 100), ("icelake-server", 1000)]
)
def test_what_is_added_to_columns_that_leave_a_part_of_a_vector(cpu: str, columns: int) -> None:
    """A bias has as many elements as columns: reading the last ones as a vector is proved to stay inside of it."""
    x = relax.Var("x", relax.TensorType([tirx.Var("m", "int64"), 19], "float32"))
    weight, bias = (relax.const(np.ones(shape, "float32")) for shape in ((19, columns), (columns,)))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.add(builder.emit(relax.op.matmul(x, weight)), bias))
        builder.emit_func_output(result)
    with tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": 1}):
        mod = relax.get_pipeline("tvm_ext")(builder.get())
    (product,) = (func for var, func in mod.functions.items() if "product" in var.name_hint)
    assert UNPROVED_ATTRIBUTE not in product.attrs, product.attrs[UNPROVED_ATTRIBUTE]


@pytest.mark.parametrize("cpu", ["x86-64-v2", "haswell", "skylake-avx512"])
def test_open_columns_that_leave_a_part_of_a_vector(cpu: str) -> None:
    m, k, n = (tirx.Var(name, "int64") for name in "mkn")
    with tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": 1}):
        mod = relax.get_pipeline("tvm_ext")(module([[1, m, k], [1, k, n]], None, False, "float32"))
    (product,) = (func for var, func in mod.functions.items() if var.name_hint == "open_product")
    assert UNPROVED_ATTRIBUTE not in product.attrs, product.attrs[UNPROVED_ATTRIBUTE]
    stores = str(product).count("masked_store")
    assert cpu == "x86-64-v2" or stores >= 4, "the columns that are left are stored at once"


def test_small_operands_are_packed_by_one_thread() -> None:
    m, k, n = (tirx.Var(name, "int64") for name in "mkn")
    target = tvm.target.Target({"kind": "llvm", "mcpu": "znver4", "num-cores": 2})
    with target:
        mod = relax.get_pipeline("tvm_ext")(module([[1, m, k], [1, k, n]], None, False, "float32"))
    (packing,) = (func for var, func in mod.functions.items() if var.name_hint == "open_packing")
    (choice,) = (statement for statement in branches(packing) if "parallel" in str(statement.else_case))
    assert "parallel" not in str(choice.then_case), "a serial loop where a fork does not pay"


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


@pytest.mark.parametrize(("shape", "columns"), [((2048,), 5), ((2048,), 16), ((1024, 256), 64)])
def test_rows_of_which_one_is_worth_a_fork(shape: tuple[int, ...], columns: int) -> None:
    """There is no code for numbers of rows that can only be 0, whose tasks would be divided by it."""
    rng = np.random.default_rng(columns)
    weight = rng.standard_normal((shape[-1], columns)).astype("float32")
    model = tvm_ext.compile(module([[tirx.Var("n", "int64"), *shape]], weight, False, "float32"))
    for rows in (0, 1, 3):
        a = rng.standard_normal((rows, *shape)).astype("float32")
        np.testing.assert_allclose(model.run([a])["output"], a @ weight, rtol=1e-3, atol=1e-3)


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
    assert kernels(module([[n, 4]], np.ones((4, 1), "float32"), False, "float32")) == ["main"]
    assert kernels(module([[3, 4]], np.ones((4, 8), "float32"), False, "float32")) == ["main"]
    assert kernels(module([[n, 4]], np.ones((4, 8), "int32"), False, "int32")) == ["main"]


@pytest.mark.parametrize("columns", [9, 33, 64, 100])
def test_what_follows_a_product_becomes_part_of_it(columns: int) -> None:
    """A bias, an activation, a residual and what is added to each place of a sequence."""
    rng = np.random.default_rng(columns)
    b, n = tirx.Var("b", "int64"), tirx.Var("n", "int64")
    weight, bias = rng.standard_normal((19, columns)).astype("float32"), rng.standard_normal(columns).astype("float32")
    x, past, places = (
        relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in (("x", [b, n, 19]), ("past", [b, n, columns]), ("places", [n, columns]))
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x, past, places]):
        with builder.dataflow():
            first = builder.emit(relax.op.add(relax.op.matmul(x, relax.const(weight)), relax.const(bias)))
            first = builder.emit(relax.op.add(relax.op.nn.silu(first), past))
            second = builder.emit(relax.op.nn.relu(relax.op.add(relax.op.matmul(x, relax.const(weight)), places)))
            result = builder.emit_output(relax.Tuple([first, second]))
        builder.emit_func_output(result)
    model = tvm_ext.compile(builder.get())
    for batch, rows in [(1, size) for size in SIZES] + [(3, 17), (2, 160), (0, 3)]:
        data, other = (rng.standard_normal((batch, rows, width)).astype("float32") for width in (19, columns))
        added = rng.standard_normal((rows, columns)).astype("float32")
        found = list(model.run([data, other, added]).values())
        biased = data @ weight + bias
        np.testing.assert_allclose(found[0], biased / (1 + np.exp(-biased)) + other, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found[1], np.maximum(data @ weight + added, 0), rtol=1e-4, atol=1e-4)


def test_a_product_that_is_broadcast_after_sums_over_nothing() -> None:
    """What follows has more elements than the product, whose sums may be empty."""
    m, k, b = (tirx.Var(name, "int64") for name in "mkb")
    left, right, other = (
        relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in (("left", [m, k]), ("right", [k, 7]), ("other", [b, m, 7]))
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [left, right, other]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.add(relax.op.matmul(left, right), other))
        builder.emit_func_output(result)
    model = tvm_ext.compile(builder.get())
    rng = np.random.default_rng(1)
    for rows, reduction, batch in ((3, 0, 2), (1, 5, 1), (17, 31, 3), (33, 1, 2)):
        given = [
            rng.standard_normal(shape).astype("float32")
            for shape in ((rows, reduction), (reduction, 7), (batch, rows, 7))
        ]
        found = model.run(given)["output"]
        np.testing.assert_allclose(found, given[0] @ given[1] + given[2], rtol=1e-4, atol=1e-5)
