"""NaN in PyTorch models: where it goes, against torch."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn

import tvm_ext

pytestmark = pytest.mark.torch

NAN = float("nan")
VALUES = torch.tensor([[2.0, NAN, -1.0, NAN, 0.5], [float("inf"), 3.0, -0.0, 0.0, -float("inf")], [NAN] * 5])


class All(nn.Module):
    """Computes every case."""

    def __init__(self, cases: list[Callable[[Any], Any]]) -> None:
        super().__init__()
        self.cases = cases

    def forward(self, x: Any) -> list[Any]:
        return [case(x) for case in self.cases]


def assert_as_torch(cases: list[Callable[[Any], Any]], x: Any) -> None:
    module = All(cases)
    found = tvm_ext.compile(module, example_inputs=[x]).run([x])
    for index, (ours, theirs) in enumerate(zip(found.values(), module(x), strict=True)):
        assert ours.dtype == theirs.numpy().dtype, index
        np.testing.assert_array_equal(ours, theirs.numpy(), str(index))


def test_bounds() -> None:
    assert_as_torch(
        [
            lambda x: x.clamp(max=NAN),
            lambda x: x.clamp(0.5, -0.5),
            lambda x: x.clamp(0.5, 0.5),
            lambda x: x.clamp(min=float("inf")),
            lambda x: x.clamp(-0.5, 0.5),
        ],
        VALUES,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_order(dtype: torch.dtype) -> None:
    assert_as_torch(
        [
            lambda x: torch.sort(x)[0],
            lambda x: torch.sort(x, descending=True)[0],
            lambda x: torch.argsort(x, dim=0),
            lambda x: torch.topk(x, 3)[0],
            lambda x: torch.topk(x, 2, largest=False)[0],
            lambda x: x.max(1)[0],
            lambda x: x.argmax(1),
            lambda x: x.argmin(1),
            lambda x: x.argmax(),
            lambda x: x.argmax(0, keepdim=True),
            lambda x: x.median(),
            lambda x: x.median(1)[0],
            lambda x: x[2:, :1].median(1)[1],
        ],
        VALUES.to(dtype),
    )
