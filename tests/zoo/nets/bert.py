"""Encoders of the BERT family: BERT (Devlin et al., 2019), TinyBERT, DistilBERT, MiniLM differ in sizes and ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    """Sizes of an encoder; ``types`` is 0 for DistilBERT, which has no token types."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocabulary: int = 30522
    positions: int = 512
    types: int = 2


BERT_BASE = Sizes(layers=12, hidden=768, heads=12, intermediate=3072)
DISTILBERT = Sizes(layers=6, hidden=768, heads=12, intermediate=3072, types=0)
TINYBERT = Sizes(layers=4, hidden=312, heads=12, intermediate=1200)
MINILM = Sizes(layers=6, hidden=384, heads=12, intermediate=1536)


class Embedding(nn.Module):
    """Sum of word, position and token-type vectors, normalised."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.word = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.position = nn.Embedding(sizes.positions, sizes.hidden)
        self.token_type = nn.Embedding(sizes.types, sizes.hidden) if sizes.types else None
        self.norm = nn.LayerNorm(sizes.hidden, eps=1e-12)

    def forward(self, tokens: Tensor, types: Tensor | None) -> Tensor:
        """(N, S) -> (N, S, hidden)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        total = self.word(tokens) + self.position(positions)
        return self.norm(total if self.token_type is None else total + self.token_type(types))


class Attention(nn.Module):
    """Multi-head self-attention, its output projection, the residual and its normalisation."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.query = nn.Linear(sizes.hidden, sizes.hidden)
        self.key = nn.Linear(sizes.hidden, sizes.hidden)
        self.value = nn.Linear(sizes.hidden, sizes.hidden)
        self.output = nn.Linear(sizes.hidden, sizes.hidden)
        self.norm = nn.LayerNorm(sizes.hidden, eps=1e-12)

    def forward(self, x: Tensor, penalty: Tensor) -> Tensor:
        """(N, S, hidden), (N, 1, 1, S) -> (N, S, hidden)."""
        query, key, value = (self._split(part(x)) for part in (self.query, self.key, self.value))
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5 + penalty
        mixed = (torch.softmax(scores, dim=-1) @ value).transpose(1, 2).flatten(2)
        return self.norm(x + self.output(mixed))

    def _split(self, x: Tensor) -> Tensor:
        """(N, S, hidden) -> (N, heads, S, hidden / heads)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Layer(nn.Module):
    """Attention, then two dense layers with GELU between, a residual and its normalisation."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention = Attention(sizes)
        self.up = nn.Linear(sizes.hidden, sizes.intermediate)
        self.activation = nn.GELU()
        self.down = nn.Linear(sizes.intermediate, sizes.hidden)
        self.norm = nn.LayerNorm(sizes.hidden, eps=1e-12)

    def forward(self, x: Tensor, penalty: Tensor) -> Tensor:
        """(N, S, hidden), (N, 1, 1, S) -> (N, S, hidden)."""
        x = self.attention(x, penalty)
        return self.norm(x + self.down(self.activation(self.up(x))))


class Encoder(nn.Module):
    """Embedding and layers: what all of the family share."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = Embedding(sizes)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))

    def forward(self, tokens: Tensor, mask: Tensor, types: Tensor | None) -> Tensor:
        """(N, S) three times -> (N, S, hidden)."""
        penalty = (1.0 - mask[:, None, None, :].to(self.embedding.word.weight.dtype)) * -10000.0
        x = self.embedding(tokens, types)
        for layer in self.layers:
            x = layer(x, penalty)
        return x


class Bert(nn.Module):
    """Encoder with the pooler on the first token."""

    def __init__(self, sizes: Sizes = BERT_BASE) -> None:
        super().__init__()
        self.encoder = Encoder(sizes)
        self.pooler = nn.Linear(sizes.hidden, sizes.hidden)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        """(N, S) three times -> hidden states (N, S, hidden) and pooled (N, hidden)."""
        hidden = self.encoder(input_ids, attention_mask, token_type_ids)
        return hidden, torch.tanh(self.pooler(hidden[:, 0]))


class DistilBert(nn.Module):
    """Encoder without token types and without pooler (Sanh et al., 2019)."""

    def __init__(self, sizes: Sizes = DISTILBERT) -> None:
        super().__init__()
        self.encoder = Encoder(sizes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(N, S) twice -> hidden states (N, S, hidden)."""
        return self.encoder(input_ids, attention_mask, None)


class SentenceEncoder(nn.Module):
    """Encoder whose states, averaged over the sentence, give a vector of unit length (all-MiniLM-L6-v2)."""

    def __init__(self, sizes: Sizes = MINILM) -> None:
        super().__init__()
        self.encoder = Encoder(sizes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """(N, S) three times -> sentence vectors (N, hidden)."""
        hidden = self.encoder(input_ids, attention_mask, token_type_ids)
        weights = attention_mask[:, :, None].to(torch.float32)
        mean = (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)
        return mean / mean.norm(dim=1, keepdim=True).clamp(min=1e-12)


# Names in published checkpoints of this family -> names here, applied in order.
_PUBLISHED_NAMES = (
    ("embeddings.word_embeddings.", "embedding.word."),
    ("embeddings.position_embeddings.", "embedding.position."),
    ("embeddings.token_type_embeddings.", "embedding.token_type."),
    ("embeddings.LayerNorm.", "embedding.norm."),
    ("encoder.layer.", "layers."),
    (".attention.self.", ".attention."),
    (".attention.output.dense.", ".attention.output."),
    (".attention.output.LayerNorm.", ".attention.norm."),
    (".intermediate.dense.", ".up."),
    (".output.dense.", ".down."),
    (".output.LayerNorm.", ".norm."),
)


def from_published_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the weights of a published encoder to those of :class:`SentenceEncoder`; its pooler is left out."""
    renamed = {}
    for name, value in weights.items():
        if name.startswith("pooler.") or name.endswith("position_ids"):
            continue
        for published, ours in _PUBLISHED_NAMES:
            name = name.replace(published, ours)
        renamed[f"encoder.{name}"] = value
    return renamed
