"""Random numbers in a PyTorch model: refused, as a compiled model would always give the same, or none."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F
from torch import nn

from tvm_ext.errors import UnsupportedOperatorError
from tvm_ext.frontend.torch.model import import_torch

pytestmark = pytest.mark.torch

TABLE = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))


class Computes(nn.Module):
    """Computes what it is given."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x) + 1


DRAWS = {
    "dropout": lambda x: F.dropout(x, 0.5, training=True),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.5, training=True),
    "dropout of channels": lambda x: F.dropout2d(x[None, None], 0.5, training=True),
    "dropout of attention": lambda x: F.scaled_dot_product_attention(*[x[None, None]] * 3, dropout_p=0.5),
    "leaky relu": lambda x: F.rrelu(x, training=True),
    "rand": lambda x: torch.rand(4),
    "randn_like": torch.randn_like,
    "rand_like": torch.rand_like,
    "randint": lambda x: torch.randint(4, (4,)),
    "randperm": lambda x: torch.randperm(4),
    "normal": lambda x: torch.normal(x, 1.0),
    "bernoulli": torch.bernoulli,
    "bernoulli by probability": lambda x: torch.bernoulli(x, 0.5),
    "multinomial": lambda x: torch.multinomial(x, 2),
    "exponential": lambda x: x.clone().exponential_(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedOperatorError, match=r"aten\.\w+\.\w+ '\w+'.*: it draws random numbers.*; "):
        import_torch(Computes(DRAWS[name]), (TABLE,))


def test_dropout_that_drops_nothing_is_none() -> None:
    program = torch.export.export(Computes(lambda x: F.dropout(F.dropout(x, 0.0), 0.5, training=False)), (TABLE,))
    assert import_torch(program).outputs[0].shape == (3, 4)
    mask = import_torch(Computes(lambda x: torch.native_dropout(x, 0.0, True)[1].float()), (TABLE,))
    assert mask.outputs[0].dtype == "float32"
