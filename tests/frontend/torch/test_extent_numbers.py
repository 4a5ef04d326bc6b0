"""Numbers that Python computes of open extents: the numbers of PyTorch."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

from tests.frontend.torch.test_open_forms import AUTO, check  # noqa: E402

SIZES = ((1, 2), (2, 3), (3, 7), (2, 31), (1, 127), (4, 17))


class Numbers(torch.nn.Module):
    def forward(self, x: Any) -> tuple[Any, ...]:
        b, n, _ = x.shape
        more = torch.arange(torch.sym_max(b, n)), x.new_ones(torch.sym_max(n - 3, 0), torch.sym_min(b, 2))
        frames = torch.arange(math.ceil(n / 4)), torch.full((b,), n), torch.full((b,), 1.0 / n)
        return *more, *frames, x / n, x * (1 / n) + b, x.sum(1) / torch.tensor(n), x.clamp(-1.5, b)


def test_numbers() -> None:
    # From 4 rows on: torch makes it a condition that there is more than one frame.
    check(Numbers(), [(torch.randn(b, n + 4, 5),) for b, n in SIZES], ({0: AUTO, 1: AUTO},))


class Scaled(torch.nn.Module):
    """Sizes that ``F.interpolate`` computes of a scale in floating point."""

    def forward(self, x: Any) -> tuple[Any, ...]:
        by_half, by_fifth = (F.interpolate(x, scale_factor=scale, mode="bilinear") for scale in (1.5, 1.2))
        return by_half, by_fifth, F.interpolate(x, scale_factor=0.4), F.interpolate(x, scale_factor=2.5, mode="bicubic")


def test_scales_that_are_fractions() -> None:
    sizes = ((1, 5, 7), (2, 10, 6), (1, 33, 5), (3, 17, 31), (2, 20, 25))
    check(Scaled(), [(torch.randn(b, 2, h, w),) for b, h, w in sizes], ({0: AUTO, 2: AUTO(min=5), 3: AUTO(min=5)},))


class Cuts(torch.nn.Module):
    """Lists of lengths that add up, every second, padding with what is there, and rows shifted against each other."""

    def forward(self, x: Any, y: Any) -> tuple[Any, ...]:
        b, n, _ = x.shape
        first, second = y.split((n, n), 1)
        turned = x.transpose(1, 2)
        padded = (F.pad(turned, (1, 2), mode=mode) for mode in ("replicate", "circular"))
        scores = F.pad(x @ y.transpose(1, 2), (1, 0)).view(b, -1, n)[:, 1:].view(b, n, 2 * n)
        steps = x[:, 1:] - x[:, :-1]
        return first * second, y[:, ::2] * x, y[:, 1::2] + x, *padded, scores[:, :, :n].softmax(-1), steps


def test_cuts() -> None:
    cases = [(torch.randn(b, n, 5), torch.randn(b, 2 * n, 5)) for b, n in SIZES[1:]]
    length = torch.export.Dim("n", min=3, max=200)
    check(Cuts(), cases, ({0: AUTO, 1: length}, {0: AUTO, 1: 2 * length}))


class Groups(torch.nn.Module):
    """Reductions by group whose places may be fewer than what they are given."""

    def forward(self, x: Any, places: Any) -> tuple[Any, ...]:
        start = torch.full((x.shape[0], 4), 0.5)
        means = start.scatter_reduce(1, places, x, "mean", include_self=False)
        return means, start.scatter_reduce(1, places, x, "amax"), x.scatter_add(1, places, x)


def test_groups() -> None:
    cases = [
        (torch.randn(b, n), torch.randint(0, min(4, n), (i, k))) for b, n, i, k in
        ((1, 1, 1, 1), (2, 3, 1, 2), (3, 7, 3, 7), (2, 31, 2, 17), (7, 33, 5, 31), (4, 17, 3, 9))
    ]  # fmt: skip
    check(Groups(), cases, ({0: AUTO, 1: AUTO}, {0: AUTO, 1: AUTO}))


class Few(torch.nn.Module):
    """As many of the largest and of the smallest as extents say, NaN first."""

    def forward(self, x: Any, order: Any) -> tuple[Any, ...]:
        n = x.shape[1]
        largest, places = x.topk(n // 2, 1)
        smallest, where = order.topk(torch.sym_min(5, n), 1, largest=False)
        return largest, places, smallest, where


def test_few_of_many() -> None:
    def given(b: int, n: int) -> Any:
        x = torch.randn(b, n)
        x[:, n // 2] = math.nan
        return x, torch.stack([torch.randperm(n) for _ in range(b)]).to(torch.int16)

    # From 6 on: torch makes the number of the smallest a condition.
    sizes = ((1, 6), (2, 7), (1, 17), (4, 31), (2, 127), (3, 9))
    check(Few(), [given(*size) for size in sizes], ({0: AUTO, 1: AUTO}, {0: AUTO, 1: AUTO}))
