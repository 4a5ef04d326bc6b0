"""Kernels of every rule as the emulator runs them, with the barriers and shuffles that TVM puts in: no races."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch.nn import functional
from tvm import relax, te, topi

from tests.schedules.cuda_kernels import CUDA, kernels_of, schedule_graph
from tvm_ext.backends.cuda.emulator.emulate import Emulator
from tvm_ext.schedules.cuda import RULES
from tvm_ext.schedules.rule import RULE_ATTRIBUTE, apply_rules

op = relax.op


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def check(build: Callable, inputs: Sequence[np.ndarray], expected: np.ndarray, rule: str) -> str:
    """Compare a kernel with numpy; gives its text."""
    (kernel,) = kernels_of(schedule_graph(build, inputs, RULES)).values()
    assert kernel.attrs[RULE_ATTRIBUTE] == rule
    run = Emulator(kernel.with_attr("global_symbol", "main"), CUDA["sm_90"])
    result = run([*inputs, np.zeros(expected.shape, expected.dtype)])
    found = str(result.report)
    assert "race" not in found, found
    assert "bounds" not in found, found
    np.testing.assert_allclose(result.arrays[-1], expected, rtol=1e-4, atol=1e-4)
    return str(kernel.script())


@pytest.mark.parametrize("width", [3, 33, 129, 1000])
def test_softmax(width: int) -> None:
    x = values(8, width)
    expected = torch.softmax(torch.from_numpy(x), -1).numpy()
    check(lambda _, a: op.nn.softmax(a), [x], expected, "cuda.row_reduction")


def test_layer_norm_and_sums_across_rows() -> None:
    x, scale, shift = values(9, 768), values(768, seed=1), values(768, seed=2)
    expected = torch.layer_norm(*map(torch.from_numpy, (x,)), (768,), *map(torch.from_numpy, (scale, shift))).numpy()
    build = lambda _, a, g, b: op.nn.layer_norm(a, g, b, axes=[-1])  # noqa: E731
    check(build, [x, scale, shift], expected, "cuda.row_reduction")
    x = values(4, 100, 33)
    check(lambda _, a: op.sum(a, 1), [x], x.sum(1), "cuda.row_reduction")
    check(lambda _, a: op.max(a, 1), [x], x.max(1), "cuda.row_reduction")


def test_product_with_a_vector() -> None:
    x, w = values(1, 300), values(300, 200, seed=1)
    check(lambda _, a, b: op.matmul(a, b), [x, w], x @ w, "cuda.row_reduction")


@pytest.mark.parametrize(
    "shape", [(33, 17, 129), (64, 300, 31), (7, 1024, 9), (2, 300, 129), (3, 127, 65), (129, 33, 2)]
)
def test_products(shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    x, w, b = values(rows, depth), values(depth, columns, seed=1), values(columns, seed=2)
    build = lambda _, a, c, d: op.nn.relu(op.add(op.matmul(a, c), d))  # noqa: E731
    check(build, [x, w, b], np.maximum(x @ w + b, 0), "cuda.matmul")


@pytest.mark.parametrize("rows", [2, 3, 5, 7])
def test_a_few_vectors_read_the_matrix_once(rows: int) -> None:
    """A dense layer for a small batch: its depth is divided, so that there are blocks enough."""
    x, w = values(rows, 512), values(512, 200, seed=1)
    check(lambda _, a, b: op.matmul(a, b), [x, w], x @ w, "cuda.matmul")


def test_gelu_behind_a_product() -> None:
    """What uses a value twice is still computed where the product is stored."""
    x, w = values(33, 40), values(40, 31, seed=1)
    expected = functional.gelu(torch.from_numpy(x @ w)).numpy()
    check(lambda _, a, b: op.nn.gelu(op.matmul(a, b)), [x, w], expected, "cuda.matmul")


def test_convolution_and_pooling() -> None:
    x, w = values(1, 16, 15, 9), values(24, 16, 3, 3, seed=1)
    tensors = torch.from_numpy(x), torch.from_numpy(w)
    expected = functional.relu(functional.conv2d(*tensors, stride=2, padding=1)).numpy()
    build = lambda _, a, b: op.nn.relu(op.nn.conv2d(a, b, strides=2, padding=1))  # noqa: E731
    check(build, [x, w], expected, "cuda.matmul")
    expected = functional.max_pool2d(tensors[0], 3, 2, 1).numpy()
    check(lambda _, a: op.nn.max_pool2d(a, (3, 3), strides=2, padding=1), [x], expected, "cuda.window")
    expected = functional.avg_pool2d(tensors[0], (3, 3), 3).numpy()
    check(lambda _, a: op.nn.avg_pool2d(a, (3, 3), strides=3), [x], expected, "cuda.window")
    x, y = values(3, 17, 31), values(17, 1, seed=1)
    check(lambda _, a, b: op.exp(op.add(a, b)), [x, y], np.exp(x + y), "cuda.elementwise")


@pytest.mark.parametrize(
    ("shape", "order", "rule"),
    [
        ((64, 96), (1, 0), "cuda.transpose"),
        ((1, 128, 12, 64), (0, 2, 3, 1), "cuda.transpose"),
        ((3, 40, 7, 24), (0, 3, 2, 1), "cuda.transpose"),
        ((2, 12, 64, 16), (0, 2, 1, 3), "cuda.elementwise"),  # rows stay rows
        ((31, 17), (1, 0), "cuda.transpose"),
        ((7, 127), (1, 0), "cuda.elementwise"),  # a prime has no tiles
    ],
)
def test_transposes(shape: tuple[int, ...], order: tuple[int, ...], rule: str) -> None:
    x = values(*shape)
    check(lambda _, a: op.nn.relu(op.permute_dims(a, order)), [x], np.maximum(x.transpose(order), 0), rule)


def test_a_transpose_behind_a_reshape_is_left_to_another_rule() -> None:
    """What is read of the tensor for a tile is then known to be somewhere in all of it only."""
    x = values(1, 128, 312)
    expected = x.reshape(1, 128, 12, 26).transpose(0, 2, 3, 1)

    def build(_: relax.BlockBuilder, a: relax.Var) -> relax.Expr:
        return op.permute_dims(op.reshape(a, (1, 128, 12, 26)), [0, 2, 3, 1])

    check(build, [x], expected, "cuda.elementwise")


@pytest.mark.parametrize("shape", [(2, 72, 48), (5, 96, 31), (2, 9, 72), (3, 24, 12)])
def test_a_reshape_behind_a_transpose(shape: tuple[int, ...]) -> None:
    """Where threads did not take whole rows of a tile, it could not be lowered."""
    x = values(*shape)
    flat = (1, shape[2], 1, shape[0] * shape[1])

    def build(_: relax.BlockBuilder, a: relax.Var) -> relax.Expr:
        return op.reshape(op.permute_dims(a, (2, 0, 1)), flat)

    check(build, [x], x.transpose(2, 0, 1).reshape(flat), "cuda.transpose")


def test_a_transpose_with_a_sum_of_another_tensor() -> None:
    x, y = values(64, 96), values(96, 64, seed=1)
    check(lambda _, a, b: op.add(op.permute_dims(a), b), [x, y], x.T + y, "cuda.transpose")


@pytest.mark.parametrize("shape", [(33, 3), (129, 7), (1000, 17), (3, 300, 5)])
def test_softmax_of_columns(shape: tuple[int, ...]) -> None:
    """Threads that share a row are no neighbours here."""
    x = values(*shape)
    axis = len(shape) - 2
    expected = torch.softmax(torch.from_numpy(x), axis).numpy()
    check(lambda _, a: op.nn.softmax(a, axis), [x], expected, "cuda.row_reduction")


def test_squeeze_and_excitation() -> None:
    """A product of few numbers, which a large tensor is multiplied with by a launch of its own, not by one block."""
    x, w, b = values(1, 8, 1, 1), values(32, 8, 1, 1, seed=1), values(1, 32, 1, 1, seed=3)
    y = values(1, 32, 17, 12, seed=2)

    def build(_: relax.BlockBuilder, x: relax.Var, w: relax.Var, b: relax.Var, y: relax.Var) -> relax.Expr:
        return op.multiply(y, op.sigmoid(op.add(op.nn.conv2d(x, w), b)))

    gate = 1 / (1 + np.exp(-np.einsum("ncij,kcij->nk", x, w) - b[:, :, 0, 0]))
    text = check(build, [x, w, b, y], y * gate[:, :, None, None], "cuda.row_reduction")
    blocks = [int(count) for count in re.findall(r"thread_binding\(T\.int64\((\d+)\), thread=\"blockIdx.x\"\)", text)]
    assert len(blocks) == 2
    assert blocks[-1] > 1


@pytest.mark.parametrize(("rows", "columns"), [(16, 32), (8, 17), (127, 33), (3, 31)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_one_behind_the_other_behind_a_product(rows: int, columns: int, dtype: str) -> None:
    """A result whose tiles are padded is not written with its padding where another one makes one axis of two."""
    depth = 64
    x, w = te.placeholder((rows, depth), dtype), te.placeholder((depth, columns), dtype)
    k = te.reduce_axis((0, depth), name="k")
    term = lambda i, j: x[i, k].astype("float32") * w[k, j].astype("float32")  # noqa: E731
    product = te.compute((rows, columns), lambda i, j: te.sum(term(i, j), axis=k), name="product")
    kernel = te.create_prim_func([x, w, topi.abs(topi.reshape(product, (rows * columns,)))])
    scheduled = apply_rules(kernel, CUDA["sm_90"], RULES)
    assert scheduled.attrs[RULE_ATTRIBUTE].endswith("matmul")
    a, b = values(rows, depth).astype(dtype), values(depth, columns, seed=1).astype(dtype)
    result = Emulator(scheduled, CUDA["sm_90"])([a, b, np.zeros(rows * columns, "float32")])
    assert not result.report.faults, str(result.report)
    expected = np.abs(a.astype("float64") @ b.astype("float64")).reshape(-1)
    np.testing.assert_allclose(result.arrays[-1], expected, rtol=1e-4, atol=1e-3)
