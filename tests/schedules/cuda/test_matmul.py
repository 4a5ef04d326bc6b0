"""Products and convolutions for CUDA against numpy and PyTorch, threads one after another."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tvm import relax

from tests.schedules.cuda_kernels import CUDA, cuda_source, kernels_of, run_serially, schedule_graph, thread_extents
from tests.schedules.kernels import AWKWARD
from tvm_ext.schedules.cuda import RULES
from tvm_ext.schedules.cuda.machine import machine_of
from tvm_ext.schedules.cuda.matmul import schedule_product
from tvm_ext.schedules.cuda.product import find_product
from tvm_ext.schedules.cuda.product_tile import Tile
from tvm_ext.schedules.rule import new_schedule

op = relax.op


def values(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def biased(_: relax.BlockBuilder, x: relax.Var, w: relax.Var, b: relax.Var) -> relax.Expr:
    return op.nn.relu(op.add(op.matmul(x, w), b))


@pytest.mark.parametrize("extent", [item for item in AWKWARD if item > 3][::2])
def test_matmul_with_bias(extent: int) -> None:
    x, w, b = values(33, extent), values(extent, 17, seed=1), values(17, seed=2)
    compiled = run_serially(biased, [x, w, b], RULES)
    assert set(compiled.rules.values()) == {"cuda.matmul"}
    np.testing.assert_allclose(compiled(x, w, b), np.maximum(x @ w + b, 0), rtol=1e-4, atol=1e-4)


def test_batches_transposes_and_broadcast() -> None:
    x, y = values(2, 3, 33, 17), values(2, 3, 40, 17, seed=1)
    compiled = run_serially(lambda _, a, b: op.matmul(a, op.permute_dims(b, [0, 1, 3, 2])), [x, y], RULES)
    assert set(compiled.rules.values()) == {"cuda.matmul", "cuda.transpose"}
    np.testing.assert_allclose(compiled(x, y), x @ y.transpose(0, 1, 3, 2), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "weight", "strides", "padding"),
    [
        ((1, 16, 14, 14), (32, 16, 3, 3), 1, 1),
        ((1, 3, 17, 9), (24, 3, 7, 7), 2, 3),
        ((2, 32, 7, 7), (64, 32, 1, 1), 2, 0),
        ((1, 32, 8, 8), (64, 32, 1, 1), 1, 0),
        ((1, 5, 1, 31), (7, 5, 1, 3), 1, 1),
    ],
)
def test_convolutions(shape: Sequence[int], weight: Sequence[int], strides: int, padding: int) -> None:
    x, w, b = values(*shape), values(*weight, seed=1), values(1, weight[0], 1, 1, seed=2)

    def build(_: relax.BlockBuilder, x: relax.Var, w: relax.Var, b: relax.Var) -> relax.Expr:
        return op.nn.relu(op.add(op.nn.conv2d(x, w, strides=strides, padding=padding), b))

    compiled = run_serially(build, [x, w, b], RULES)
    assert set(compiled.rules.values()) == {"cuda.matmul"}
    expected = torch.nn.functional.conv2d(torch.from_numpy(x), torch.from_numpy(w), stride=strides, padding=padding)
    np.testing.assert_allclose(compiled(x, w, b), np.maximum(expected.numpy() + b, 0), rtol=1e-4, atol=1e-4)


def test_a_deep_product_of_few_results_is_divided() -> None:
    x, w, b = values(1, 256, 7, 7), values(64, 256, 3, 3, seed=1) / 48, values(1, 64, 1, 1, seed=2)

    def build(_: relax.BlockBuilder, x: relax.Var, w: relax.Var, b: relax.Var) -> relax.Expr:
        return op.nn.relu(op.add(op.nn.conv2d(x, w, padding=1), b))

    module = schedule_graph(build, [x, w, b], RULES)
    (kernel,) = kernels_of(module).values()
    assert thread_extents(kernel)["blockIdx.z"] > 1  # parts of the depth
    assert cuda_source(module).count("__global__ void __launch_bounds__") >= 4  # declared and defined
    expected = torch.nn.functional.conv2d(torch.from_numpy(x), torch.from_numpy(w), padding=1).numpy()
    got = run_serially(build, [x, w, b], RULES)(x, w, b)
    np.testing.assert_allclose(got, np.maximum(expected + b, 0), rtol=1e-4, atol=1e-4)


def test_what_cannot_be_inlined_behind_a_product_is_a_kernel_of_its_own() -> None:
    x, w, y = values(9, 17), values(17, 33, seed=1), values(5, 9, 33, seed=2)
    compiled = run_serially(lambda _, a, b, c: op.add(op.matmul(a, b), c), [x, w, y], RULES)
    np.testing.assert_allclose(compiled(x, w, y), x @ w + y, rtol=1e-4, atol=1e-4)


def test_nan_stays_where_it_is() -> None:
    x, w, b = values(33, 16), values(16, 17, seed=1), np.zeros(17, "float32")
    x[7, 3] = np.nan
    got = run_serially(lambda _, a, c, d: op.add(op.matmul(a, c), d), [x, w, b], RULES)(x, w, b)
    assert np.isnan(got[7]).all()
    assert not np.isnan(np.delete(got, 7, axis=0)).any()


@pytest.mark.parametrize("tile", [Tile(128, 128, 8, 8, 8), Tile(64, 8, 32, 4, 2), Tile(16, 16, 16, 2, 2, parts=3)])
def test_any_tile_gives_the_same(tile: Tile) -> None:
    """The choice of the cost model is not what makes a result right."""
    x, w, b = values(33, 100), values(100, 17, seed=1), values(17, seed=2)

    class Fixed:
        name = "fixed"

        def apply(self, func, target, tunable=False):  # type: ignore[no-untyped-def]
            schedule = new_schedule(func)
            product = find_product(schedule)
            assert product is not None
            return schedule_product(schedule, product, tile, machine_of(target))

    compiled = run_serially(biased, [x, w, b], (Fixed(),))
    assert set(compiled.rules.values()) == {"fixed"}
    np.testing.assert_allclose(compiled(x, w, b), np.maximum(x @ w + b, 0), rtol=1e-4, atol=1e-4)


def test_the_tile_follows_the_machine() -> None:
    """A GPU of few multiprocessors gets larger tiles than one of many, for the same product."""
    from tvm_ext.schedules.cuda.product_tile import arithmetic_tile

    module = schedule_graph(biased, [values(512, 512), values(512, 512), values(512)], ())
    schedule = new_schedule(next(iter(kernels_of(module).values())))
    product = find_product(schedule)
    assert product is not None
    large = machine_of(CUDA["sm_90"])
    small = replace(large, multiprocessors=4)
    first, second = (arithmetic_tile(product, machine) for machine in (small, large))
    assert first.rows * first.columns > second.rows * second.columns


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="registers are counted by nvcc, which is not on PATH")
def test_nothing_is_spilled(tmp_path: Path) -> None:
    module = schedule_graph(biased, [values(1024, 1024), values(1024, 4096), values(4096)], RULES)
    (tmp_path / "kernel.cu").write_text(cuda_source(module))
    command = [
        "nvcc",
        "-cubin",
        "-arch=sm_90",
        "-Xptxas",
        "-v",
        "-o",
        str(tmp_path / "out"),
        str(tmp_path / "kernel.cu"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "0 bytes spill stores, 0 bytes spill loads" in done.stderr + done.stdout
