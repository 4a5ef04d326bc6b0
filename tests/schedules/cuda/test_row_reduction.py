"""Reductions for CUDA against PyTorch, threads one after another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tvm import relax

from tests.schedules.cuda_kernels import CUDA, cuda_source, kernels_of, run_serially, schedule_graph, thread_extents
from tests.schedules.kernels import AWKWARD
from tvm_ext.backends.cuda.emulator.emulate import Emulator
from tvm_ext.schedules.cuda import RULES
from tvm_ext.schedules.rule import RULE_ATTRIBUTE

op = relax.op
tensor = torch.from_numpy


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


@pytest.mark.parametrize("width", AWKWARD[::2])
def test_softmax(width: int) -> None:
    x = values(5, width)
    compiled = run_serially(lambda _, a: op.nn.softmax(a), [x], RULES)
    assert set(compiled.rules.values()) == {"cuda.row_reduction"}
    assert len(compiled.kernels) == 1
    np.testing.assert_allclose(compiled(x), torch.softmax(tensor(x), -1).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("width", "kept"), [(8192, True), (11_136, True), (11_137, False), (20_001, False)])
def test_long_rows(width: int, kept: bool) -> None:
    """One kernel; exponentials are kept in shared memory as long as it has room, and computed again beyond that."""
    x = values(2, width)
    x[1, 5] = 80
    module = schedule_graph(lambda _, a: op.nn.softmax(a), [x], RULES)
    (kernel,) = kernels_of(module).values()
    assert kernel.attrs[RULE_ATTRIBUTE] == "cuda.row_reduction"
    assert (f"T_softmax_exp_shared_ptr[{width}]" in cuda_source(module)) == kept
    run = Emulator(kernel.with_attr("global_symbol", "main"), CUDA["sm_90"])
    result = run([x, np.zeros_like(x)])
    assert not result.report.findings
    np.testing.assert_allclose(result.arrays[-1], torch.softmax(tensor(x), -1).numpy(), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("shape", [(2, 21, 7, 9), (1, 64, 8, 8), (3, 1000, 1, 1)])
def test_softmax_across_rows(shape: tuple[int, ...]) -> None:
    x = values(*shape)
    compiled = run_serially(lambda _, a: op.nn.softmax(a, axis=1), [x], RULES)
    assert set(compiled.rules.values()) == {"cuda.row_reduction"}
    np.testing.assert_allclose(compiled(x), torch.softmax(tensor(x), 1).numpy(), rtol=1e-5, atol=1e-6)


def test_normalisations_are_one_kernel() -> None:
    x, scale, shift = values(3, 33, 768), values(768, seed=1), values(768, seed=2)
    compiled = run_serially(lambda _, a, g, b: op.nn.layer_norm(a, g, b, axes=[-1]), [x, scale, shift], RULES)
    expected = torch.layer_norm(tensor(x), (768,), tensor(scale), tensor(shift)).numpy()
    np.testing.assert_allclose(compiled(x, scale, shift), expected, rtol=1e-4, atol=1e-4)
    assert list(compiled.rules.values()) == ["cuda.row_reduction"]
    compiled = run_serially(lambda _, a, g: op.nn.rms_norm(a, g, axes=[-1]), [x, scale], RULES)
    expected = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale
    np.testing.assert_allclose(compiled(x, scale), expected, rtol=1e-4, atol=1e-4)
    assert list(compiled.rules.values()) == ["cuda.row_reduction"]


@pytest.mark.parametrize(
    ("shape", "build", "reference"),
    [
        ((2, 64, 7, 7), lambda _, a: op.nn.relu(op.mean(a, [2, 3])), lambda x: np.maximum(x.mean((2, 3)), 0)),
        ((8, 100, 33), lambda _, a: op.sum(a, 1), lambda x: x.sum(1)),
        ((8, 100, 31), lambda _, a: op.sum(a), lambda x: x.sum()),
        ((3, 17, 31), lambda _, a: op.argmax(a, -1), lambda x: x.argmax(-1)),
        ((31, 17), lambda _, a: op.max(a, 0, keepdims=True), lambda x: x.max(0, keepdims=True)),
        ((1, 2), lambda _, a: op.sum(a, 1), lambda x: x.sum(1)),
    ],
)
def test_reductions(shape: tuple[int, ...], build: Callable, reference: Callable) -> None:
    x = values(*shape)
    compiled = run_serially(build, [x], RULES)
    assert set(compiled.rules.values()) == {"cuda.row_reduction"}
    got, expected = compiled(x), reference(x)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)


def test_a_product_with_a_vector_uses_the_whole_gpu() -> None:
    x, w, b = values(1, 512), values(512, 1000, seed=1), values(1000, seed=2)

    def build(_: relax.BlockBuilder, a: relax.Var, c: relax.Var, d: relax.Var) -> relax.Expr:
        return op.nn.relu(op.add(op.matmul(a, c), d))

    compiled = run_serially(build, [x, w, b], RULES)
    np.testing.assert_allclose(compiled(x, w, b), np.maximum(x @ w + b, 0), rtol=1e-4, atol=1e-3)
    (kernel,) = compiled.kernels.values()
    extents = thread_extents(kernel)
    assert extents["blockIdx.x"] >= 100
    assert extents["threadIdx.x"] * extents["threadIdx.y"] >= 128


def test_a_row_is_added_up_by_warp_shuffles() -> None:
    module = schedule_graph(lambda _, a: op.sum(a, 1), [values(500, 4096)], RULES)
    source = cuda_source(module)
    assert "__shfl_down_sync" in source
    (kernel,) = kernels_of(module).values()
    assert thread_extents(kernel)["blockIdx.x"] == 500
