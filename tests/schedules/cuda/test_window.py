"""Pooling, depthwise and grouped convolutions for CUDA against PyTorch, threads one after another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional
from tvm import relax

from tests.schedules.cuda_kernels import cuda_source, run_serially, schedule_graph
from tvm_ext.schedules.cuda import RULES

op = relax.op
tensor = torch.from_numpy


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


@pytest.mark.parametrize("groups", [4, 12])
@pytest.mark.parametrize("strides", [1, 2])
def test_grouped_convolutions(groups: int, strides: int) -> None:
    x, w, b = values(2, 12, 15, 17), values(24, 12 // groups, 3, 3, seed=1), values(1, 24, 1, 1, seed=2)

    def build(_: relax.BlockBuilder, a: relax.Var, c: relax.Var, d: relax.Var) -> relax.Expr:
        return op.clip(op.add(op.nn.conv2d(a, c, strides=strides, padding=1, groups=groups), d), 0, 6)

    compiled = run_serially(build, [x, w, b], RULES)
    assert set(compiled.rules.values()) == {"cuda.window"}
    expected = functional.conv2d(tensor(x), tensor(w), stride=strides, padding=1, groups=groups).numpy() + b
    np.testing.assert_allclose(compiled(x, w, b), np.clip(expected, 0, 6), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("build", "reference"),
    [
        (
            lambda _, a: op.nn.max_pool2d(a, (3, 3), strides=2, padding=1),
            lambda x: functional.max_pool2d(x, 3, 2, 1),
        ),
        (
            lambda _, a: op.nn.relu(op.nn.avg_pool2d(a, (3, 3), strides=1, padding=1)),
            lambda x: functional.relu(functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)),
        ),
    ],
)
def test_pooling(build: Callable, reference: Callable) -> None:
    x = values(2, 5, 15, 17)
    compiled = run_serially(build, [x], RULES)
    assert set(compiled.rules.values()) == {"cuda.window"}
    np.testing.assert_allclose(compiled(x), reference(tensor(x)).numpy(), rtol=1e-5, atol=1e-5)


def test_what_is_fused_behind_stays_in_a_register_and_padding_is_not_stored() -> None:
    def build(_: relax.BlockBuilder, a: relax.Var, c: relax.Var) -> relax.Expr:
        return op.nn.relu(op.nn.conv2d(a, c, padding=1, groups=8))

    source = cuda_source(schedule_graph(build, [values(1, 8, 33, 33), values(8, 1, 3, 3)], RULES))
    assert source.count('extern "C" __global__ void') == 2  # one kernel: declared and defined
