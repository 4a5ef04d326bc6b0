"""Searches in sorted rows: against torch, compiled as a whole."""

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

INF, NAN = float("inf"), float("nan")
ROW = torch.tensor([-INF, -1.5, -1.0, -1.0, 0.0, 0.0, 0.0, 2.5, INF])
WANTED = torch.tensor([[-INF, -2.0, -1.5, -1.0], [-0.0, 0.1, 2.5, NAN], [3.0, INF, 0.0, -1.2]])
ROWS = torch.randn(3, 2, 33, generator=torch.Generator().manual_seed(0)).sort(-1).values
VALUES = torch.cat([ROWS[..., ::5], torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(1))], -1)

CASES: dict[str, Callable[..., Any]] = {
    "one row": lambda r, w, s, v: torch.searchsorted(r, w),
    "one row, from the right": lambda r, w, s, v: torch.searchsorted(r, w, right=True),
    "one row, side": lambda r, w, s, v: torch.searchsorted(r, w, side="right", out_int32=True),
    "many rows": lambda r, w, s, v: torch.searchsorted(s, v),
    "many rows, from the right": lambda r, w, s, v: torch.searchsorted(s, v, right=True),
    "a number": lambda r, w, s, v: torch.searchsorted(r, 0.0),
    "a number in integers": lambda r, w, s, v: torch.searchsorted((s[0, 0] * 10).long(), 2.5),
    "integers": lambda r, w, s, v: torch.searchsorted((s * 10).int(), (v * 10).int(), right=True),
    "sorter": lambda r, w, s, v: torch.searchsorted(s.flip(-1), v, sorter=s.flip(-1).argsort(-1)),
    "not sorted": lambda r, w, s, v: torch.searchsorted(s.roll(7, -1), v),
    "NaN in the row": lambda r, w, s, v: torch.searchsorted(torch.cat([r, w[1, 3:]]), w),
    "no row": lambda r, w, s, v: torch.searchsorted(r[:0], w),
    "one element": lambda r, w, s, v: torch.searchsorted(r[4:5], w),
    "bucketize": lambda r, w, s, v: torch.bucketize(w, r),
    "bucketize from the right": lambda r, w, s, v: torch.bucketize(v, r, right=True, out_int32=True),
    "bucketize a number": lambda r, w, s, v: torch.bucketize(1.0, r),
}


class All(nn.Module):
    """Computes all cases."""

    def forward(self, *inputs: Any) -> list[Any]:
        return [case(*inputs) for case in CASES.values()]


def test_places_of_torch() -> None:
    inputs = ROW, WANTED, ROWS, VALUES
    found = tvm_ext.compile(All(), example_inputs=inputs).run([value.numpy() for value in inputs])
    for name, ours, theirs in zip(CASES, found.values(), All()(*inputs), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.numpy().shape, theirs.numpy().dtype), name
        np.testing.assert_array_equal(ours, theirs.numpy(), name)


class Search(nn.Module):
    """Places in many rows."""

    def forward(self, rows: Any, values: Any) -> Any:
        return torch.searchsorted(rows, values)


def test_open_extents() -> None:
    length, count = (torch.export.Dim(name, min=2, max=99) for name in ("length", "count"))
    program = torch.export.export(Search(), (ROWS[0], VALUES[0]), dynamic_shapes=({1: length}, {1: count}))
    compiled = tvm_ext.compile(program)
    for shape in ((33, 9), (2, 5), (99, 2)):
        rows, values = (torch.randn(2, extent) for extent in shape)
        rows = rows.sort(-1).values
        (found,) = compiled.run([rows.numpy(), values.numpy()]).values()
        np.testing.assert_array_equal(found, torch.searchsorted(rows, values).numpy())
