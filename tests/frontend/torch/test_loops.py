"""Loops of exported programs: against torch, compiled as a whole."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn
from torch._higher_order_ops import map as map_elements
from torch._higher_order_ops import scan, while_loop
from torch.utils import _pytree as pytree

import tvm_ext
from tests.torch_compile.eager import TARGET
from tvm_ext.errors import UnsupportedOperatorError

pytestmark = pytest.mark.torch

START = torch.linspace(-1, 1, 5)
ROWS = torch.linspace(-2, 2, 65).reshape(13, 5)


class Looped(nn.Module):
    """Runs a function that has a layer at hand."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function, self.layer = function, nn.Linear(5, 5)

    def forward(self, *arguments: Tensor) -> Any:
        return self.function(self.layer, *arguments)


def counted(layer: nn.Module, n: Tensor, x: Tensor) -> Any:
    return while_loop(lambda n, x: n > 0, lambda n, x: (n - 1, layer(x).tanh()), (n, x))


def until_large(layer: nn.Module, x: Tensor, step: Tensor) -> Any:
    (x,) = while_loop(lambda x: x.sum() < 100, lambda x: (x + step.exp(),), (x,))
    return x * 2


def nested(layer: nn.Module, n: Tensor, x: Tensor) -> Any:
    def body(k: Tensor, x: Tensor) -> Any:
        _, x = while_loop(lambda j, x: j < k, lambda j, x: (j + 1, layer(x).sin()), (k * 0, x))
        x = torch.cond(x.sum() > 0, lambda x: x - 1, lambda x: x + 1, (x,))
        return k + 1, x

    return while_loop(lambda k, x: k < n, body, (n * 0, x))


def recurrent(layer: nn.Module, h: Tensor, xs: Tensor) -> Any:
    return scan(lambda h, x: ((h * 0.5 + layer(x)).tanh(), h.sin()), h, xs)


def two_states(layer: nn.Module, h: Tensor, xs: Tensor) -> Any:
    def body(state: Any, x: Any) -> Any:
        total, count = state
        return (total + x[0], count + 1), (total * 2, x[1] + count)

    return scan(body, (h, torch.tensor(0)), (xs, xs[:, 0].clone()), reverse=True)


CASES: dict[str, tuple[Callable[..., Any], list[tuple[Tensor, ...]]]] = {
    "counted": (counted, [(torch.tensor(n), ROWS) for n in (0, 1, 6)]),
    "until large": (until_large, [(START, START / 2), (START + 100, START)]),
    "nested": (nested, [(torch.tensor(n), START) for n in (0, 3)]),
    "recurrent": (recurrent, [(START, ROWS)]),
    "of one row": (recurrent, [(START, ROWS[:1])]),
    "two states, backwards": (two_states, [(START, ROWS)]),
    "each": (lambda layer, xs, y: map_elements(lambda x, y: layer(x).sin() + y, xs, y), [(ROWS, START)]),
}


@pytest.mark.parametrize("case", CASES)
def test_as_in_torch(case: str) -> None:
    function, calls = CASES[case]
    module = Looped(function).eval()
    compiled = tvm_ext.compile(torch.export.export(module, calls[0], strict=False), target=TARGET)
    for arguments in calls:
        with torch.no_grad():
            expected = pytree.tree_leaves(module(*arguments))
        found = compiled.run(arguments)
        for ours, theirs in zip(found.values(), expected, strict=True):
            assert (ours.shape, ours.dtype) == (theirs.numpy().shape, theirs.numpy().dtype)
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-5)


def rows_and_sums(layer: nn.Module, h: Tensor, xs: Tensor) -> Any:
    last, rows = scan(lambda h, x: ((h * 0.5 + layer(x)).tanh(), h.sin() + x), h, xs)
    return last, rows, map_elements(lambda x, h: layer(x) + h, xs, h)


def test_along_an_open_extent() -> None:
    auto, module = torch.export.Dim.AUTO, Looped(rows_and_sums).eval()
    calls = [(torch.randn(b, 5), torch.randn(n, b, 5)) for b, n in ((2, 9), (1, 1), (3, 2), (7, 17), (2, 33), (1, 127))]
    program = torch.export.export(module, calls[0], dynamic_shapes=(({0: auto}, {0: auto, 1: auto}),), strict=False)
    compiled = tvm_ext.compile(program, target=TARGET)
    for arguments in calls:
        with torch.no_grad():
            expected = pytree.tree_leaves(module(*arguments))
        for ours, theirs in zip(compiled.run(arguments).values(), expected, strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-5)


def test_an_operator_in_a_body_that_has_no_converter_is_named() -> None:
    program = torch.export.export(
        Looped(lambda layer, xs: map_elements(torch.special.airy_ai, xs)), (ROWS,), strict=False
    )
    with pytest.raises(UnsupportedOperatorError, match="special_airy_ai"):
        tvm_ext.import_model(program)
