"""Assertions on values, and extents that depend on them."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - needs torch

from tests.frontend.compiled import Compiled, assert_same  # noqa: E402
from tvm_ext.errors import UnsupportedOperatorError  # noqa: E402
from tvm_ext.frontend.torch.model import import_torch  # noqa: E402

pytestmark = pytest.mark.torch


class Checked(nn.Module):
    def forward(self, x: Any, sizes: Any) -> Any:
        torch._check_tensor_all(sizes.sum() == x.shape[1], lambda: "sizes have to fill a row")
        torch._check((sizes > 0).all().item())
        return torch.relu(x) + 1


def test_assertions_on_values_are_no_part_of_it() -> None:
    operands = (torch.randn(3, 7), torch.tensor([3, 4]))
    compiled = Compiled(import_torch(Checked(), operands).mod)
    assert_same(compiled(*operands), Checked()(*operands))


def test_extent_that_depends_on_values_is_named() -> None:
    class Groups(nn.Module):
        def forward(self, x: Any, counts: Any) -> Any:
            return torch.cat([part * 2 for part in x.split(counts.tolist())])

    message = r"aten\.split_with_sizes.*, line \d+\): its operand '[a-z_]+' is an extent that depends on values; write"
    with pytest.raises(UnsupportedOperatorError, match=message):
        import_torch(Groups(), (torch.ones(5, 3), torch.tensor([2, 3])))
