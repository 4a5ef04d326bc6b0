"""Models with several open extents: those that a loop over the first batch cannot hold stay outside of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch.export import Dim

import tvm_ext

SIZES = (0, 1, 2, 7, 33)
Roles = dict[str, Callable[[Sequence[torch.Tensor]], torch.Tensor]]

ROLES: Roles = {
    "matmul": lambda y: y[0] @ y[1].t(),
    "broadcast": lambda y: torch.relu(y[0][:, None] + y[1][None]),
    "concat": lambda y: torch.cat([y[0], y[1]], 0),
    "outer": lambda y: torch.outer(y[0].sum(1), y[1].sum(1)),
    "cross_attention": lambda y: torch.softmax(y[0] @ y[1].t(), 1) @ y[1],
    "matmul_of_three": lambda y: (y[0] @ y[1].t()) @ (y[1] @ y[2].t()),
    "broadcast_of_three": lambda y: (y[0][:, None, None] * y[1][None, :, None] - y[2]).sum(-1),
    "concat_of_three": lambda y: torch.cat([y[2], y[0], y[1]], 0),
    "outer_of_three": lambda y: torch.einsum("i,j,k->ijk", y[0].amax(1), y[1].sum(1), y[2].sum(1)),
}


class Branches(torch.nn.Module):
    """A product for each input, what joins them, and the first one's own result."""

    def __init__(self, count: int, join: Callable[[Sequence[torch.Tensor]], torch.Tensor]) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(6 - index, 4) for index in range(count))
        self.join = join

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the joined result and one of the first batch alone."""
        made = [layer(value) for layer, value in zip(self.layers, inputs, strict=True)]
        return self.join(made), torch.tanh(made[0])


SLOW = ("broadcast_of_three", "concat_of_three", "cross_attention")
"""Take as long to compile as the others, and go the same ways."""


@pytest.mark.parametrize("role", [pytest.param(r, marks=[pytest.mark.slow] if r in SLOW else []) for r in ROLES])
def test_open_extents_in_several_roles(role: str) -> None:
    torch.manual_seed(3)
    count = 3 if role.endswith("_three") else 2
    model = Branches(count, ROLES[role]).eval()
    example = tuple(torch.randn(3 + index, 6 - index) for index in range(count))
    open_extents = tuple({0: Dim(name)} for name in "btk"[:count])
    exported = torch.export.export(model, example, dynamic_shapes={"inputs": open_extents})
    compiled = tvm_ext.compile(exported)
    for turn in range(len(SIZES) + 1):
        sizes = [SIZES[turn * (index + 1) % len(SIZES)] for index in range(count)]
        inputs = [torch.randn(rows, 6 - index) for index, rows in enumerate(sizes)]
        with torch.no_grad():
            expected = model(*inputs)
        for found, wanted in zip(compiled.run(inputs).values(), expected, strict=True):
            np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-5, err_msg=f"sizes {sizes}")
