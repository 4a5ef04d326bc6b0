"""Sampling at places that another tensor names: numbers and shapes against torch."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F
from torch import nn

from tests.frontend.compiled import Compiled, assert_same
from tvm_ext.frontend.torch.model import import_torch

pytestmark = pytest.mark.torch

CASES = [
    ("bilinear", "zeros", False),
    ("bilinear", "border", True),
    ("bilinear", "reflection", False),
    ("nearest", "zeros", True),
    ("nearest", "reflection", False),
    ("bicubic", "zeros", False),
    ("bicubic", "border", True),
]


class Samples(nn.Module):
    """Samples its input by each of some methods."""

    def __init__(self, cases: list[tuple[str, str, bool]]) -> None:
        super().__init__()
        self.cases = cases

    def forward(self, data: Any, grid: Any) -> list[Any]:
        return [F.grid_sample(data, grid, *case) for case in self.cases]


@pytest.mark.parametrize(
    ("data", "grid", "cases"),
    [
        ((2, 3, 5, 6), (2, 2, 2, 2), CASES),  # a grid that has the same shape with its axes in another order
        ((1, 2, 5, 6), (1, 7, 3, 2), CASES[:4]),
        ((1, 1, 1, 6), (1, 3, 4, 2), [("bilinear", "reflection", True)]),  # an axis of one element
        ((1, 2, 3, 4, 5), (1, 2, 3, 1, 3), [("bilinear", "zeros", False)]),
    ],
)
def test_places_are_those_of_torch(data: Any, grid: Any, cases: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(data, generator=generator), torch.randn(grid, generator=generator) * 1.4
    module = Samples(cases)
    found = Compiled(import_torch(module, inputs).mod)(*inputs)
    assert_same(found, module(*inputs), list(map(str, cases)))
