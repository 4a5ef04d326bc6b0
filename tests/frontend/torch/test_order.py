"""Sorting, extremes with their places and k-th values: against torch, compiled as a whole."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.utils import _pytree as pytree

import tvm_ext

pytestmark = pytest.mark.torch

ROWS = torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(0))
NOT_NUMBERS = ROWS.clone()
NOT_NUMBERS[0, 2] = NOT_NUMBERS[0, 4] = NOT_NUMBERS[2, 6, 1] = float("nan")
NOT_NUMBERS[1, :, 0] = float("-inf")
WHOLE = (ROWS * 1e6).long()

CASES: dict[str, Callable[..., Any]] = {
    "smallest": lambda x, n, w: x.min(1),
    "largest": lambda x, n, w: x.max(1),
    "smallest, kept dimension": lambda x, n, w: x.min(dim=-1, keepdim=True),
    "largest, kept dimension": lambda x, n, w: torch.max(x, dim=-2, keepdim=True),
    "smallest, NaN": lambda x, n, w: n.min(1),
    "largest, NaN": lambda x, n, w: n.max(1),
    "smallest of integers": lambda x, n, w: w.min(2),
    "largest of integers": lambda x, n, w: w.int().max(2),
    "smallest of truths": lambda x, n, w: (x > -1).min(1),
    "largest of truths": lambda x, n, w: (x > 1).max(0),
    "smallest of halves": lambda x, n, w: x.half().min(1),
    "of a scalar": lambda x, n, w: (*x[0, 0, 0].min(0), *x[0, 0, 0].max(-1), *x[0, 0, 0].kthvalue(1)),
    "running largest": lambda x, n, w: x.cummax(1),
    "running smallest": lambda x, n, w: x.cummin(-1),
    "running largest, NaN": lambda x, n, w: n.cummax(1),
    "running smallest, NaN": lambda x, n, w: n.cummin(1),
    "running largest of equals": lambda x, n, w: (x * 2).round().cummax(0),
    "running smallest of integers": lambda x, n, w: (w.cummin(2), w.int().cummax(0)),
    "running extremes of truths": lambda x, n, w: (*(x > 0).cummax(1), *(x > 0).cummin(1)),
    "running largest of halves": lambda x, n, w: x.half().cummax(1),
    "running extremes of one and of none": lambda x, n, w: (*x[:, :1].cummax(1), *x[:, :0].cummin(1), *x[:0].cummax(1)),
    "running extreme of a scalar": lambda x, n, w: x[0, 0, 0].cummax(0),
    "third value": lambda x, n, w: x.kthvalue(3, 1),
    "last value, last dimension": lambda x, n, w: x.kthvalue(5),
    "first value, kept dimension": lambda x, n, w: x.kthvalue(1, 0, keepdim=True),
    "third value of integers": lambda x, n, w: w.kthvalue(3, dim=1),
    "order of narrow integers": lambda x, n, w: [
        (y.topk(3, 1)[0], y.sort(dim=1, stable=True), y.argsort(dim=1, stable=True), y.kthvalue(2, 1)[0], y.median())
        for y in ((w % 100).to(dtype) for dtype in (torch.int8, torch.uint8, torch.int16))
    ],
    "order of equals and of NaN": lambda x, n, w: (
        *(x * 2).round().sort(dim=1, stable=True, descending=True),
        n.sort(dim=1, stable=True)[0],
        n.sort(dim=1, stable=True, descending=True)[0],
    ),
    "sixth value, NaN": lambda x, n, w: n.kthvalue(6, 1)[0],
}


class All(nn.Module):
    """Computes all cases."""

    def forward(self, *inputs: Any) -> list[Any]:
        return pytree.tree_leaves([case(*inputs) for case in CASES.values()])


def test_numbers_and_places_of_torch() -> None:
    inputs = ROWS, NOT_NUMBERS, WHOLE
    found = tvm_ext.compile(All(), example_inputs=inputs).run([value.numpy() for value in inputs])
    for ours, theirs in zip(found.values(), All()(*inputs), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.numpy().shape, theirs.numpy().dtype)
        np.testing.assert_array_equal(ours, theirs.numpy())


class Nearest(nn.Module):
    """The smallest distance to each point, whose it is, and how it falls and rises from point to point."""

    def forward(self, x: Any, y: Any) -> tuple[Any, ...]:
        nearest = torch.cdist(x, y).min(dim=1)
        return nearest.values, nearest.indices, *nearest.values.cummin(0), *nearest.values.cummax(0)


def test_open_extents() -> None:
    rows, others = (torch.export.Dim(name, min=2, max=25) for name in ("rows", "others"))
    program = torch.export.export(
        Nearest(), (torch.randn(6, 3), torch.randn(9, 3)), dynamic_shapes=({0: rows}, {0: others})
    )
    compiled = tvm_ext.compile(program)
    for counts in ((6, 9), (2, 4), (25, 17)):
        x, y = (torch.randn(count, 3) for count in counts)
        found = compiled.run([x.numpy(), y.numpy()]).values()
        for ours, theirs in zip(found, Nearest()(x, y), strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-6)


def test_the_largest_in_any_order() -> None:
    """Mixtures of experts choose theirs so; of values that differ only the order is open."""

    class Chosen(nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            values, places = torch.topk(x, 3, dim=-1, sorted=False)
            smallest = torch.topk(x, 2, dim=0, largest=False, sorted=False)[0]
            return [values.sort().values, places.sort().values, x.gather(-1, places) - values, smallest.sort(0).values]

    x = torch.randn(5, 17, generator=torch.Generator().manual_seed(0))
    found = tvm_ext.compile(Chosen(), "native", example_inputs=(x,)).run([x.numpy()]).values()
    for ours, theirs in zip(found, Chosen()(x), strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())


class Extremes(nn.Module):
    """Extremes without their places."""

    def forward(self, x: torch.Tensor, n: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        both = [(y.max(1)[0], y.min(-1, keepdim=True)[0]) for y in (x, n, w, w.int(), x > 1, x.half())]
        return [value for pair in both for value in pair]


def test_extremes_without_their_places_are_reductions() -> None:
    inputs = ROWS, NOT_NUMBERS, WHOLE
    program = torch.export.export(Extremes(), inputs)
    names = re.findall(r"R\.(argm\w+|gather_elements)", tvm_ext.import_model(program).mod.script())
    assert not names
    found = tvm_ext.compile(program).run([value.numpy() for value in inputs])
    for ours, theirs in zip(found.values(), Extremes()(*inputs), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.numpy().shape, theirs.numpy().dtype)
        np.testing.assert_array_equal(ours, theirs.numpy())


def test_norms_are_roots_of_sums_of_squares() -> None:
    """TVM's own are absolute values to the power of two, which are kept in memory."""

    class Norms(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return torch.linalg.vector_norm(x), x.norm(p=2, dim=(0, 2), keepdim=True), x.half().norm(dim=1).float()

    program = torch.export.export(Norms(), (ROWS,))
    assert "R.power" not in tvm_ext.import_model(program).mod.script()
    for ours, theirs in zip(tvm_ext.compile(program).run([ROWS.numpy()]).values(), Norms()(ROWS), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-3)
