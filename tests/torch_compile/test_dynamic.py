"""Extents that change from call to call."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F
from torch import Tensor, nn, randn

from tests.torch_compile.eager import LENIENT, STRICT, assert_like_eager, assert_same, compiled
from tests.torch_compile.test_values import CLOSE, picture_net
from tvm_ext.torch_compile import graph

pytestmark = pytest.mark.torch


def test_pictures_of_many_numbers() -> None:
    assert_like_eager(picture_net(), *[(randn(number, 3, 16, 16),) for number in (1, 4, 7, 2, 1, 33)], **CLOSE)


def test_a_declared_batch_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    run, x = compiled(net), randn(5, 4)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
    with torch.no_grad():
        assert_same(run(x), net(x))
        with monkeypatch.context() as patched:
            patched.setattr(graph, "compile_model", None)  # nothing is compiled from here on
            for number in (2, 3, 31, 64):
                assert_same(run(y := randn(number, 4)), net(y))
        for number in (1, 0, 100):  # outside of what was declared
            assert_same(run(y := randn(number, 4)), net(y))


def test_dynamic_from_the_start() -> None:
    def run(x: Tensor, y: Tensor) -> tuple[Tensor, int, Tensor, torch.Size]:
        return torch.cat([x, y], 0).sum(1), x.shape[0] * 2 + y.shape[0], x.reshape(-1), x.shape

    shapes = [((3, 4), (2, 4)), ((7, 4), (2, 4)), ((5, 9), (6, 9)), ((1, 4), (1, 4)), ((0, 4), (2, 4))]
    assert_like_eager(run, *[(randn(*left), randn(*right)) for left, right in shapes], dynamic=True)


@pytest.mark.parametrize("first", [1, 2])
def test_layer_normalisation_over_open_extents(first: int) -> None:
    def run(x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[first:])

    shapes = [(3, 5, 7), (4, 9, 3), (2, 7, 1)]
    assert_like_eager(run, *[(randn(shape),) for shape in shapes], dynamic=True, **CLOSE)


def test_extents_in_arithmetic() -> None:
    def run(x: Tensor) -> tuple[Tensor, ...]:
        return x / x.shape[0], x + x.shape[1] * 2, x[: x.shape[0] // 2], torch.full((x.shape[0],), 2.0)

    assert_like_eager(run, (randn(4, 3),), (randn(6, 3),), (randn(9, 5),), options=LENIENT)


def test_groups_of_frames() -> None:
    """What torch calls ``n // (n // 5)`` is five."""

    def run(x: Tensor) -> tuple[Tensor, ...]:
        groups = x.unflatten(0, (-1, 5))
        return (
            torch.cat([groups[:, 1:], groups[:, :1]], 1).flatten(0, 1),
            groups.sum(0),
            torch.zeros_like(groups[0]) + 1,
        )

    assert_like_eager(run, (randn(10, 3, 4),), (randn(5, 7, 4),), (randn(35, 3, 2),), dynamic=True)


def test_sums_and_quotients_of_extents() -> None:
    def run(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        larger = nn.functional.interpolate(x, size=y.shape[2:], mode="trilinear", align_corners=True)
        count = torch.sym_sum((x.shape[2], y.shape[2], z.shape[2]))
        return larger + y, torch.cat([x, y, z], 2).flatten(1) / count, x.new_ones(count)

    def volumes(*depths: int) -> tuple[Tensor, ...]:
        return tuple(randn(2, 3, depth, *depths[-2:]) for depth in depths[:3])

    assert_like_eager(run, volumes(4, 7, 5, 6), volumes(3, 5, 9, 8), dynamic=True, **CLOSE)


def test_attention_over_any_length() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    assert_like_eager(layer, *[(randn(2, length, 16),) for length in (5, 7, 1, 17)], options=LENIENT, **CLOSE)


def test_beyond_the_limit_of_recompilations() -> None:
    assert_like_eager(lambda x: x * 2, *[(randn(*[2] * rank),) for rank in range(1, 12)])


def test_weights_change_under_open_extents() -> None:
    net = nn.Linear(4, 3).eval()
    run = compiled(net, STRICT, dynamic=True)
    with torch.no_grad():
        for number in (3, 5, 8):
            net.weight.mul_(2)
            assert_same(run(x := randn(number, 4)), net(x))
