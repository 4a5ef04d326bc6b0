"""Kernels that TVM schedules, in the emulator, against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tvm import te, tirx

from tests.cuda_emulator import kernels
from tvm_ext.backends.cuda.emulator.emulate import Emulator
from tvm_ext.backends.cuda.emulator.findings import OUT_OF_BOUNDS

TARGET, random = kernels.TARGET, kernels.random


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (3, 7, 17), (33, 17, 129), (129, 33, 7), (1, 127, 33)])
def test_products(m: int, n: int, k: int) -> None:
    a, b = random(m, k), random(k, n)
    run = Emulator(kernels.matmul(m, n, k), TARGET)([a, b, np.zeros((m, n), np.float32)])
    np.testing.assert_allclose(run.arrays[2], a @ b, rtol=1e-4, atol=1e-5)
    assert not run.report.faults, str(run.report)
    assert run.report.checked_blocks == run.report.blocks


@pytest.mark.slow  # TVM writes all its intrinsics before it uses one
def test_a_product_with_tensor_cores() -> None:
    """DLight's software pipeline of ``wmma``, with padded borders and merged shared memory."""
    a, b = random(129, 127, dtype="float16"), random(127, 129, dtype="float16")
    run = Emulator(kernels.matmul(129, 129, 127, "float16"), TARGET)([a, b, np.zeros((129, 129), np.float16)])
    # Sums are kept in 16 bits, as the function says.
    np.testing.assert_allclose(run.arrays[2], a.astype("f4") @ b.astype("f4"), rtol=0.02, atol=0.1)
    assert not run.report.faults, str(run.report)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 7), (17, 129), (2, 1025)])
def test_softmax(m: int, n: int) -> None:
    x = random(m, n)
    run = Emulator(kernels.softmax(m, n), TARGET)([x, np.zeros_like(x)])
    expected = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(run.arrays[1], expected / expected.sum(1, keepdims=True), rtol=1e-5)
    assert not run.report.faults, str(run.report)


@pytest.mark.parametrize(("m", "n"), [(1, 3), (7, 127), (33, 17)])
def test_sums_of_rows(m: int, n: int) -> None:
    x = random(m, n)
    run = Emulator(kernels.row_sum(m, n), TARGET)([x, np.zeros(m, np.float32)])
    np.testing.assert_allclose(run.arrays[1], x.sum(1), rtol=1e-4, atol=1e-5)
    assert not run.report.faults, str(run.report)


@pytest.mark.parametrize(("m", "n"), [(1, 129), (17, 33), (127, 7)])
def test_transposes(m: int, n: int) -> None:
    x = random(m, n)
    run = Emulator(kernels.transpose(m, n), TARGET)([x, np.zeros((n, m), np.float32)])
    np.testing.assert_array_equal(run.arrays[1], x.T)
    assert not run.report.faults, str(run.report)


def test_a_convolution() -> None:
    x, w = random(1, 3, 17, 17), random(7, 3, 3, 3)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    expected = np.einsum("nchwij,fcij->nfhw", windows, w)
    run = Emulator(kernels.convolution(3, 17, 7), TARGET)([x, w, np.zeros(expected.shape, np.float32)])
    np.testing.assert_allclose(run.arrays[2], expected, rtol=1e-4, atol=1e-5)
    assert not run.report.faults, str(run.report)


def test_a_fault_of_tvm_is_found() -> None:
    """Lowering a reduction over threads drops the bound of its rows: 17 rows are stored as 32 (TVM 0.27)."""
    a, b = random(17, 7), random(7, 1)
    run = Emulator(kernels.matmul(17, 1, 7), TARGET)([a, b, np.zeros((17, 1), np.float32)])
    np.testing.assert_allclose(run.arrays[2], a @ b, rtol=1e-4, atol=1e-5)
    (fault,) = run.report.faults
    assert (fault.kind, fault.count) == (OUT_OF_BOUNDS, 15)
    assert "element 17 of 17" in fault.text


def test_threads_in_step_do_not_change_values() -> None:
    """However many blocks run at once, the numbers are the same."""
    a, b, zero = random(33, 65), random(65, 70), np.zeros((33, 70), np.float32)
    emulator = Emulator(kernels.matmul(33, 70, 65), TARGET)
    first, second = emulator([a, b, zero], lanes=1), emulator([a, b, zero], check="none")
    np.testing.assert_array_equal(first.arrays[2], second.arrays[2])
    assert first.report.blocks == second.report.blocks > 1
    assert second.report.checked_blocks == 0


@pytest.mark.parametrize("name", ["erfc", "lgamma"])
def test_functions_of_the_c_library(name: str) -> None:
    x = np.array([-np.inf, -2, -1.5, -0.3, 0, 0.4, 3, 20, np.inf, np.nan], "float32")
    a = te.placeholder(x.shape, name="A")
    func = kernels.scheduled(a, te.compute(a.shape, lambda i: tirx.call_pure_extern("float32", f"{name}f", a[i])))
    expected = {"erfc": math.erfc, "lgamma": lambda v: math.inf if v in (0, -2) else math.lgamma(v)}[name]
    run = Emulator(func, TARGET)([x, np.zeros_like(x)])
    np.testing.assert_allclose(run.arrays[1], np.array([expected(float(v)) for v in x], "float32"), rtol=1e-6)
