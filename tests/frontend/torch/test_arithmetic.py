"""Arithmetic that Relax has no operator for: against torch, compiled as a whole."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F
from torch import nn

import tvm_ext
from tvm_ext.errors import UnsupportedOperatorError
from tvm_ext.frontend.torch.model import import_torch

pytestmark = pytest.mark.torch

Case = Callable[..., Any]
GENERATOR = torch.Generator().manual_seed(0)
EDGES = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e30, -3.0])
ROWS = torch.randn(2, 7, 5, generator=GENERATOR)
NUMBERS = torch.tensor([-7, 0, 5, 2**31 - 1, -(2**31), 1])
THIRDS = torch.randn(4, 5, 3, generator=GENERATOR)
AMOUNTS = torch.tensor([1, 3, 31, 32, -1, 0])

FAMILIES: dict[str, tuple[tuple[Any, ...], dict[str, Case]]] = {
    "signs and lengths": (
        (EDGES, ROWS),
        {
            "copysign": lambda e, x: torch.copysign(e[:, None], e),
            "copysign of a number": lambda e, x: torch.copysign(e, -0.0),
            "copysign of integers": lambda e, x: torch.copysign(torch.arange(7), e),
            "hypot": lambda e, x: torch.hypot(e[:, None], e),
            "hypot of halves": lambda e, x: torch.hypot(x.half(), x.half() * 2),
        },
    ),
    "functions of the C library": (
        (EDGES, ROWS),
        {
            "erfc": lambda e, x: (torch.erfc(e), torch.special.erfc(x * 4), torch.erfc(x.double() * 3)),
            "erfc of halves and integers": lambda e, x: (torch.erfc(x.half()), torch.erfc((x * 2).long())),
            "lgamma": lambda e, x: (torch.lgamma(e), torch.special.gammaln(x.abs() * 9), torch.lgamma(x.double())),
            "lgamma of integers": lambda e, x: torch.lgamma((x * 3).int().abs() + 1),
        },
    ),
    "of two inputs": (
        (ROWS, ROWS.flip(1)[..., :3].contiguous()),
        {
            "bilinear": lambda x, y: (F.bilinear(x, y, THIRDS, THIRDS[:, 0, 0]), F.bilinear(x[0], y[0], THIRDS)),
            "trilinear": lambda x, y: torch._trilinear(x[0], x[0], x[1], [1], [0], [0], [2]),
            "rrelu": lambda x, y: (F.rrelu(x), F.rrelu(y, 0.1, 0.7)),
        },
    ),
    "shifts": (
        (NUMBERS, AMOUNTS),
        {
            "left": lambda n, a: n.int() << a.int(),
            "right": lambda n, a: n.int() >> a.int(),
            "in 64 bits": lambda n, a: (n << a, n >> a),
            "of mixed types": lambda n, a: n.int() << a,
            "by a number": lambda n, a: (n << 3, n >> 2, torch.bitwise_left_shift(n, 1)),
            "of bytes": lambda n, a: n.to(torch.uint8) >> a.to(torch.uint8),
        },
    ),
    "distances and running sums": (
        (ROWS, EDGES),
        {
            "cdist": lambda x, e: torch.cdist(x, x.flip(1)[:, :3] + 1),
            "cdist, order 1": lambda x, e: torch.cdist(x[0], x[1], p=1),
            "cdist, order 3": lambda x, e: torch.cdist(x, x[:1] + 1, p=3),
            "cdist, largest": lambda x, e: torch.cdist(x, x, p=float("inf")),
            "logcumsumexp": lambda x, e: x.logcumsumexp(1),
            "logcumsumexp far apart": lambda x, e: (x * 200).logcumsumexp(-1),
            "logcumsumexp of what is not finite": lambda x, e: torch.stack([e, e.flip(0), e.roll(3)]).logcumsumexp(1),
        },
    ),
}


class All(nn.Module):
    """Computes some functions of its inputs."""

    def __init__(self, cases: list[Case]) -> None:
        super().__init__()
        self.cases = cases

    def forward(self, *inputs: Any) -> list[Any]:
        found: list[Any] = []
        for case in self.cases:
            result = case(*inputs)
            found += result if isinstance(result, tuple) else [result]
        return found


@pytest.mark.parametrize("family", FAMILIES)
def test_numbers_of_torch(family: str) -> None:
    inputs, cases = FAMILIES[family]
    module = All(list(cases.values()))
    found = tvm_ext.compile(module, example_inputs=inputs).run([value.numpy() for value in inputs])
    for place, (ours, theirs) in enumerate(zip(found.values(), module(*inputs), strict=True)):
        wanted = theirs.numpy()
        assert (ours.shape, ours.dtype) == (wanted.shape, wanted.dtype), place
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-5, err_msg=str(place))
        if wanted.dtype.kind == "f":
            zeros = wanted == 0
            np.testing.assert_array_equal(np.signbit(ours[zeros]), np.signbit(wanted[zeros]), str(place))


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (lambda x: torch.bincount(x), r"aten\.bincount\.default 'bincount' \(.*line \d+\).*depends on values"),
        (lambda x: torch.digamma(x.float()), r"aten\.digamma\.default .*line \d+\).*no converter"),
    ],
)
def test_refused_by_name(operation: Case, reason: str) -> None:
    with pytest.raises(UnsupportedOperatorError, match=reason):
        import_torch(All([operation]), (torch.arange(5),))


class PowersOfOpenRows(nn.Module):
    """A power beside positions that are counted with an open extent, as in transformers with the GELU of GPT-2."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add positions to powers."""
        return x**3 + x.pow(5) + torch.arange(x.shape[0]).clamp(max=x.shape[0] - 2)[:, None]


def test_powers_are_compiled_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    """TVM writes to stderr whenever it makes such a power, as its folding of constants does of every operator."""
    x = torch.randn(5, 3, generator=GENERATOR)
    program = torch.export.export(PowersOfOpenRows(), (x,), dynamic_shapes=({0: torch.export.Dim("rows", min=2)},))
    capfd.readouterr()
    compiled = tvm_ext.compile(program)
    assert "pow" not in capfd.readouterr().err
    (found,) = compiled.run({compiled.inputs[0].name: x.numpy()}).values()
    np.testing.assert_allclose(found, PowersOfOpenRows()(x).numpy(), rtol=1e-5)
