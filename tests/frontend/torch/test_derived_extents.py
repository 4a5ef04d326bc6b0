"""Exported programs whose open extents are computed from each other give what PyTorch gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tvm_ext  # noqa: E402
from tvm_ext.errors import InputError  # noqa: E402

EXTENT = torch.export.Dim("s", min=6, max=64)
SIZES = (6, 7, 17, 31, 33, 64)


class Next(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x + y[1:], y[3:]


class Pairs(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x.reshape(-1, 2, 3).mean(1) @ y.t()


class Backwards(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        n = x.shape[0]
        few = torch.arange(n, 1, -2, dtype=torch.int32)
        return torch.arange(n - 1, -1, -1)[:, None] * x, torch.arange(2 * n, n, -3), few


def compiled(module: Any, given: Sequence[Any], shapes: Any) -> Any:
    return tvm_ext.compile(torch.export.export(module.eval(), tuple(given), dynamic_shapes=shapes))


def check(model: Any, module: Any, given: Sequence[Any]) -> None:
    found = list(model.run({spec.name: x.numpy() for spec, x in zip(model.inputs, given, strict=True)}).values())
    wanted = module(*given)
    for got, want in zip(found, [wanted] if torch.is_tensor(wanted) else wanted, strict=True):
        assert got.shape == tuple(want.shape)
        assert got.dtype == want.numpy().dtype
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)


def test_one_more() -> None:
    model = compiled(Next(), (torch.randn(8, 3), torch.randn(9, 3)), ({0: EXTENT}, {0: EXTENT + 1}))
    for n in SIZES:
        check(model, Next(), (torch.randn(n, 3), torch.randn(n + 1, 3)))
    with pytest.raises(InputError, match="which is 8 by the other inputs, found 9"):
        model.run({"x": np.zeros((7, 3), "float32"), "y": np.zeros((9, 3), "float32")})


def test_twice_as_many() -> None:
    model = compiled(Pairs(), (torch.randn(20, 3), torch.randn(10, 3)), ({0: 2 * EXTENT}, {0: EXTENT}))
    for n in SIZES:
        check(model, Pairs(), (torch.randn(2 * n, 3), torch.randn(n, 3)))
    with pytest.raises(InputError, match="which is 14 by the other inputs, found 15"):
        model.run({"x": np.zeros((15, 3), "float32"), "y": np.zeros((7, 3), "float32")})


def test_counting_downwards() -> None:
    model = compiled(Backwards(), (torch.randn(9, 3),), ({0: EXTENT},))
    for n in SIZES:
        check(model, Backwards(), (torch.randn(n, 3),))
