"""Attention: its values, and how its results lie in memory, which code behind the graph may depend on."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F
from torch import Tensor, randn

from tests.torch_compile.eager import STRICT, assert_same, compiled
from tvm_ext.artifact.compiled_model import CompiledModel

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


OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "added mask": {"attn_mask": torch.arange(25.0).reshape(5, 5).sin()},
    "mask": {"attn_mask": torch.tensor([True, False, True, True, False])[:, None].expand(5, 5)},
    "mask of heads": {"attn_mask": torch.arange(BATCH * 6 * 25).reshape(BATCH, 6, 5, 5) % 3 > 0},
    "shared heads": {"enable_gqa": True},
    "shared heads, causal": {"enable_gqa": True, "is_causal": True},
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options(case: str) -> None:
    """Results and how they lie in memory are those of PyTorch."""
    options = OPTIONS[case]
    heads = 2 if options.get("enable_gqa") else 6

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, **options)

    for inside in (True, False):
        torch._dynamo.reset()
        shapes = [(BATCH, LENGTH, number, SIZE) for number in (6, heads, heads)]
        q, k, v = (randn(*shape).transpose(1, 2) for shape in shapes)
        if not inside:
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        found, wanted = compiled(run)(q, k, v), run(q, k, v)
        assert_same(found, wanted, **CLOSE)
        assert found.stride() == wanted.stride()


@pytest.mark.parametrize("shared", [False, True])
def test_it_is_one_kernel(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores are nowhere in memory."""
    shapes = [(1, heads, 64, 32) for heads in (8, *[2 if shared else 8] * 2)]
    kernels: list[str] = []
    run_tensors = CompiledModel.run_tensors

    def noted(self: CompiledModel, *arguments: Any, **keywords: Any) -> Any:
        kernels.extend(re.findall(r"@(\w+) packed_func", self.executable.as_text()))
        return run_tensors(self, *arguments, **keywords)

    monkeypatch.setattr(CompiledModel, "run_tensors", noted)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared)

    compiled(run)(*(randn(*shape) for shape in shapes))
    assert not any("softmax" in name or "matmul" in name for name in kernels)
    assert sum("attention" in name for name in kernels) == 1
