"""Gradients are PyTorch's: the forward graph is compiled, the backward graph is not."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn, randn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from tests.torch_compile.eager import LENIENT, assert_same, compiled

pytestmark = pytest.mark.torch

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def pictures() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    )


def tokens() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(10, 8), nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), nn.Linear(8, 3)
    )


NETS: dict[str, tuple[Any, Any]] = {
    "pictures": (pictures, lambda: randn(4, 1, 8, 8)),
    "tokens": (tokens, lambda: torch.randint(10, (2, 5))),
    "normalised": (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.GroupNorm(2, 8), nn.SiLU(), nn.LayerNorm(8)),
        lambda: randn(3, 8),
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_training_steps(name: str) -> None:
    make, draw = NETS[name]
    ours = make().train()
    theirs = copy.deepcopy(ours)
    run = compiled(ours, LENIENT)
    steps = [torch.optim.SGD(net.parameters(), 0.01) for net in (ours, theirs)]
    for _ in range(3):
        x = draw()
        losses = run(x).square().mean(), theirs(x).square().mean()
        assert_same(*losses, **CLOSE)
        for loss, step in zip(losses, steps, strict=True):
            step.zero_grad()
            loss.backward()
            step.step()
    assert_same(ours.state_dict(), theirs.state_dict(), **CLOSE)
    ours.eval()
    theirs.eval()
    with torch.no_grad():
        assert_same(run(x), theirs(x), rtol=1e-3, atol=1e-3)


def test_batch_normalisation_is_trained_on_batches_of_any_size() -> None:
    """What is kept of the variance is of a number of elements that is only known when it runs."""
    ours = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)).train()
    theirs = copy.deepcopy(ours)
    run = compiled(ours, {"fallback": False, "weights": "argument"}, dynamic=True)
    for number in (4, 7, 2, 9):
        x = randn(number, 2, 5, 5)
        assert_same(run(x), theirs(x), **CLOSE)
    assert_same(ours.state_dict(), theirs.state_dict(), **CLOSE)


def gradients(function: Any, x: Tensor) -> Tensor:
    given = x.detach().clone().requires_grad_()
    function(given).backward()
    assert given.grad is not None
    return given.grad


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


def test_of_inputs() -> None:
    net, x = nn.Linear(4, 4).eval(), randn(3, 4)
    for function in (
        lambda x: torch.tanh(net(x)).sum(),
        lambda x: Tripled.apply(x).sum(),
        lambda x: checkpoint(lambda y: torch.tanh(net(y)), x, use_reentrant=False).sum(),
        lambda x: (x[1:] * x[:-1]).sum() + x.mean(),
    ):
        torch._dynamo.reset()
        assert_same(gradients(compiled(function), x), gradients(function, x), rtol=1e-4, atol=1e-5)


def test_dropout_draws_the_numbers_of_torch() -> None:
    net, x = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)).train(), randn(2, 8)
    run = compiled(net, LENIENT)
    torch.manual_seed(3)
    with pytest.warns(UserWarning, match=r"native_dropout.*draws random numbers"):
        found = run(x)
    torch.manual_seed(3)
    assert_same(found, net(x))


def test_the_same_function_with_and_without() -> None:
    net, x = nn.Linear(4, 4).eval(), randn(3, 4)
    run = compiled(net)
    with torch.no_grad():
        assert_same(run(x), net(x))
    assert_same(run(x), net(x))
    with torch.no_grad():
        assert_same(run(x), net(x))


FUNCTIONS = {
    "grad": torch.func.grad(lambda x: (x @ x.t()).sum()),
    "vjp": lambda x: torch.func.vjp(lambda y: y * y @ y.t(), x)[1](torch.ones(4, 4))[0],
    "jvp": lambda x: torch.func.jvp(lambda y: y @ y.t(), (x,), (x + 1,)),
    "jacrev": torch.func.jacrev(lambda x: nn.functional.gelu(x @ x.t())),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("enabled", [True, False])
def test_a_graph_that_takes_gradients_itself(name: str, enabled: bool) -> None:
    """They came out as zeros where composite operators were kept whole."""
    x = randn(4, 5)
    with torch.set_grad_enabled(enabled):
        assert_same(compiled(FUNCTIONS[name], LENIENT)(x), FUNCTIONS[name](x), **CLOSE)


def test_gradients_that_are_switched_on_inside() -> None:
    def gradient(x: Tensor) -> Tensor:
        with torch.enable_grad():
            y = x.detach().requires_grad_(True)
            return torch.autograd.grad((y @ y.t()).sum(), y)[0]

    x = randn(4, 5)
    with torch.no_grad():
        assert_same(compiled(gradient, LENIENT)(x), gradient(x), **CLOSE)


def test_derivatives_computed_forwards_are_those_of_torch() -> None:
    """They were lost, without a word, where the caller makes the dual numbers."""
    net, x = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 3)), randn(4, 5)
    run = compiled(net)
    with torch.no_grad():
        assert_same(run(x), net(x), **CLOSE)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, randn(4, 5))
            found, expected = (forward_ad.unpack_dual(function(dual)) for function in (run, net))
        assert_same(found.primal, expected.primal, **CLOSE)
        assert_same(found.tangent, expected.tangent, **CLOSE)
