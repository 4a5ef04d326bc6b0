"""``torch.einsum``: values of products and of other sums, and attention written with it as one kernel."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn

import tvm_ext
from tests.torch_compile.eager import TARGET, assert_like_eager

EXTENTS = {"a": 1, "b": 2, "c": 3, "d": 5, "h": 4, "k": 7, "q": 6}

EQUATIONS = [
    "bqd,bkd->bqk",
    "bhdq,bhdk->bhqk",
    "bhqk,bhdk->bhdq",  # weights first, as in a U-Net
    "bqd,dhk->bqhk",
    "qk,bk->bq",
    "bd,bd->b",
    "qd,kd->",
    "bqd,bk->qk",  # an index of one operand is summed
    "abq,akc->qbck",
    "bqd , bkd -> b q k",
    "q,k->qk",  # nothing is summed
    "qkd,bkq->bd",
    "bqd,bkd",  # the result is not named
    "...qd,...kd->...qk",
    "bqd,bkd,bkc->bqc",
    "qq->q",
    "bqq,bk->bqk",
]


def operands(equation: str, extents: dict[str, int]) -> list[Tensor]:
    before = equation.replace(" ", "").partition("->")[0].replace("...", "bh")
    return [torch.randn([extents[index] for index in indices]) for indices in before.split(",")]


@pytest.mark.parametrize("equation", EQUATIONS)
def test_values(equation: str) -> None:
    class Sum(nn.Module):
        def forward(self, *tensors: Tensor) -> Tensor:
            return torch.einsum(equation, *tensors)

    tensors = operands(equation, EXTENTS)
    run = tvm_ext.compile(torch.export.export(Sum(), tuple(tensors)), TARGET)
    (found,) = run.run([tensor.numpy() for tensor in tensors]).values()
    torch.testing.assert_close(torch.from_numpy(found), torch.einsum(equation, *tensors), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("equation", ["bhqk,bhdk->bhdq", "bqd,dhk->bqhk", "bqd,bk->qk"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile(equation: str, dynamic: bool) -> None:
    calls = [operands(equation, extents) for extents in (EXTENTS, EXTENTS | {"q": 9, "k": 11})]
    assert_like_eager(lambda *x: torch.einsum(equation, *x), *calls, dynamic=dynamic, rtol=1e-4, atol=1e-4)


def test_an_axis_of_one_is_broadcast() -> None:
    q, k = torch.randn(1, 6, 5), torch.randn(2, 7, 5)
    assert_like_eager(lambda q, k: torch.einsum("bqd,bkd->bqk", q, k), (q, k), rtol=1e-4, atol=1e-4)


class PictureAttention(nn.Module):
    """As diffusion models write it: channels first, places last."""

    def __init__(self) -> None:
        super().__init__()
        self.projections = nn.Conv2d(32, 96, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.projections(x).reshape(x.shape[0], 3, 4, 8, -1).unbind(1)
        weights = torch.einsum("bhcq,bhck->bhqk", q, k).mul(8**-0.5).softmax(-1)
        return torch.einsum("bhqk,bhck->bhcq", weights, v).reshape(x.shape)


def test_attention_is_one_kernel() -> None:
    network, x = PictureAttention().eval(), torch.randn(1, 32, 8, 8)
    run = tvm_ext.compile(torch.export.export(network, (x,)), TARGET)
    (found,) = run.run([x.numpy()]).values()
    torch.testing.assert_close(torch.from_numpy(found), network(x), rtol=1e-4, atol=1e-4)
    kernels = re.findall(r"call +(\w+) +in:", run.executable.as_text())
    assert "attention" in kernels
    assert not any("matmul" in name or "softmax" in name or "slice" in name for name in kernels)
