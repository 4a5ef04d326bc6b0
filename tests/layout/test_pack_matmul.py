"""The pass that turns matrix products into packed kernels: what it takes, what it leaves, and that results stay."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

import tvm_ext
from tests.modules import Branch, arguments
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.layout.relax.pack_matmul import pack_matmul

Array = np.ndarray
Build = Callable[..., relax.Expr]


def module(build: Build, *shapes: tuple[int, ...], dtype: str = "float32", output: bool = False) -> tvm.IRModule:
    """Make a module of one dataflow block; ``build`` gets the builder and the inputs."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{number}", relax.TensorType(shape, dtype)) for number, shape in enumerate(shapes)]
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(build(builder, *inputs))
        builder.emit_func_output(result)
    return builder.get()


def packed(mod: tvm.IRModule) -> tvm.IRModule:
    """Run the pass for this machine, and drop what is no longer used."""
    with native_target():
        return relax.transform.DeadCodeElimination()(pack_matmul()(mod))


def operators(mod: tvm.IRModule) -> list[str]:
    """Names of the operators in ``main``, in order; calls of kernels by the name of the kernel."""
    found: list[str] = []

    def visit(node: relax.Expr) -> None:
        if isinstance(node, relax.Call) and isinstance(node.op, tvm.ir.Op):
            called = node.args[0].name_hint if node.op.name == "relax.call_tir" else ""
            found.append(called.rstrip("0123456789") or node.op.name.removeprefix("relax."))

    relax.analysis.post_order_visit(mod["main"].body, visit)
    return found


def run(mod: tvm.IRModule, inputs: list[Array], pipeline: str = "tvm_ext") -> Array:
    executable = tvm.compile(mod, native_target(), relax_pipeline=pipeline)
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, inputs))
    return result.numpy()


def check(mod: tvm.IRModule, expected: Callable[..., Array]) -> None:
    """Compare the compiled module with numpy."""
    inputs = arguments(mod)
    np.testing.assert_allclose(run(mod, inputs), expected(*inputs), rtol=0, atol=2e-4)


def constant(*shape: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("transposed", [False, True])
def test_dense(transposed: bool) -> None:
    weight, bias = constant(50, 33), constant(50)

    def build(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        matrix = relax.const(weight if transposed else np.ascontiguousarray(weight.T))
        if transposed:
            matrix = builder.emit(relax.op.permute_dims(matrix))
        product = builder.emit(relax.op.matmul(x, matrix))
        return relax.op.nn.relu(builder.emit(relax.op.add(product, relax.const(bias))))

    mod = module(build, (2, 9, 33))
    assert operators(packed(mod)) == ["matmul", "add", "nn.relu"]
    check(mod, lambda x: np.maximum(x @ weight.T + bias, 0))


def test_a_weight_used_twice_is_packed_once() -> None:
    weight = relax.const(constant(24, 24))

    def build(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return relax.op.matmul(builder.emit(relax.op.matmul(x, weight)), weight)

    mod = module(build, (5, 24))
    constants: list[tvm.runtime.Tensor] = []

    def visit(node: relax.Expr) -> None:
        if isinstance(node, tvm.ir.GenericConst):
            constants.append(node.value)

    relax.analysis.post_order_visit(packed(mod)["main"].body, visit)
    assert len(constants) in (1, 2)
    assert all(kept.same_as(constants[0]) for kept in constants)
    assert constants[0].shape != weight.value.shape
    check(mod, lambda x: x @ weight.value.numpy() @ weight.value.numpy())


def linear_attention(builder: relax.BlockBuilder, q: relax.Var, k: relax.Var, v: relax.Var) -> relax.Expr:
    """Attention without softmax over (batch, sequence, heads, size), as exporters write it."""
    emit = builder.emit
    query, value = (emit(relax.op.permute_dims(x, (0, 2, 1, 3))) for x in (q, v))
    key = emit(relax.op.permute_dims(k, (0, 2, 3, 1)))
    scores = emit(relax.op.divide(emit(relax.op.matmul(query, key)), relax.const(np.float32(4.0))))
    mixed = emit(relax.op.matmul(emit(relax.op.nn.relu(scores)), value))
    return relax.op.permute_dims(mixed, (0, 2, 1, 3))


def test_transposes_become_part_of_the_kernel() -> None:
    mod = module(linear_attention, *[(2, 19, 3, 16)] * 3)
    assert operators(packed(mod)) == ["matmul", "divide", "nn.relu", "matmul"]

    def expected(q: Array, k: Array, v: Array) -> Array:
        scores = np.einsum("bqhs,bkhs->bhqk", q, k) / 4
        return np.einsum("bhqk,bkhs->bqhs", np.maximum(scores, 0), v)

    check(mod, expected)


def test_a_product_that_is_also_used_otherwise_stays() -> None:
    def build(builder: relax.BlockBuilder, x: relax.Var, y: relax.Var) -> relax.Expr:
        product = builder.emit(relax.op.matmul(x, y))
        turned = builder.emit(relax.op.permute_dims(product, (1, 0, 2)))
        return relax.op.add(turned, product)

    mod = module(build, (4, 4, 6), (4, 6, 5))
    assert operators(packed(mod)) == ["matmul", "permute_dims", "add"]
    check(mod, lambda x, y: (x @ y).transpose(1, 0, 2) + x @ y)


def test_a_transpose_that_moves_the_columns_stays() -> None:
    def build(builder: relax.BlockBuilder, x: relax.Var, y: relax.Var) -> relax.Expr:
        return relax.op.permute_dims(builder.emit(relax.op.matmul(x, y)))

    mod = module(build, (4, 6), (6, 5))
    assert operators(packed(mod)) == ["matmul", "permute_dims"]
    check(mod, lambda x, y: (x @ y).T)


def test_values_inside_another_dataflow_block_are_not_reached_for() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((5, 6), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            inner = builder.emit(relax.op.exp(x))
            turned = builder.emit_output(relax.op.permute_dims(inner))
        between = builder.emit(relax.op.negative(x))  # keeps the blocks apart
        with builder.dataflow():
            product = builder.emit_output(relax.op.matmul(turned, between))
        builder.emit_func_output(product)
    mod = builder.get()
    assert len(mod["main"].body.blocks) == 3
    assert operators(packed(mod)) == ["exp", "permute_dims", "negative", "matmul"]
    check(mod, lambda x: np.exp(x).T @ -x)


def test_product_that_is_a_result_and_a_chain_without_dataflow() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((5, 6), "float32"))
    with builder.function("main", [x]):
        turned = builder.emit(relax.op.permute_dims(x))
        product = builder.emit(relax.op.matmul(x, turned))
        builder.emit_func_output(product)
    mod = builder.get()
    assert operators(packed(mod)) == ["matmul"]
    check(mod, lambda x: x @ x.T)


def test_products_in_branches() -> None:
    builder = relax.BlockBuilder()
    condition = relax.Var("condition", relax.TensorType((), "bool"))
    x = relax.Var("x", relax.TensorType((4, 6), "float32"))
    weight = constant(6, 6)

    def branch(turn: bool) -> relax.SeqExpr:
        inner = relax.BlockBuilder()
        inner._begin_binding_block()
        matrix: relax.Expr = relax.const(weight)
        if turn:
            matrix = inner.emit(relax.op.permute_dims(matrix))
        result = inner.emit(relax.op.matmul(x, matrix))
        return relax.SeqExpr([inner._end_block()], result)

    with builder.function("main", [condition, x]):
        builder.emit_func_output(builder.emit(relax.If(condition, branch(True), branch(False))))
    mod = builder.get()
    assert operators(packed(mod)).count("matmul") == 2
    inputs = arguments(mod)[1]
    for turn in (True, False):
        result = run(mod, [np.array(turn), inputs])
        np.testing.assert_allclose(result, inputs @ (weight.T if turn else weight), rtol=0, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 3, 33])
def test_weights_of_double_precision_keep_it(rows: int) -> None:
    weight = constant(17, 7, dtype="float64")
    mod = module(lambda _, x: relax.op.matmul(x, relax.const(weight, "float64")), (rows, 17), dtype="float64")
    assert "R.call_tir(" in packed(mod).script()
    x = np.random.default_rng(rows).standard_normal((rows, 17))
    np.testing.assert_allclose(run(mod, [x]), x @ weight, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("shapes", "dtype"),
    [
        ([("n", 8), (8, 4)], "float32"), ([(8,), (8, 4)], "float32"), ([(3, 8), (8,)], "float32"),
        ([(3, 8), (8, 4)], "int32"), ([(3, 8), (8, 4)], "float16"), ([(3, 0), (0, 4)], "float32"),
    ],
    ids=["symbolic", "vector-matrix", "matrix-vector", "int32", "float16", "empty"],
)  # fmt: skip
def test_others_are_left_alone(shapes: list[tuple[int | str, ...]], dtype: str) -> None:
    n = tvm.tirx.Var("n", "int64")
    extents = [tuple(n if extent == "n" else extent for extent in shape) for shape in shapes]
    mod = module(lambda _, x, y: relax.op.matmul(x, y), *extents, dtype=dtype)
    tvm.ir.assert_structural_equal(packed(mod), mod)
    inputs = arguments(mod)
    expected = np.matmul(*(array.astype("float64") for array in inputs))
    np.testing.assert_allclose(run(mod, inputs), expected, rtol=0, atol=0.05 if dtype == "float16" else 1e-4)


def test_modules_without_products_do_not_change() -> None:
    tvm.ir.assert_structural_equal(packed(Branch), Branch)


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_random_chains(data: st.DataObject) -> None:
    """Products and transposes in a row, constants and computed operands on either side, against numpy."""
    sizes = [data.draw(st.sampled_from([1, 3, 5, 8, 17, 33])) for _ in range(4)]
    batch = data.draw(st.lists(st.sampled_from([1, 2, 3]), max_size=2))
    steps: list[tuple[Array | None, bool, bool]] = []
    for rows, columns in pairwise(sizes):
        fixed = data.draw(st.booleans())
        matrix = constant(*(batch if data.draw(st.booleans()) else []), rows, columns) if fixed else None
        steps.append((matrix, data.draw(st.booleans()), data.draw(st.booleans())))

    def build(builder: relax.BlockBuilder, x: relax.Var, *others: relax.Var) -> relax.Expr:
        value: relax.Expr = x
        for other, (matrix, turned, there_and_back) in zip(others, steps, strict=True):
            right: relax.Expr = other if matrix is None else relax.const(matrix)
            rank = int(right.ty.ndim)
            if turned:
                axes = [*range(rank - 2), rank - 1, rank - 2]
                right = builder.emit(relax.op.permute_dims(builder.emit(relax.op.permute_dims(right, axes)), axes))
            value = builder.emit(relax.op.matmul(value, right))
            if there_and_back and len(batch) == 2:
                value = builder.emit(relax.op.permute_dims(value, (2, 0, 1, 3)))
                value = builder.emit(relax.op.permute_dims(value, (1, 2, 0, 3)))
        return relax.op.exp(builder.emit(relax.op.multiply(value, relax.const(np.float32(1e-3)))))

    shapes = [(*batch, 7, sizes[0]), *((*batch, rows, columns) for rows, columns in pairwise(sizes))]

    def expected(x: Array, *others: Array) -> Array:
        for other, (matrix, *_) in zip(others, steps, strict=True):
            x = np.matmul(x, other if matrix is None else matrix)
        return np.exp(x * np.float32(1e-3))

    check(module(build, *shapes), expected)


def test_a_compiled_model_speaks_the_same_interface() -> None:
    """Weights that were parameters of the model are bound before they are packed."""
    weight = constant(12, 20)
    mod = module(lambda _, x, w: relax.op.matmul(x, w), (3, 12), (12, 20))
    compiled = tvm_ext.compile(mod, params={"x1": weight})
    x = constant(3, 12)
    (result,) = compiled.run([x]).values()
    np.testing.assert_allclose(result, x @ weight, rtol=0, atol=1e-4)
