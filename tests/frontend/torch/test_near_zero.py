"""Functions whose value near zero is the point of them, against PyTorch's in double precision."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional

import tvm_ext


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *operands: torch.Tensor) -> torch.Tensor:
        return self.function(*operands)


def results(function: Callable[..., torch.Tensor], *operands: torch.Tensor) -> np.ndarray:
    compiled = tvm_ext.compile(torch.export.export(Function(function), operands))
    feeds = {spec.name: operand.numpy() for spec, operand in zip(compiled.inputs, operands, strict=True)}
    (result,) = compiled.run(feeds).values()
    return result


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """Numbers of all sizes of both signs, densely where the series end and others begin."""
    sizes = torch.logspace(-30, 1.9, 97, dtype=torch.float64)
    ends = torch.cat([torch.linspace(end - 1e-3, end + 1e-3, 33, dtype=torch.float64) for end in (-0.5, -0.25, 0.5)])
    special = torch.tensor([0.0, -0.0, -1.0, -2.0, torch.inf, -torch.inf, torch.nan], dtype=torch.float64)
    return torch.cat([sizes, -sizes, ends, special]).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "function",
    [
        torch.log1p,
        torch.expm1,
        functional.softplus,
        functional.logsigmoid,
        lambda x: functional.softplus(x, beta=3.0, threshold=7.0),
        lambda x: functional.soft_margin_loss(x, torch.ones_like(x), reduction="none"),
    ],
)
def test_relative_error(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    x = numbers(dtype)
    expected, found = function(x.double()).numpy(), results(function, x)
    assert found.dtype == x.numpy().dtype
    # An exponential's error is that of its rounded operand: as many roundings as this is large.
    tolerance, tiny = 50 * np.finfo(found.dtype).eps, np.finfo(found.dtype).tiny
    np.testing.assert_allclose(found, expected.astype(found.dtype), rtol=tolerance, atol=10 * tiny)


def test_mish() -> None:
    x = numbers(torch.float32)
    np.testing.assert_allclose(results(functional.mish, x), functional.mish(x), rtol=1e-5, atol=1e-37)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_margins_whose_exponential_is_infinite(reduction: str, dtype: torch.dtype) -> None:
    """PyTorch's own is infinite beyond a margin of -11 in float16, of -88 in the others."""
    x, sign = torch.tensor([-300.0, -90, -12, 0, 12, 90]).to(dtype), torch.tensor([1.0, 1, 1, -1, 1, -1]).to(dtype)
    model = Function(lambda x, y: functional.soft_margin_loss(x, y, reduction=reduction).float())
    given = [part.numpy() if dtype != torch.bfloat16 else part.float().numpy().astype("bfloat16") for part in (x, sign)]
    (found,) = tvm_ext.compile(torch.export.export(model, (x, sign))).run(given).values()
    expected = functional.soft_margin_loss(x.double(), sign.double(), reduction=reduction)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-2)


@pytest.mark.parametrize("function", [torch.log1p, torch.expm1])
def test_signs_of_zero_and_other_types(function: Callable[..., torch.Tensor]) -> None:
    assert np.signbit(results(function, torch.tensor([-0.0, 0.0]))).tolist() == [True, False]
    whole = results(function, torch.tensor([0, 1, 5]))
    np.testing.assert_allclose(whole, function(torch.tensor([0, 1, 5])).numpy(), rtol=1e-6)
    half = torch.tensor([1e-4, -3e-4, 0.3, 2.0]).half()
    np.testing.assert_array_equal(results(function, half), function(half.float()).half().numpy())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("order", [0, 1, 2, 3, 6, float("inf"), 0.5])
def test_norms_whose_powers_are_beyond_half_precision(order: float, dtype: torch.dtype) -> None:
    """PyTorch adds up in float32: 300 squared is infinite in float16, and what is divided by it was 0."""
    x = torch.tensor([[300.0, -4.0, 0.5, 0.0], [7.0, 9.0, -11.0, 20.0]]).to(dtype)
    model = Function(lambda x: (torch.linalg.vector_norm(x, order, -1).float(), functional.normalize(x, dim=1).float()))
    compiled = tvm_ext.compile(torch.export.export(model, (x,)))
    given = x.numpy() if dtype == torch.float16 else x.float().numpy().astype("bfloat16")
    for found, expected in zip(compiled.run([given]).values(), model(x), strict=True):
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-2)
