"""What shares memory in PyTorch shares it, what is changed in place is changed, and nothing else is either."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn, randn

from tests.torch_compile.eager import LENIENT, assert_like_eager, assert_same, compiled

pytestmark = pytest.mark.torch


def test_inputs_changed_in_place() -> None:
    def run(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        y[1:].mul_(2)
        return x @ y

    assert_like_eager(run, (randn(3, 3), randn(3, 3)), (randn(4, 4), randn(4, 4)), options=LENIENT)


def test_a_view_of_an_input_changed_in_place() -> None:
    def run(x: Tensor) -> Tensor:
        flat = x.view(-1)
        flat.add_(1)
        return flat * 2

    assert_like_eager(run, (randn(2, 3),))


def test_inputs_that_overlap() -> None:
    def run(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return x + y

    compiled_run, ours = compiled(run, LENIENT), randn(6)
    theirs = ours.clone()
    assert_same(compiled_run(ours[:4], ours[2:]), run(theirs[:4], theirs[2:]))
    assert_same(compiled_run(ours, ours), run(theirs, theirs))
    assert_same(ours, theirs)


def test_outputs_that_are_inputs_or_views_of_them() -> None:
    def run(x: Tensor) -> tuple[Tensor, ...]:
        return x, x.view(-1), x[1:], x.t()

    assert_like_eager(run, (randn(3, 4),))
    same, flat, rest, turned = compiled(run)(x := randn(3, 4))
    assert same is x
    flat[0], rest[0, 0] = 9, 8
    assert x[0, 0] == turned[0, 0] == 9
    assert x[1, 0] == 8


def test_outputs_that_are_views_of_one_another() -> None:
    def run(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        first, second = y.chunk(2, 1)
        return y.view(-1), first, second, y.t(), x + 1

    assert_like_eager(run, (randn(3, 4),), (randn(5, 4),))
    flat, first, second, turned, _ = compiled(run)(randn(3, 4))
    flat[5] = 100
    second[2, 1] = 50
    assert first[1, 1] == turned[1, 1] == 100
    assert flat[11] == 50


def test_views_with_gaps() -> None:
    assert_like_eager(lambda x: ((x * 2)[:, 1:], (x + 1).sum(0).expand(5, 4), (x - 1).t()), (randn(3, 4),))


def test_the_same_output_twice() -> None:
    first, second = compiled(lambda x: (y := x * 2, y))(randn(3))
    first[0] = 7
    assert second[0] == 7


def test_different_outputs_with_equal_values_are_apart() -> None:
    first, second = compiled(lambda x: (x * 2, (x * 2).reshape(-1)))(randn(2, 3))
    first[0, 0] = 7
    assert second[0] != 7


def test_an_output_that_equals_its_input_is_apart() -> None:
    x = randn(2, 3)
    copied, scaled = compiled(lambda x: (x.clone(), x * 1))(x)
    copied[0, 0] = scaled[0, 0] = 7
    assert x[0, 0] != 7


def test_out_argument() -> None:
    given = torch.empty(3)

    def run(x: Tensor) -> Tensor:
        torch.add(x, 1, out=given)
        return given * 2

    x = randn(3)
    assert_same(compiled(run)(x), (x + 1) * 2)
    assert_same(given, x + 1)


def test_batch_normalisation_in_training_mode_changes_its_statistics() -> None:
    ours, theirs = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    run = compiled(ours)
    with torch.no_grad():
        for _ in range(3):
            x = randn(4, 3, 5, 5) + 2
            assert_same(run(x), theirs(x), rtol=1e-4, atol=1e-5)
    assert_same(dict(ours.named_buffers()), dict(theirs.named_buffers()), rtol=1e-4, atol=1e-5)
