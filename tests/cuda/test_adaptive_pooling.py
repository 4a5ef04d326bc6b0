"""Adaptive average pooling on CUDA whose result does not divide the picture, against PyTorch."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional
from tvm.script import relax as R

from scripts.cuda.kernels import kernels_of, target_of
from tests.schedules.kernels import graph
from tvm_ext.backends.cuda.emulator.emulate import Emulator
from tvm_ext.schedules.rule import RULE_ATTRIBUTE

pytestmark = pytest.mark.torch
TARGET = target_of("sm_90")


@pytest.mark.parametrize(
    ("size", "result", "dtype", "tolerance"),
    [
        ((17, 13), (7, 5), "float32", 1e-6),
        ((9, 7), (3, 5), "float32", 1e-6),  # one divides: TVM's kernel was refused for CUDA
        ((1, 17), (1, 7), "float32", 1e-6),  # as PyTorch pools along one axis: refused likewise
        ((3, 2), (7, 5), "float32", 1e-6),
        ((129, 127), (3, 4), "float16", 1e-3),  # sums of 1419 elements, in float32
    ],
)
def test_windows_of_several_sizes(size: Sequence[int], result: Sequence[int], dtype: str, tolerance: float) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, *size)).astype(dtype)
    mod = graph(lambda _, x: R.nn.adaptive_avg_pool2d(x, tuple(result)), [(x.shape, dtype)])
    (kernel,) = kernels_of("graph", mod, TARGET)
    assert kernel.scheduled.attrs[RULE_ATTRIBUTE] == "cuda.window"
    done = Emulator(kernel.scheduled, TARGET)([x, np.full((2, 3, *result), 77, dtype)])
    assert not done.report.faults
    expected = functional.adaptive_avg_pool2d(torch.from_numpy(x).double(), result).numpy()
    np.testing.assert_allclose(done.arrays[1].astype("float64"), expected, atol=tolerance)
