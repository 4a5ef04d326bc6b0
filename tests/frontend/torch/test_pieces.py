"""One piece of a division, masks that are repeated, pools without a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import tvm_ext


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *operands: torch.Tensor) -> Any:
        return self.function(*operands)


def check(function: Callable[..., Any], *operands: torch.Tensor) -> None:
    compiled = tvm_ext.compile(torch.export.export(Function(function), operands))
    feeds = {spec.name: operand.numpy() for spec, operand in zip(compiled.inputs, operands, strict=True)}
    found, expected = list(compiled.run(feeds).values()), function(*operands)
    expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == tuple(theirs.shape)
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.split(x, 5, 1),
        lambda x: torch.split(x, 9, -1),
        lambda x: torch.split(x, [5], 1)[0],
        lambda x: torch.chunk(x, 1, 1)[0] * 2,
        lambda x: torch.split(torch.relu(x), 3, 1),
        lambda x: torch.split(x, 2),
    ],
)
def test_pieces(function: Callable[..., Any]) -> None:
    check(function, torch.randn(3, 5, 4, 4))


@pytest.mark.parametrize(
    "shapes", [((5, 1), (5,)), ((3, 4), (4,)), ((4,), (3, 4)), ((3, 1, 5), (7, 1)), ((2, 3), (2, 3))]
)
def test_masks_that_are_repeated(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    data, mask = torch.randn(shapes[0]), torch.randn(shapes[1]) > 0
    mask.view(-1)[0] = True
    check(torch.masked_select, data, mask)


@pytest.mark.parametrize(
    ("pool", "shape", "size"),
    [
        (functional.adaptive_avg_pool1d, (8, 7), 5),
        (functional.adaptive_avg_pool1d, (2, 3, 7), 3),
        (functional.adaptive_avg_pool2d, (3, 7, 9), (2, 4)),
        (functional.adaptive_avg_pool2d, (3, 7, 9), 1),
        (functional.adaptive_avg_pool3d, (3, 5, 7, 9), (2, 3, 4)),
        (functional.adaptive_max_pool2d, (3, 7, 9), (2, 4)),
    ],
)
def test_pools_without_a_batch(pool: Callable[..., Any], shape: tuple[int, ...], size: Any) -> None:
    check(lambda x: pool(x, size), torch.randn(shape))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.cat([torch.tensor([]), x], 1),
        lambda x: torch.cat([torch.zeros(0), x, torch.zeros(0), x * 2], dim=-2),
        lambda x: torch.cat([torch.zeros(0), x.long()], -1),
        lambda x: torch.cat([torch.zeros(0), x[0, 0]]),
        lambda x: torch.cat([torch.zeros(0), torch.zeros(0)]),
    ],
)
def test_nothing_is_put_together_with_any_rank(function: Callable[..., Any]) -> None:
    """Caches of keys and values begin so."""
    check(function, torch.randn(2, 3, 5))


@pytest.mark.parametrize("extent", [1, 3])
def test_combinations(extent: int) -> None:
    """PyTorch gives their number the largest integer as its bound where a single one is there."""
    check(lambda x: torch.combinations(x, 1), torch.randn(extent))


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4)])
@pytest.mark.parametrize(
    "function",
    [
        torch.nonzero,
        lambda x: torch.nonzero(x > 0.5, as_tuple=True),
        torch.argwhere,
        lambda x: x[torch.nonzero(x > 0, as_tuple=True)] * 2,
        lambda x: torch.nonzero(x > 100),
    ],
)
def test_places_of_what_is_not_zero(function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    check(function, torch.randn(shape).relu())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.var_mean(x, 1),
        lambda x: torch.var_mean(x, (0, 2), correction=0, keepdim=True),
        torch.std_mean,
        lambda x: torch.std_mean(x, -1, keepdim=True),
    ],
)
def test_variances_beside_means(function: Callable[..., Any]) -> None:
    check(function, torch.randn(3, 5, 7))
