"""Attention: its values, and how its results lie in memory, which code behind the graph may depend on."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F
from torch import Tensor, randn

from tests.torch_compile.eager import STRICT, assert_same, compiled

pytestmark = pytest.mark.torch

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
BATCH, HEADS, LENGTH, SIZE = 2, 3, 5, 4


def query(layout: str, length: int = LENGTH) -> Tensor:
    """Four axes (batch, head, place, element), which lie in memory in various orders."""
    if layout == "of their own":
        return randn(BATCH, HEADS, length, SIZE)
    if layout == "places before heads":
        return randn(BATCH, length, HEADS, SIZE).transpose(1, 2)
    if layout == "places first":
        return randn(length, BATCH, HEADS, SIZE).permute(1, 2, 0, 3)
    if layout == "cut from a product":
        return randn(BATCH, length, 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)[0]
    return randn(BATCH, HEADS, SIZE, length).transpose(2, 3)


LAYOUTS = ("of their own", "places before heads", "places first", "cut from a product", "elements before places")


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def check(run: Any, arguments: list[Tensor], view: bool) -> None:
    found, wanted = run(*arguments), attend(*arguments)
    assert_same(found, wanted, **CLOSE)
    steps = zip(found.shape, found.stride(), wanted.stride(), strict=True)
    assert all(ours == theirs for extent, ours, theirs in steps if extent != 1)
    if view:
        found.transpose(1, 2).view(BATCH, found.shape[2], HEADS * SIZE)


@pytest.mark.parametrize("gradients", [False, True])
def test_results_lie_as_the_query_does(gradients: bool) -> None:
    for layout in LAYOUTS:
        torch._dynamo.reset()
        arguments = [query(layout).requires_grad_(gradients) for _ in range(3)]
        check(compiled(attend), arguments, view=layout.startswith(("places before", "cut")))


@pytest.mark.filterwarnings("ignore::tvm_ext.errors.PerformanceWarning")
@pytest.mark.parametrize("dynamic", [None, True])
def test_over_any_length(dynamic: bool | None) -> None:
    for layout in ("places before heads", "of their own"):
        torch._dynamo.reset()
        run = compiled(attend, STRICT, dynamic=dynamic)
        for length in (5, 7, 1, 17):
            check(run, [query(layout, length) for _ in range(3)], view=layout == "places before heads")
