"""Transformers written as their published code was, for exporters that keep every operator.

Sizes are read from tensors when the model runs (``x.size()``, ``x.view(...)``), normalisations and activations are
spelt out; exported with free dimensions this gives the graphs of hundreds of small operators that fusion studies count:
layer normalisation is nine operators, GELU five or eight, and every view comes with the arithmetic of its shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class EncoderSizes:
    """Sizes of a BERT-like encoder.

    Attributes
    ----------
    layers, hidden, heads, intermediate : int
        As the papers name them.
    embedding : int
        Width of the embeddings; narrower than ``hidden`` in ALBERT and MobileBERT.
    types : int
        Token types; 0 where there are none.
    pooler : bool
        Whether a dense layer over the first token follows.
    """

    layers: int
    hidden: int
    heads: int
    intermediate: int
    embedding: int
    vocabulary: int = 30522
    positions: int = 512
    types: int = 2
    pooler: bool = True


BERT_BASE = EncoderSizes(12, 768, 12, 3072, 768)
DISTILBERT = EncoderSizes(6, 768, 12, 3072, 768, types=0, pooler=False)
TINYBERT = EncoderSizes(4, 312, 12, 1200, 312)
ALBERT = EncoderSizes(12, 768, 12, 3072, 128, vocabulary=30000)


class Norm(nn.Module):
    """Layer normalisation, spelt out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Shape is kept."""
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(variance + 1e-5) * self.weight + self.bias


def gelu(x: Tensor) -> Tensor:
    """x times the normal distribution function."""
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def gelu_tanh(x: Tensor) -> Tensor:
    """The approximation with tanh."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class SelfAttention(nn.Module):
    """Multi-head attention with views whose sizes are read from the tensors."""

    def __init__(self, hidden: int, heads: int, width_in: int | None = None, value_in: int | None = None) -> None:
        super().__init__()
        self.heads, self.size = heads, hidden // heads
        self.query = nn.Linear(width_in or hidden, hidden)
        self.key = nn.Linear(width_in or hidden, hidden)
        self.value = nn.Linear(value_in or hidden, hidden)

    def _split(self, x: Tensor) -> Tensor:
        shape = (*x.size()[:-1], self.heads, self.size)
        return x.view(*shape).permute(0, 2, 1, 3)

    def forward(self, x: Tensor, value: Tensor, penalty: Tensor) -> Tensor:
        """(N, S, width) -> (N, S, hidden)."""
        query, key, values = self._split(self.query(x)), self._split(self.key(x)), self._split(self.value(value))
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(self.size) + penalty
        mixed = torch.matmul(torch.softmax(scores, dim=-1), values).permute(0, 2, 1, 3).contiguous()
        return mixed.view(*mixed.size()[:-2], self.heads * self.size)


class EncoderLayer(nn.Module):
    """Attention and a dense part, each normalised after the addition."""

    def __init__(self, sizes: EncoderSizes, activation: str = "gelu") -> None:
        super().__init__()
        self.attention = SelfAttention(sizes.hidden, sizes.heads)
        self.output = nn.Linear(sizes.hidden, sizes.hidden)
        self.norm = Norm(sizes.hidden)
        self.up = nn.Linear(sizes.hidden, sizes.intermediate)
        self.down = nn.Linear(sizes.intermediate, sizes.hidden)
        self.last_norm = Norm(sizes.hidden)
        self.activation = gelu if activation == "gelu" else gelu_tanh

    def forward(self, x: Tensor, penalty: Tensor) -> Tensor:
        """(N, S, hidden) -> the same."""
        x = self.norm(self.output(self.attention(x, x, penalty)) + x)
        return self.last_norm(self.down(self.activation(self.up(x))) + x)


class Embedding(nn.Module):
    """Sum of word, position and token-type vectors, normalised."""

    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        self.word = nn.Embedding(sizes.vocabulary, sizes.embedding)
        self.position = nn.Embedding(sizes.positions, sizes.embedding)
        self.token_type = nn.Embedding(sizes.types, sizes.embedding) if sizes.types else None
        self.register_buffer("position_ids", torch.arange(sizes.positions).expand((1, -1)))
        self.norm = Norm(sizes.embedding)

    def forward(self, tokens: Tensor, types: Tensor | None) -> Tensor:
        """(N, S) -> (N, S, embedding)."""
        positions = self.position_ids[:, : tokens.size()[1]]
        total = self.word(tokens)
        if self.token_type is not None:
            total = total + self.token_type(types)
        return self.norm(total + self.position(positions))


def penalty_of(mask: Tensor) -> Tensor:
    """Minus ten thousand where there is padding: (N, S) -> (N, 1, 1, S)."""
    return (1.0 - mask.unsqueeze(1).unsqueeze(2).to(torch.float32)) * -10000.0


class Encoder(nn.Module):
    """BERT, DistilBERT, TinyBERT, and with ``shared`` ALBERT, whose layers share their weights."""

    def __init__(self, sizes: EncoderSizes, shared: bool = False) -> None:
        super().__init__()
        self.count = sizes.layers
        self.embedding = Embedding(sizes)
        self.widen = nn.Linear(sizes.embedding, sizes.hidden) if sizes.embedding != sizes.hidden else None
        activation = "gelu_tanh" if shared else "gelu"
        self.layers = nn.ModuleList(EncoderLayer(sizes, activation) for _ in range(1 if shared else sizes.layers))
        self.pooler = nn.Linear(sizes.hidden, sizes.hidden) if sizes.pooler else None

    def forward(self, tokens: Tensor, mask: Tensor, types: Tensor | None = None) -> tuple[Tensor, ...]:
        """(N, S) -> (N, S, hidden), and (N, hidden) of the pooler."""
        penalty = penalty_of(mask)
        x = self.embedding(tokens, types)
        if self.widen is not None:
            x = self.widen(x)
        for number in range(self.count):
            x = self.layers[number % len(self.layers)](x, penalty)
        return (x,) if self.pooler is None else (x, torch.tanh(self.pooler(x[:, 0])))


class Affine(nn.Module):
    """MobileBERT's normalisation: a scale and a shift."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Shape is kept."""
        return x * self.weight + self.bias


class Bottleneck(nn.Module):
    """A dense layer and its normalisation."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width_in, width_out)
        self.norm = Affine(width_out)

    def forward(self, x: Tensor) -> Tensor:
        """(N, S, width_in) -> (N, S, width_out)."""
        return self.norm(self.dense(x))


class Stacked(nn.Module):
    """A dense part with a rectifier, added to its input and normalised."""

    def __init__(self, width: int, intermediate: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, intermediate)
        self.down = nn.Linear(intermediate, width)
        self.norm = Affine(width)

    def forward(self, x: Tensor) -> Tensor:
        """Shape is kept."""
        return self.norm(self.down(torch.relu(self.up(x))) + x)


class MobileLayer(nn.Module):
    """A MobileBERT layer (Sun et al., 2020, figure 1c): bottleneck, attention, four stacked dense parts, bottleneck."""

    def __init__(self, hidden: int, inner: int, heads: int, intermediate: int) -> None:
        super().__init__()
        self.inward = Bottleneck(hidden, inner)
        self.shared = Bottleneck(hidden, inner)
        self.attention = SelfAttention(inner, heads, inner, hidden)
        self.output = nn.Linear(inner, inner)
        self.norm = Affine(inner)
        self.stacked = nn.ModuleList(Stacked(inner, intermediate) for _ in range(3))
        self.up = nn.Linear(inner, intermediate)
        self.down = nn.Linear(intermediate, inner)
        self.dense_norm = Affine(inner)
        self.outward = nn.Linear(inner, hidden)
        self.last_norm = Affine(hidden)

    def forward(self, x: Tensor, penalty: Tensor) -> Tensor:
        """(N, S, hidden) -> the same."""
        inner, shared = self.inward(x), self.shared(x)
        y = self.norm(self.output(self.attention(shared, x, penalty)) + inner)
        for part in self.stacked:
            y = part(y)
        y = self.dense_norm(self.down(torch.relu(self.up(y))) + y)
        return self.last_norm(self.outward(y) + x)


class MobileBert(nn.Module):
    """MobileBERT (Sun et al., 2020): 24 thin layers; embeddings of three neighbours side by side."""

    def __init__(self, layers: int = 24, hidden: int = 512, inner: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.word = nn.Embedding(30522, inner)
        self.position = nn.Embedding(512, hidden)
        self.token_type = nn.Embedding(2, hidden)
        self.register_buffer("position_ids", torch.arange(512).expand((1, -1)))
        self.widen = nn.Linear(3 * inner, hidden)
        self.norm = Affine(hidden)
        self.layers = nn.ModuleList(MobileLayer(hidden, inner, heads, 4 * inner) for _ in range(layers))

    def forward(self, tokens: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        """(N, S) -> (N, S, hidden)."""
        penalty = penalty_of(mask)
        word = self.word(tokens)
        after = nn.functional.pad(word[:, 1:], [0, 0, 0, 1, 0, 0])
        before = nn.functional.pad(word[:, :-1], [0, 0, 1, 0, 0, 0])
        x = self.widen(torch.cat([after, word, before], dim=2))
        x = self.norm(x + self.position(self.position_ids[:, : tokens.size()[1]]) + self.token_type(types))
        for layer in self.layers:
            x = layer(x, penalty)
        return x


class Conv1D(nn.Module):
    """GPT-2's dense layer: rows are flattened, multiplied, and shaped back."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.width = width_out
        self.weight = nn.Parameter(torch.randn(width_in, width_out) * 0.02)
        self.bias = nn.Parameter(torch.zeros(width_out))

    def forward(self, x: Tensor) -> Tensor:
        """(..., width_in) -> (..., width_out)."""
        shape = (*x.size()[:-1], self.width)
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*shape)


class Gpt2Block(nn.Module):
    """Causal attention and a dense part, each normalised before and added after; gives the keys and values too."""

    def __init__(self, hidden: int, heads: int, positions: int) -> None:
        super().__init__()
        self.heads, self.hidden = heads, hidden
        self.norm = Norm(hidden)
        self.query_key_value = Conv1D(hidden, 3 * hidden)
        self.output = Conv1D(hidden, hidden)
        self.dense_norm = Norm(hidden)
        self.up = Conv1D(hidden, 4 * hidden)
        self.down = Conv1D(4 * hidden, hidden)
        mask = torch.tril(torch.ones(positions, positions)).view(1, 1, positions, positions)
        self.register_buffer("mask", mask)

    def _split(self, x: Tensor, is_key: bool = False) -> Tensor:
        shape = (*x.size()[:-1], self.heads, x.size(-1) // self.heads)
        return x.view(*shape).permute(0, 2, 3, 1) if is_key else x.view(*shape).permute(0, 2, 1, 3)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = torch.matmul(query, key) / math.sqrt(value.size(-1))
        rows, columns = scores.size(-2), scores.size(-1)
        mask = self.mask[:, :, columns - rows : columns, :columns]
        scores = scores * mask - 1e4 * (1 - mask)
        mixed = torch.matmul(torch.softmax(scores, dim=-1), value).permute(0, 2, 1, 3).contiguous()
        return mixed.view(*mixed.size()[:-2], mixed.size(-2) * mixed.size(-1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(N, S, hidden) -> the same, and keys and values (2, N, heads, S, hidden / heads)."""
        query, key, value = self.query_key_value(self.norm(x)).split(self.hidden, dim=2)
        query, key, value = self._split(query), self._split(key, True), self._split(value)
        present = torch.stack((key.transpose(-2, -1), value))
        x = x + self.output(self._attend(query, key, value))
        return x + self.down(gelu_tanh(self.up(self.dense_norm(x)))), present


class Gpt2(nn.Module):
    """GPT-2 small as it was first published for PyTorch, with its cache of keys and values among the results."""

    def __init__(
        self, layers: int = 12, hidden: int = 768, heads: int = 12, vocabulary: int = 50257, positions: int = 1024
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, hidden)
        self.position = nn.Embedding(positions, hidden)
        self.blocks = nn.ModuleList(Gpt2Block(hidden, heads, positions) for _ in range(layers))
        self.norm = Norm(hidden)

    def forward(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """(N, S) -> logits of the next token (N, S, vocabulary), and the cache of each layer."""
        shape = tokens.size()
        tokens = tokens.view(-1, shape[-1])
        positions = torch.arange(0, shape[-1], dtype=torch.long).unsqueeze(0).view(-1, shape[-1])
        x = self.token(tokens) + self.position(positions)
        presents = []
        for block in self.blocks:
            x, present = block(x)
            presents.append(present)
        x = self.norm(x).view(*shape, x.size(-1))
        return torch.matmul(x, self.token.weight.T), *presents


def full(name: str) -> nn.Module:
    """The net of that name at its published size, in evaluation mode, with seeded made-up weights."""
    nets = {
        "bert_base": lambda: Encoder(BERT_BASE),
        "distilbert": lambda: Encoder(DISTILBERT),
        "tinybert": lambda: Encoder(TINYBERT),
        "albert": lambda: Encoder(ALBERT, shared=True),
        "mobilebert": MobileBert,
        "gpt2": Gpt2,
    }
    return with_random_weights(nets[name]())


def with_random_weights(module: nn.Module) -> nn.Module:
    """Fill a module with seeded weights of a size that keeps signals; scales are near one. In evaluation mode.

    What is added to a stream of sums is small, as in trained nets: 24 layers of MobileBERT add 144 times, and nothing
    there divides by the deviation.
    """
    generator = torch.Generator().manual_seed(0)
    for name, parameter in module.named_parameters():
        if parameter.dim() >= 2:
            deviation = 0.05 if "token" in name or "word" in name or "position" in name else parameter.shape[-1] ** -0.5
            if name.endswith(("output.weight", "down.weight", "outward.weight")):
                deviation *= 0.2
            parameter.data.normal_(0.0, deviation, generator=generator)
        elif name.endswith("weight"):
            parameter.data.uniform_(0.8, 1.2, generator=generator)
        else:
            parameter.data.normal_(0.0, 0.1, generator=generator)
    return module.eval()
