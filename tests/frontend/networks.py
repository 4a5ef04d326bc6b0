"""Small networks in the forms that people write, which importers are to bring into the same form."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F
from torch import Tensor, nn, randn

WIDTH, HEADS = 64, 4


class PostNorm(nn.Module):
    """A layer of BERT, attention written out, with a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, _ = x.shape

        def heads(y: Tensor) -> Tensor:
            return y.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)

        scores = heads(self.q(x)) @ heads(self.k(x)).transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
        mixed = torch.softmax(scores + mask[:, None, None], -1) @ heads(self.v(x))
        x = self.first(x + self.o(mixed.transpose(1, 2).reshape(batch, length, WIDTH)))
        return self.second(x + self.narrow(F.gelu(self.wide(x))))


class RmsNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class SharedHeads(nn.Module):
    """A layer of Llama: two heads share keys, rotary places, gated products."""

    def __init__(self) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.q, self.k, self.v = (nn.Linear(WIDTH, heads * size, bias=False) for heads in (HEADS, 2, 2))
        self.o, self.first, self.second = nn.Linear(WIDTH, WIDTH, bias=False), RmsNorm(), RmsNorm()
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.register_buffer("frequencies", 10000 ** (-torch.arange(0, size, 2) / size))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        size, y = WIDTH // HEADS, self.first(x)
        q, k, v = (
            f(y).view(batch, length, heads, size).transpose(1, 2)
            for f, heads in ((self.q, HEADS), (self.k, 2), (self.v, 2))
        )
        angles = torch.outer(torch.arange(length).float(), self.frequencies).repeat(1, 2)

        def turned(y: Tensor) -> Tensor:
            halves = torch.cat((-y[..., size // 2 :], y[..., : size // 2]), -1)
            return y * angles.cos() + halves * angles.sin()

        def spread(y: Tensor) -> Tensor:
            return y[:, :, None].expand(-1, -1, 2, -1, -1).reshape(batch, HEADS, length, size)

        mask = torch.full((length, length), -math.inf).triu(1)
        scores = turned(q) @ spread(turned(k)).transpose(2, 3) / math.sqrt(size) + mask
        mixed = (torch.softmax(scores, -1) @ spread(v)).transpose(1, 2).reshape(batch, length, WIDTH)
        x = x + self.o(mixed)
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Windows(nn.Module):
    """A block of Swin: shifted windows of 4 x 4."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.o = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.table = nn.Parameter(randn(2, 16, 16))
        self.register_buffer("mask", torch.where(torch.rand(4, 16, 16) > 0.8, -100.0, 0.0))

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        y = torch.roll(self.norm(x), (-2, -2), (1, 2)).view(b, h // 4, 4, w // 4, 4, c)
        y = y.permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        q, k, v = self.qkv(y).reshape(-1, 16, 3, 2, c // 2).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * (c // 2) ** -0.5) @ k.transpose(-2, -1) + self.table
        scores = (scores.view(b, 4, 2, 16, 16) + self.mask[None, :, None]).view(-1, 2, 16, 16)
        y = self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, 16, c))
        y = y.view(b, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return x + torch.roll(y, (2, 2), (1, 2))


class Diffusion(nn.Module):
    """Part of a U-Net: group normalisation, attention by ``einsum``, a transposed convolution, a joined skip."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.inner = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        self.first, self.second = nn.GroupNorm(8, 32), nn.GroupNorm(8, 32)
        self.down, self.up = nn.Conv2d(32, 32, 3, 2, 1), nn.ConvTranspose2d(32, 32, 2, 2)
        self.qkv, self.o, self.last = nn.Conv2d(32, 96, 1), nn.Conv2d(32, 32, 1), nn.Conv2d(64, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.inner(F.silu(self.first(self.before(x))))
        y = self.down(skip)
        q, k, v = self.qkv(self.second(y)).reshape(y.shape[0], 3, 4, 8, -1).unbind(1)
        weights = torch.einsum("bhcq,bhck->bhqk", q, k).mul(8**-0.5).softmax(-1)
        y = y + self.o(torch.einsum("bhqk,bhck->bhcq", weights, v).reshape(y.shape))
        return self.last(torch.cat([self.up(y), skip], 1))


class Depthwise(nn.Module):
    """A block of ConvNeXt."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depthwise = nn.Conv2d(3, 32, 4, 4), nn.Conv2d(32, 32, 7, padding=3, groups=32)
        self.norm, self.wide, self.narrow = nn.LayerNorm(32), nn.Linear(32, 128), nn.Linear(128, 32)
        self.scale, self.head = nn.Parameter(torch.rand(32)), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(F.gelu(self.wide(y)))
        return self.head((x + y.permute(0, 3, 1, 2)).mean((2, 3)))


class Excitation(nn.Module):
    """A block of EfficientNet, whose convolutions have biases."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.depthwise = nn.Conv2d(16, 64, 1), nn.Conv2d(64, 64, 3, padding=1, groups=64)
        self.first, self.second, self.third = nn.BatchNorm2d(64), nn.BatchNorm2d(64), nn.BatchNorm2d(16)
        self.reduce, self.expand, self.narrow = nn.Conv2d(64, 8, 1), nn.Conv2d(8, 64, 1), nn.Conv2d(64, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.hardswish(self.second(self.depthwise(F.silu(self.first(self.wide(x))))))
        y = y * torch.sigmoid(self.expand(F.relu(self.reduce(F.adaptive_avg_pool2d(y, 1)))))
        return x + self.third(self.narrow(y))


class Shuffle(nn.Module):
    """A unit of ShuffleNet v2: a half is left as it is, then channels are shuffled."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(16, 16, 1), nn.BatchNorm2d(16), nn.Conv2d(16, 16, 1)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        b = F.relu(self.last(self.depthwise(F.relu(self.norm(self.first(b))))))
        n, c, h, w = x.shape
        return torch.cat([a, b], 1).view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class Linear(nn.Module):
    """Linear attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(32, 96, bias=False), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        scale = 1 / (q * k.sum(1, keepdim=True)).sum(-1, keepdim=True)
        return self.o((q @ (k.transpose(1, 2) @ v)) * scale)


class Cross(nn.Module):
    """PyTorch's own attention, of one sequence to another."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.norm(x + self.attention(x, memory, memory, need_weights=False)[0])


NETWORKS = {
    "post-norm": (PostNorm, ((1, 16, WIDTH), (1, 16))),
    "shared heads": (SharedHeads, ((1, 16, WIDTH),)),
    "windows": (Windows, ((1, 8, 8, 32),)),
    "diffusion": (Diffusion, ((1, 3, 16, 16),)),
    "depthwise": (Depthwise, ((1, 3, 32, 32),)),
    "excitation": (Excitation, ((1, 16, 14, 14),)),
    "shuffle": (Shuffle, ((1, 32, 14, 14),)),
    "linear attention": (Linear, ((1, 16, 32),)),
    "cross attention": (Cross, ((1, 9, WIDTH), (1, 16, WIDTH))),
}
"""By name: a module, and the shapes of its inputs."""
