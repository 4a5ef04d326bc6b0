"""Kernels of rows: what is computed for each row, and what is computed from it."""

from __future__ import annotations

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
