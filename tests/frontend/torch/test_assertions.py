"""Assertions on values, and extents that depend on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - needs torch

import tvm_ext  # noqa: E402
from tests.frontend.compiled import Compiled, assert_same  # noqa: E402
from tvm_ext.errors import InputError, UnsupportedOperatorError  # noqa: E402
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


class Encoded(nn.Module):
    """``F.one_hot`` asserts that the indices are in range, between other operators."""

    def forward(self, x: Any, index: Any) -> Any:
        scaled = (x * 2 + 1).relu().exp()
        rows = nn.functional.one_hot(index, 4).to(x.dtype) @ scaled
        return (rows * 3 - 1).tanh().sigmoid()


def test_kernels_are_fused_beside_an_assertion() -> None:
    x, index = torch.randn(4, 5), torch.tensor([1, 3])
    model = tvm_ext.compile(Encoded(), example_inputs=(x, index))
    assert_same([model.run([x.numpy(), index.numpy()])["output"]], Encoded()(x, index))
    # Two for each of two assertions, the scaled numbers, the encoded ones, and their product with what follows.
    assert model.metadata["decisions"]["statistics"]["kernel_calls"] <= 7
    for wrong in (4, -1):
        with pytest.raises(InputError, match="one_hot: Class values must be"):
            model.run([x.numpy(), np.array([1, wrong])])


class Joined(nn.Module):
    """Assertions between what is put together in the end."""

    def forward(self, x: Any) -> Any:
        places, rest = [], x
        for _ in range(3):
            best = rest.argmax(-1)
            rest = rest - 100 * nn.functional.one_hot(best, x.shape[-1])
            places.append(best)
        return torch.stack(places, 1), rest


def test_parts_of_a_result_are_between_assertions() -> None:
    x = torch.randn(2, 7)
    for fuse in ("stock", "mapping-type"):
        model = tvm_ext.compile(Joined(), example_inputs=(x,), fuse=fuse)
        assert_same(list(model.run([x.numpy()]).values()), Joined()(x))


class Groups(nn.Module):
    def forward(self, x: Any, counts: Any) -> Any:
        return torch.cat([part * 2 for part in x.split(counts.tolist())][::-1])


def test_lengths_of_a_split_that_are_values_have_to_add_up() -> None:
    x = torch.randn(5, 3)
    model = tvm_ext.compile(Groups(), example_inputs=(x, torch.tensor([2, 3])))
    for counts in ([2, 3], [0, 5], [4, 1]):
        assert_same(list(model.run([x.numpy(), np.array(counts)]).values()), Groups()(x, torch.tensor(counts)))
    for counts in ([3, 3], [1, 1], [2**62, 5], [-2, -3]):
        with pytest.raises(
            InputError, match=r"has 5 elements along axis 0 where others make it|at least 0 and at most 5"
        ):
            model.run([x.numpy(), np.array(counts)])


class Window(nn.Module):
    def forward(self, x: Any, place: Any) -> Any:
        begin = place.item()
        torch._check(begin >= 0)
        torch._check(begin + 2 <= x.shape[0])
        return x[:begin], x.narrow(0, begin, 2) * 2


def test_places_that_are_values_are_where_the_program_allows_them() -> None:
    x = torch.randn(5, 3)
    model = tvm_ext.compile(Window(), example_inputs=(x, torch.tensor(2)))
    for place in (1, 2, 3):
        assert_same(list(model.run([x.numpy(), np.array(place)]).values()), Window()(x, torch.tensor(place)))
    for place in (4, 50, -1):  # the program forbids these
        with pytest.raises(InputError, match="'place' has to be at least 0 and at most 3"):
            model.run([x.numpy(), np.array(place)])


def test_an_extent_that_depends_on_values_is_named() -> None:
    class Written(nn.Module):
        def forward(self, x: Any, place: Any) -> Any:
            begin = place.item()
            torch._check(begin >= 0)
            torch._check(begin <= 3)
            y = x.clone()
            y[begin : begin + 2] = 1.0
            return y

    message = r"aten\.slice_scatter.*, line \d+\): its operand '[a-z_]+' is an extent that depends on values; write"
    with pytest.raises(UnsupportedOperatorError, match=message):
        import_torch(Written(), (torch.ones(5, 3), torch.tensor(2)))
