"""Parts that networks of rows share: attention, feed-forward blocks, normalisations, activations, language models.

They are narrow and shallow: which rules match does not depend on widths.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, HEADS, ROWS, WORDS = 32, 4, 12, 50


class RootMeanSquare(nn.Module):
    """Normalisation of Llama: by the root of the mean square."""

    def __init__(self, width: int, is_shifted: bool = False) -> None:
        super().__init__()
        self.weight, self.is_shifted = nn.Parameter(torch.rand(width) + 0.5), is_shifted

    def forward(self, x: Tensor) -> Tensor:
        """Normalise rows."""
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return x * (1 + self.weight) if self.is_shifted else self.weight * x


def rotated(x: Tensor) -> Tensor:
    """Turn pairs of values by angles that grow with the place (rotary embedding, half by half)."""
    rows, width = x.shape[-2], x.shape[-1]
    angles = torch.arange(rows)[:, None] * 10000 ** -(torch.arange(0, width, 2) / width)
    angles = torch.cat([angles, angles], -1)
    first, second = x.chunk(2, -1)
    return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


class Attention(nn.Module):
    """Attention with the variations of its users: shared keys, rotary embedding, biases, one product for all three."""

    def __init__(
        self, width: int = WIDTH, heads: int = HEADS, keys: int = HEADS, bias: bool = True, style: str = ""
    ) -> None:
        super().__init__()
        self.heads, self.keys, self.style, self.size = heads, keys, style, width // heads
        self.packed = nn.Linear(width, 3 * width, bias) if "packed" in style else None
        self.query, self.output = nn.Linear(width, width, bias), nn.Linear(width, width, bias)
        self.key, self.value = (nn.Linear(width, keys * self.size, bias) for _ in range(2))
        self.places = nn.Parameter(torch.randn(heads, ROWS, ROWS)) if "relative" in style else None

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """Attend to the rows of ``x``, or of ``other``."""
        other = x if other is None else other
        if self.packed is not None:
            query, key, value = self.packed(x).chunk(3, -1)
        else:
            query, key, value = self.query(x), self.key(other), self.value(other)
        query, key, value = (
            part.reshape(*part.shape[:2], -1, self.size).transpose(1, 2) for part in (query, key, value)
        )
        if "rotary" in self.style:
            query, key = rotated(query), rotated(key)
        if self.keys < self.heads:
            key, value = (part.repeat_interleave(self.heads // self.keys, 1) for part in (key, value))
        if "cosine" in self.style:
            query, key = F.normalize(query, dim=-1), F.normalize(key, dim=-1)
        if "before" in self.style:
            scores = (query * self.size**-0.5) @ key.transpose(-1, -2)
        elif "both" in self.style:
            scores = (query * self.size**-0.25) @ (key * self.size**-0.25).transpose(-1, -2)
        elif "unscaled" in self.style:
            scores = query @ key.transpose(-1, -2)
        else:
            scores = query @ key.transpose(-1, -2) / math.sqrt(self.size)
        if self.places is not None:
            scores = scores + self.places
        if "causal" in self.style:
            hidden = torch.triu(torch.ones(scores.shape[-2:], dtype=torch.bool), 1)
            scores = scores.masked_fill(hidden, float("-inf"))
        if "capped" in self.style:
            scores = torch.tanh(scores / 50) * 50
        mixed = scores.softmax(-1) @ value
        return self.output(mixed.transpose(1, 2).reshape(x.shape))


class Gated(nn.Module):
    """Feed-forward block with a gate."""

    def __init__(self, gate: Callable[[Tensor], Tensor] = F.silu, bias: bool = False) -> None:
        super().__init__()
        self.gate = gate
        self.up, self.side = nn.Linear(WIDTH, 64, bias), nn.Linear(WIDTH, 64, bias)
        self.down = nn.Linear(64, WIDTH, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to each row."""
        return self.down(self.gate(self.side(x)) * self.up(x))


class Plain(nn.Module):
    """Feed-forward block."""

    def __init__(self, activation: Callable[[Tensor], Tensor] = F.gelu, bias: bool = True) -> None:
        super().__init__()
        self.activation, self.up, self.down = activation, nn.Linear(WIDTH, 64, bias), nn.Linear(64, WIDTH, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to each row."""
        return self.down(self.activation(self.up(x)))


class Block(nn.Module):
    """Attention and feed-forward, normalised before or after, one after the other or side by side."""

    def __init__(
        self, attention: nn.Module, forward: nn.Module, norm: Callable[[], nn.Module], order: str = "pre"
    ) -> None:
        super().__init__()
        self.attention, self.feed, self.order = attention, forward, order
        self.first, self.second = norm(), norm()
        self.scales = nn.ParameterList([torch.rand(WIDTH), torch.rand(WIDTH)]) if order == "scaled" else [1.0, 1.0]

    def forward(self, x: Tensor) -> Tensor:
        """Apply to rows."""
        if self.order == "post":
            x = self.first(x + self.attention(x))
            return self.second(x + self.feed(x))
        if self.order == "parallel":
            normal = self.first(x)
            return x + self.attention(normal) + self.feed(normal)
        if self.order == "scaled":
            x = x + self.scales[0] * self.attention(self.first(x))
            return x + self.scales[1] * self.feed(self.second(x))
        x = x + self.attention(self.first(x))
        return x + self.feed(self.second(x))


class Language(nn.Module):
    """Word and place embeddings, blocks, and scores of the next word."""

    def __init__(
        self, block: Callable[[], nn.Module], norm: nn.Module, has_places: bool = True, scale: float = 1
    ) -> None:
        super().__init__()
        self.words, self.scale = nn.Embedding(WORDS, WIDTH), scale
        self.places = nn.Embedding(ROWS, WIDTH) if has_places else None
        self.blocks, self.norm = nn.Sequential(block(), block()), norm

    def forward(self, tokens: Tensor) -> Tensor:
        """Score each word at each place."""
        x = self.words(tokens)
        x = x * self.scale if self.scale != 1 else x
        if self.places is not None:
            x = x + self.places(torch.arange(tokens.shape[1]))
        return self.norm(self.blocks(x)) @ self.words.weight.T


def layer_norm() -> nn.Module:
    """Make a layer normalisation with weights that are not 1 and 0."""
    norm = nn.LayerNorm(WIDTH)
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.uniform_(norm.bias, -0.5, 0.5)
    return norm


def tanh_gelu(x: Tensor) -> Tensor:
    """Activation of GPT-2 as it is written there."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def squared_relu(x: Tensor) -> Tensor:
    """Activation of Primer and RWKV."""
    return F.relu(x).square()


def quick_gelu(x: Tensor) -> Tensor:
    """Activation of CLIP."""
    return x * torch.sigmoid(1.702 * x)
