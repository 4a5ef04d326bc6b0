"""Kernels of rows: what is computed for each row, and what is computed from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.cuda.whole_model import EmulatedModel


@pytest.mark.parametrize("shape", [(2, 10, 16), (3, 7, 33), (1, 1, 129)])
def test_numbers_of_rows_behind_their_sums(shape: tuple[int, ...]) -> None:
    """Capsules are scaled by a function of their lengths, which each thread of a row reads, and measured again."""
    torch = pytest.importorskip("torch")

    class Lengths(torch.nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor) -> Any:
            return (n / (1 + n) * x / torch.sqrt(n + 1e-8)).norm(dim=-1)

    x, n = torch.randn(*shape), torch.rand(*shape[:-1], 1)
    model = EmulatedModel(torch.export.export(Lengths(), (x, n)))
    assert "cuda.row_reduction" in model.rules.values()
    np.testing.assert_allclose(model(x.numpy(), n.numpy())[0], Lengths()(x, n).numpy(), rtol=1e-5, atol=1e-6)
    assert model.faults == []


FORMS: dict[str, Callable[..., Any]] = {
    "product": lambda x, w: x * ((x * x).mean(-1, keepdim=True) + 1e-5).sqrt().reciprocal() * w,
    "quotient": lambda x, w: w * (x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()),
    "root": lambda x, w: (x.float() * (x.float().pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()).to(x.dtype) * w,
    "no weight": lambda x, w: x * ((x * x).mean(-1, keepdim=True) + 1e-5).rsqrt(),
}


@pytest.mark.parametrize("shape", [(1, 3), (2, 7, 33), (17, 129), (3, 1024)])
@pytest.mark.parametrize("form", FORMS)
def test_root_mean_squares(form: str, shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")

    class Norm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(shape[-1]))

        def forward(self, x: torch.Tensor) -> Any:
            return FORMS[form](x, self.weight)

    x, norm = torch.randn(*shape), Norm()
    model = EmulatedModel(torch.export.export(norm, (x,)))
    assert list(model.rules.values()) == ["cuda.row_reduction"]
    np.testing.assert_allclose(model(x.numpy())[0], norm(x).detach().numpy(), rtol=1e-5, atol=1e-5)
    assert model.faults == []


@pytest.mark.parametrize("weight", [True, False])
def test_halves_are_normalised_in_one_kernel(weight: bool) -> None:
    torch = pytest.importorskip("torch")
    x, norm = torch.randn(5, 129).half(), torch.nn.RMSNorm(129, elementwise_affine=weight).half()
    model = EmulatedModel(torch.export.export(norm, (x,)))
    assert list(model.rules.values()) == ["cuda.row_reduction"]
    np.testing.assert_allclose(model(x.numpy())[0], norm(x).detach().numpy(), rtol=2e-3, atol=2e-3)
    assert model.faults == []


def test_what_is_no_such_norm() -> None:
    """Squares of something else, a mean of another axis, and numbers that are used otherwise."""
    torch = pytest.importorskip("torch")

    class Others(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            spread = (x * x).mean(-1, keepdim=True)
            return (
                x * ((x * y).mean(-1, keepdim=True).abs() + 1e-5).rsqrt(),
                x * ((x * x).mean(-2, keepdim=True) + 1e-5).rsqrt(),
                x * (spread + 1e-5).rsqrt() + spread,
                y * ((x * x).mean(-1, keepdim=True) + 1e-5).rsqrt(),
            )

    inputs = (torch.randn(3, 7), torch.randn(3, 7))
    model = EmulatedModel(torch.export.export(Others(), inputs))
    assert not any("rms_norm" in name for name in model.rules)
    for found, right in zip(model(*(x.numpy() for x in inputs)), Others()(*inputs), strict=True):
        np.testing.assert_allclose(found, right.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "axis"), [((2, 12, 128, 128), -1), ((9, 12, 49, 49), -1), ((2, 12, 197, 33), -1), ((2, 16, 4, 129), 1)]
)
def test_rows_of_several_axes_are_kept_alone(shape: tuple[int, ...], axis: int) -> None:
    """A block keeps its own rows in shared memory, not those of the box around them, or of every head."""
    torch = pytest.importorskip("torch")
    x, softmax = torch.randn(*shape), torch.nn.Softmax(axis)
    model = EmulatedModel(torch.export.export(softmax, (x,)))
    assert list(model.rules.values()) == ["cuda.row_reduction"]
    np.testing.assert_allclose(model(x.numpy())[0], softmax(x).numpy(), rtol=1e-5, atol=1e-6)
    assert model.faults == []


@pytest.mark.parametrize("shape", [(2, 301, 33), (17, 31, 7), (1, 129, 1)])
def test_weights_of_places_for_many_channels(shape: tuple[int, ...]) -> None:
    """A softmax over places is computed by blocks, and what reads it for each channel by a launch of its own."""
    torch = pytest.importorskip("torch")

    class Pooling(torch.nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor) -> Any:
            return (w.softmax(1) * x).relu()

    x, w = torch.randn(*shape), torch.randn(*shape[:2], 1)
    model = EmulatedModel(torch.export.export(Pooling(), (x, w)))
    assert list(model.rules.values()) == ["cuda.row_reduction"]
    np.testing.assert_allclose(model(x.numpy(), w.numpy())[0], Pooling()(x, w).numpy(), rtol=1e-5, atol=1e-6)
    assert model.faults == []


def test_columns_longer_than_shared_memory() -> None:
    torch = pytest.importorskip("torch")
    x, softmax = torch.randn(132, 360, 32), torch.nn.Softmax(1)
    model = EmulatedModel(torch.export.export(softmax, (x,)))
    assert list(model.rules.values()) == ["cuda.row_reduction"]
    np.testing.assert_allclose(model(x.numpy())[0], softmax(x).numpy(), rtol=1e-5, atol=1e-6)
    assert model.faults == []
