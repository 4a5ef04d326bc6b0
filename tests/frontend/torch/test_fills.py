"""Tensors that torch fills with an infinity or NaN, such as masks of attention."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn

from tests.frontend.compiled import Compiled
from tvm_ext.frontend.torch.model import import_torch

pytestmark = pytest.mark.torch


class Masks(nn.Module):
    """Fills as models write them."""

    def forward(self, x: Any) -> list[Any]:
        length = x.shape[-1]
        mask = torch.full((length, length), float("-inf")).triu(1)
        below = torch.full((length, length), float("-inf")).tril(-2)
        return [
            (x + mask).softmax(-1),
            x.double() + below,
            torch.where(x > 1, torch.full_like(x, float("-inf")), x),
            x.masked_fill(x > 0, float("nan")),
            torch.full((3,), float("nan")) * x[0, 0, 0],
            torch.full((), float("inf"), dtype=torch.float16).expand(2, 3),
            x.new_full((2, 1), float("inf")),
        ]


def test_fills_that_are_not_finite() -> None:
    x = torch.randn(2, 7, 7, generator=torch.Generator().manual_seed(0))
    found = Compiled(import_torch(Masks(), (x,)).mod)(x)
    for ours, theirs in zip(found, Masks()(x), strict=True):
        wanted = theirs.numpy()
        assert (ours.shape, ours.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-6)
