"""Mixtures of experts: rows counted by expert and multiplied by its matrix, against torch."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import library, nn
from torch.nn import functional

import tvm_ext
from tvm_ext.errors import UnsupportedOperatorError

pytestmark = pytest.mark.torch


def run(module: nn.Module, *inputs: torch.Tensor) -> list[np.ndarray]:
    compiled = tvm_ext.compile(module, "native", example_inputs=inputs)
    return list(compiled.run([given.numpy() for given in inputs]).values())


def multiplied(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    product, start = x.new_zeros(x.shape[0], weight.shape[2]), 0
    for matrix, end in zip(weight, ends.tolist(), strict=True):
        product[start:end] = x[start:end] @ matrix
        start = end
    return product


@pytest.fixture(autouse=True, scope="module")
def _operator() -> Iterator[None]:
    """Define the operator that transformers puts in place of ``grouped_mm`` where a program is exported."""
    with library._scoped_library("transformers", "FRAGMENT") as fragment:
        fragment.define("grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor")
        fragment.impl("grouped_mm_fallback", lambda x, w, offs: x.new_zeros(x.shape[0], w.shape[2]), "Meta")
        fragment.impl("grouped_mm_fallback", multiplied, "CPU")
        yield


class Grouped(nn.Module):
    """Rows times the matrices of their groups, stored as they are multiplied or transposed."""

    def __init__(self, groups: int, dtype: torch.dtype, transposed: bool) -> None:
        super().__init__()
        weight = torch.randn(groups, 24, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
        self.weight = nn.Parameter(weight.transpose(1, 2).contiguous() if transposed else weight)
        self.transposed = transposed

    def matrices(self) -> torch.Tensor:
        return self.weight.transpose(1, 2) if self.transposed else self.weight

    def forward(self, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        if rows.dtype == torch.bfloat16:  # the only type that torch exports it of
            return functional.grouped_mm(rows, self.matrices(), offs=ends).float()
        return torch.ops.transformers.grouped_mm_fallback(rows, self.matrices(), ends)


@pytest.mark.parametrize("ends", [(3, 5, 9), (0, 9, 9), (9, 9, 9), (0, 0, 9)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_rows_times_matrices_of_their_groups(ends: tuple[int, ...], dtype: torch.dtype) -> None:
    module = Grouped(len(ends), dtype, transposed=ends[0] == 3)
    rows = torch.randn(9, 24, generator=torch.Generator().manual_seed(1)).to(dtype)
    compiled = tvm_ext.compile(module, "native", example_inputs=(rows, torch.tensor(ends, dtype=torch.int32)))
    (found,) = compiled.run([rows, torch.tensor(ends, dtype=torch.int32)]).values()
    group = np.searchsorted(np.array(ends), np.arange(9), side="right")
    wanted = np.einsum("sk,skn->sn", rows.double().numpy(), module.matrices().detach().double().numpy()[group])
    error = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2**-8}[dtype]
    np.testing.assert_allclose(found, wanted, rtol=error, atol=error)


def test_rows_behind_the_last_group_are_zero() -> None:
    class Rows(nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            return torch.ops.transformers.grouped_mm_fallback(x, w, ends)

    (found,) = run(Rows(), torch.ones(5, 3), torch.ones(2, 3, 7), torch.tensor([1, 3], dtype=torch.int32))
    np.testing.assert_array_equal(found, np.where(np.arange(5)[:, None] < 3, 3.0, 0.0) * np.ones(7))


class Counts(nn.Module):
    """Histograms between given ends."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        ends = [(8, 0, 7), (5, -1.5, 2.25), (1, 0, 1), (100, -3, 3)]
        return [torch.histc(x, bins, low, high) for bins, low, high in ends]


def test_histograms() -> None:
    x = torch.randn(7, 31, generator=torch.Generator().manual_seed(2)) * 2
    x[0, :12] = torch.tensor([0, 7, 1, -1.5, 2.25, 3, -3, float("inf"), -float("inf"), float("nan"), 6.999999, -0.0])
    for found, wanted in zip(run(Counts(), x), Counts()(x), strict=True):
        np.testing.assert_array_equal(found, wanted.numpy())


def test_a_histogram_between_ends_that_are_found_is_refused() -> None:
    class Found(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.histc(x, 10)

    with pytest.raises(UnsupportedOperatorError, match=r"aten\.histc.* give min and max"):
        run(Found(), torch.randn(9))


class Experts(nn.Module):
    """The layer as transformers exports it: sorted by expert, multiplied, weighted, and put back."""

    def __init__(self, experts: int, taken: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.experts, self.taken = experts, taken
        self.router = nn.Parameter(torch.randn(experts, 24, generator=generator))
        self.up = nn.Parameter(torch.randn(experts, 40, 24, generator=generator) / 5)
        self.down = nn.Parameter(torch.randn(experts, 24, 40, generator=generator) / 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grouped_mm = torch.ops.transformers.grouped_mm_fallback
        weights, chosen = (x @ self.router.T).softmax(-1).topk(self.taken, -1)
        ordered, order = torch.sort(chosen.reshape(-1), stable=True)
        counts = torch.histc(ordered.float(), bins=self.experts, min=0, max=self.experts - 1)
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        hidden = functional.silu(grouped_mm(x[order // self.taken], self.up.transpose(1, 2), ends))
        found = grouped_mm(hidden, self.down.transpose(1, 2), ends)
        found = found * weights.reshape(-1)[order].unsqueeze(-1)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.shape[0])
        return found[back].reshape(x.shape[0], self.taken, -1).sum(1)


@pytest.mark.parametrize(("rows", "experts", "taken"), [(17, 8, 2), (1, 8, 3), (5, 3, 1)])
def test_a_layer_of_experts(rows: int, experts: int, taken: int) -> None:
    module = Experts(experts, taken)
    x = torch.randn(rows, 24, generator=torch.Generator().manual_seed(4))
    (found,) = run(module, x)
    with torch.no_grad():
        np.testing.assert_allclose(found, module(x).numpy(), rtol=1e-4, atol=1e-5)
