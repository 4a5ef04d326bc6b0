"""Selections by a tensor of one integer, and assignments to elements by strides: against torch."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.utils import _pytree as pytree

import tvm_ext
from tvm_ext.errors import InputError

pytestmark = pytest.mark.torch

ROWS = torch.arange(20.0).reshape(5, 4)


class Function(nn.Module):
    """Computes a function of its inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def assert_as_torch(function: Callable[..., Any], *calls: tuple[Any, ...]) -> None:
    module = Function(function)
    model = tvm_ext.compile(module, example_inputs=calls[0])
    for inputs in calls:
        found = model.run([value.numpy() for value in inputs]).values()
        for ours, theirs in zip(found, pytree.tree_leaves(module(*inputs)), strict=True):
            np.testing.assert_array_equal(ours, theirs.numpy())


def test_selected_by_a_tensor() -> None:
    def selected(x: Any, place: Any) -> Any:
        return x[place], x[:, place], x[..., place - 1], x[place, -place], x[1:][place] + place.item()

    assert_as_torch(selected, *((ROWS, torch.tensor(place)) for place in (0, 1, 3, -1, -3)))
    assert_as_torch(lambda x, place: x[place], (ROWS, torch.tensor(2, dtype=torch.int32)))


def test_a_place_outside_is_refused() -> None:
    model = tvm_ext.compile(Function(lambda x, place: x[:, place]), example_inputs=(ROWS, torch.tensor(0)))
    for place in (4, -5):
        with pytest.raises(InputError, match="integers from -4 to 3"):
            model.run([ROWS.numpy(), np.array(place)])


def test_rows_of_one_index() -> None:
    assert_as_torch(
        lambda x, place: (x.index_select(0, place), x.index_select(1, place), x[0, 0].index_select(0, place * 0)),
        (ROWS, torch.tensor(2)),
    )


def test_assigned_by_strides() -> None:
    def filled(x: Any) -> Any:
        square, tall, wide = x[:4].clone(), x.clone(), x[:3].clone()
        square.fill_diagonal_(-1), tall.fill_diagonal_(-2), wide.fill_diagonal_(-3)
        return square, tall, wide, torch.as_strided_scatter(x, x[:2, :3] * 2, (2, 3), (1, 4), 2)

    assert_as_torch(filled, (ROWS,))
