"""NaN in PyTorch models: where it goes, against torch."""

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

NAN = float("nan")
VALUES = torch.tensor([[2.0, NAN, -1.0, NAN, 0.5], [float("inf"), 3.0, -0.0, 0.0, -float("inf")], [NAN] * 5])


class All(nn.Module):
    """Computes every case."""

    def __init__(self, cases: list[Callable[[Any], Any]]) -> None:
        super().__init__()
        self.cases = cases

    def forward(self, x: Any) -> list[Any]:
        return [case(x) for case in self.cases]


def assert_as_torch(cases: list[Callable[[Any], Any]], x: Any) -> None:
    module = All(cases)
    found = tvm_ext.compile(module, example_inputs=[x]).run([x])
    for index, (ours, theirs) in enumerate(zip(found.values(), module(x), strict=True)):
        assert ours.dtype == theirs.numpy().dtype, index
        np.testing.assert_array_equal(ours, theirs.numpy(), str(index))


def test_bounds() -> None:
    assert_as_torch(
        [
            lambda x: x.clamp(max=NAN),
            lambda x: x.clamp(0.5, -0.5),
            lambda x: x.clamp(0.5, 0.5),
            lambda x: x.clamp(min=float("inf")),
            lambda x: x.clamp(-0.5, 0.5),
        ],
        VALUES,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_order(dtype: torch.dtype) -> None:
    assert_as_torch(
        [
            lambda x: torch.sort(x)[0],
            lambda x: torch.sort(x, descending=True)[0],
            lambda x: torch.argsort(x, dim=0),
            lambda x: torch.topk(x, 3)[0],
            lambda x: torch.topk(x, 2, largest=False)[0],
            lambda x: x.max(1)[0],
            lambda x: x.argmax(1),
            lambda x: x.argmin(1),
            lambda x: x.argmax(),
            lambda x: x.argmax(0, keepdim=True),
            lambda x: x.median(),
            lambda x: x.median(1)[0],
            lambda x: x[2:, :1].median(1)[1],
        ],
        VALUES.to(dtype),
    )


SWEPT = torch.tensor([NAN, float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.0, 0.3, -0.3, 2.5, -2.5, 1e30, -1e30, 100.0])

OF_ONE: dict[str, Callable[[Any], Any]] = {
    "sign": torch.sign,
    "sgn": torch.sgn,
    "sign of integers": lambda x: torch.sign(torch.arange(-2, 3, device=x.device)),
    "round": torch.round,
    "trunc": torch.trunc,
    "frac": torch.frac,
    "relu": torch.relu,
    "relu6": nn.functional.relu6,
    "clamp": lambda x: x.clamp(-1, 1),
    "softplus": nn.functional.softplus,
    "hardtanh": nn.functional.hardtanh,
    "hardswish": nn.functional.hardswish,
    "softshrink": nn.functional.softshrink,
    "threshold": lambda x: nn.functional.threshold(x, 0.5, 2.0),
    "nan_to_num": torch.nan_to_num,
    "floor_divide": lambda x: (x // 0.3, x // -0.3),
    "remainder": lambda x: (x % 0.7, x % -0.7),
    "remainder of doubles": lambda x: x.double() % 0.7,
    "remainder of a number": lambda x: torch.remainder(2.5, x),
    "remainder of integers": lambda x: torch.arange(-5, 5, device=x.device) % -3,
    "fmod": lambda x: torch.fmod(x, 0.7),
    "divided down": lambda x: torch.div(x, 0.3, rounding_mode="floor"),
    "divided to zero": lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
    "powers": lambda x: (x**2, x**3, x**0.5, x**-0.5, x**-1),
}

OF_TWO: dict[str, Callable[[Any, Any], Any]] = {
    "floor_divide": torch.floor_divide,
    "divided down": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "divided to zero": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "heaviside": torch.heaviside,
    "copysign": torch.copysign,
    "hypot": torch.hypot,
    "logaddexp": torch.logaddexp,
    "atan2": torch.atan2,
    "power": torch.pow,
    "clamp": lambda x, y: torch.clamp(x, y, y + 1),
}


def test_sweep_of_operators() -> None:
    """Each on numbers that are not finite, zeros of both signs and large numbers."""
    left = SWEPT[:, None].expand(14, 14).contiguous()
    right = left.T.contiguous()
    cases = {name: (case, (SWEPT,)) for name, case in OF_ONE.items()}
    cases |= {f"{name} of two": (case, (left, right)) for name, case in OF_TWO.items()}

    def compute(x: Any, y: Any, z: Any) -> list[Any]:
        return [case(*((x,) if len(values) == 1 else (y, z))) for case, values in cases.values()]

    found = torch.compile(compute, backend="tvm_ext")(SWEPT, left, right)
    for (name, (case, values)), ours in zip(cases.items(), found, strict=True):
        wanted = case(*values)
        pairs = zip(ours, wanted, strict=True) if isinstance(wanted, tuple) else [(ours, wanted)]
        for one, other in pairs:
            assert one.dtype == other.dtype, name
            np.testing.assert_allclose(one.numpy(), other.numpy(), 1e-5, 1e-6, err_msg=name)
