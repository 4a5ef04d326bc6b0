"""Attention reads its operands through slices, reshapes, transposes and broadcasts, which make no kernels then."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F
from torch import Tensor, nn

import tvm_ext

TARGETS = {
    "avx2": {"kind": "llvm", "mcpu": "haswell", "opt-level": 1},
    "avx512": {"kind": "llvm", "mcpu": "skylake-avx512", "opt-level": 1},
    "sse4": {"kind": "llvm", "mcpu": "nehalem", "opt-level": 1},
}
BATCH, LENGTH, HEADS, SIZE = 2, 17, 4, 7
CHANNELS = HEADS * SIZE


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1), -1) @ v


def of_heads(x: Tensor) -> Tensor:
    return x.reshape(BATCH, LENGTH, HEADS, -1).transpose(1, 2)


def unbound(x: Tensor) -> Tensor:
    q, k, v = x.reshape(BATCH, LENGTH, 3, HEADS, SIZE).permute(2, 0, 3, 1, 4).unbind(0)
    return written_out(q * SIZE**-0.5, k, v)


def chunks(x: Tensor) -> Tensor:
    return written_out(*map(of_heads, x.chunk(3, -1)))


def uneven_parts(x: Tensor) -> Tensor:
    q, k, v = x.split([CHANNELS, CHANNELS, CHANNELS], -1)
    return written_out(of_heads(q), of_heads(k) * 0.3, of_heads(v[..., : 2 * HEADS]))


def heads_first(x: Tensor) -> Tensor:
    """All of one head lie side by side (GPT-NeoX, BLOOM)."""
    q, k, v = x.view(BATCH, LENGTH, HEADS, 3 * SIZE).transpose(1, 2).chunk(3, -1)
    return written_out(q, k, v)


def joined_batch(x: Tensor) -> Tensor:
    """Heads and batch are one axis (``nn.MultiheadAttention``)."""
    q, k, v = (y.transpose(0, 1).reshape(LENGTH, BATCH * HEADS, SIZE).transpose(0, 1) for y in x.chunk(3, -1))
    return written_out(q * 0.5, k, v).reshape(BATCH, HEADS, LENGTH, SIZE)


def shared_heads(x: Tensor) -> Tensor:
    q, rest = x[..., :CHANNELS], x[..., CHANNELS : CHANNELS + 4 * SIZE]
    k, v = rest.reshape(BATCH, LENGTH, 2, 2, SIZE).permute(2, 0, 3, 1, 4)
    spread = [y[:, :, None].expand(-1, -1, 2, -1, -1).reshape(BATCH, HEADS, LENGTH, SIZE) for y in (k, v)]
    return written_out(of_heads(q), *spread)


def one_head_for_all(x: Tensor) -> Tensor:
    k, v = (x[:, None, :, at : at + SIZE].expand(-1, HEADS, -1, -1) for at in (CHANNELS, CHANNELS + 5))
    return written_out(of_heads(x[..., -CHANNELS:]), k, v)


def other_places(x: Tensor) -> Tensor:
    """Queries come from fewer places than keys."""
    q, k, v = x.chunk(3, -1)
    return written_out(of_heads(q)[:, :, 2:-3], of_heads(k)[:, :, 1:], of_heads(v)[:, :, 1:])


CASES: list[Callable[[Tensor], Tensor]] = [
    unbound, chunks, uneven_parts, heads_first, joined_batch, shared_heads, one_head_for_all, other_places
]  # fmt: skip


class Network(nn.Module):
    def __init__(self, attend: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.attend = attend
        self.before = nn.Linear(9, 3 * CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.attend(self.before(x)))


def compiled(attend: Callable[[Tensor], Tensor], target: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Give the kernels that a network calls, what it computes, and what PyTorch does."""
    torch.manual_seed(1)
    network, x = Network(attend).eval(), torch.randn(BATCH, LENGTH, 9)
    run = tvm_ext.compile(torch.export.export(network, (x,)), TARGETS[target])
    kernels = re.findall(r"call +(\w+) +in:", run.executable.as_text())
    (found,) = run.run([x.numpy()]).values()
    return kernels, found, network(x).detach().numpy()


@pytest.mark.parametrize("attend", CASES, ids=lambda case: case.__name__)
def test_views_are_no_kernels(attend: Callable[[Tensor], Tensor]) -> None:
    kernels, found, wanted = compiled(attend, "avx512")
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert "attention" in kernels
    assert len(kernels) <= 3, kernels  # and the product in front of it, and what is behind it


@pytest.mark.parametrize("target", ["avx2", "sse4"])
@pytest.mark.parametrize("attend", [unbound, joined_batch, shared_heads], ids=lambda case: case.__name__)
def test_other_vectors(attend: Callable[[Tensor], Tensor], target: str) -> None:
    _, found, wanted = compiled(attend, target)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def _random_view(generator: np.random.Generator, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Make a tensor of a shape out of random steps of another one that is long enough."""
    size = int(np.prod(shape))
    begin = int(generator.integers(0, x.numel() - size + 1))
    y = x.reshape(-1)[begin : begin + size]
    axes = generator.permutation(len(shape))
    inverse = np.argsort(axes)
    y = y.reshape([shape[axis] for axis in axes]).permute(*map(int, inverse))
    for _ in range(int(generator.integers(0, 4))):
        axis = int(generator.integers(0, y.dim()))
        match generator.integers(0, 4):
            case 0:
                y = torch.cat([y, y], axis).narrow(axis, int(generator.integers(0, y.shape[axis] + 1)), y.shape[axis])
            case 1:
                y = y.unsqueeze(axis).expand(*y.shape[:axis], 3, *y.shape[axis:]).select(axis, 1)
            case 2:
                y = y * 1.25
            case _:
                y = y.flatten(0, 1).unflatten(0, y.shape[:2])
    return y


@pytest.mark.parametrize("seed", range(6))
def test_random_views(seed: int) -> None:
    generator = np.random.default_rng(seed)
    batch, heads, rows, columns, depth, width = (
        int(n) for n in generator.integers([1, 1, 3, 3, 1, 1], [4, 4, 34, 34, 18, 18])
    )
    shapes = (batch, heads, rows, depth), (batch, heads, depth, columns), (batch, heads, columns, width)

    class Views(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            steps = np.random.default_rng(seed)
            q, k, v = (_random_view(steps, x, shape) for shape in shapes)
            return torch.softmax(q @ k, -1) @ v

    torch.manual_seed(seed)
    x = torch.randn(max(int(np.prod(shape)) for shape in shapes) + 5)
    run = tvm_ext.compile(torch.export.export(Views(), (x,)), TARGETS["avx512"])
    (found,) = run.run([x.numpy()]).values()
    np.testing.assert_allclose(found, Views()(x).numpy(), rtol=1e-4, atol=1e-5)
