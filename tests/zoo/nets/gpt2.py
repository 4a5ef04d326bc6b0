"""GPT-2 small (Radford et al., 2019), one pass over a prompt, no cache."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Causal attention and a dense part with tanh-GELU, each normalised before and added after."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(hidden)
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.output = nn.Linear(hidden, hidden)
        self.dense_norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.activation = nn.GELU(approximate="tanh")
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        """(N, S, hidden), bool (S, S) -> (N, S, hidden)."""
        x = x + self.output(self._attend(self.query_key_value(self.attention_norm(x)), allowed))
        return x + self.down(self.activation(self.up(self.dense_norm(x))))

    def _attend(self, query_key_value: Tensor, allowed: Tensor) -> Tensor:
        parts = query_key_value.chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(~allowed, -10000.0)
        return (torch.softmax(scores, dim=-1) @ value).transpose(1, 2).flatten(2)


class GPT2(nn.Module):
    """Token and position embedding, blocks, a last normalisation, and a head that shares the token embedding."""

    def __init__(
        self, layers: int = 12, hidden: int = 768, heads: int = 12, vocabulary: int = 50257, positions: int = 1024
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, hidden)
        self.position = nn.Embedding(positions, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, input_ids: Tensor) -> Tensor:
        """(N, S) -> logits of the next token (N, S, vocabulary)."""
        steps = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.token(input_ids) + self.position(steps)
        allowed = steps[None, :] <= steps[:, None]
        for block in self.blocks:
            x = block(x, allowed)
        return self.norm(x) @ self.token.weight.T
