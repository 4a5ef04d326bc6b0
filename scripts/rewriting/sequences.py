"""Networks of rows: language models, encoders, speech, recurrent ones, recommenders, written as their papers do.

They are narrow and shallow: which rules match does not depend on widths.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scripts.rewriting.row_parts import (
    HEADS,
    ROWS,
    WIDTH,
    WORDS,
    Attention,
    Block,
    Gated,
    Language,
    Plain,
    RootMeanSquare,
    layer_norm,
    quick_gelu,
    squared_relu,
    tanh_gelu,
)


class Linear(nn.Module):
    """Attention without softmax, by a feature map."""

    def __init__(self) -> None:
        super().__init__()
        self.parts, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        query, key, value = self.parts(x).chunk(3, -1)
        query, key = F.elu(query) + 1, F.elu(key) + 1
        total = key.transpose(1, 2) @ value
        return self.output(query @ total / (query @ key.sum(1, keepdim=True).transpose(1, 2) + 1e-6))


class Mixer(nn.Module):
    """MLP-Mixer: products along rows, then along channels."""

    def __init__(self) -> None:
        super().__init__()
        self.along, self.across = nn.Sequential(nn.Linear(ROWS, 24), nn.GELU(), nn.Linear(24, ROWS)), Plain()
        self.first, self.second = layer_norm(), layer_norm()

    def forward(self, x: Tensor) -> Tensor:
        """Mix."""
        x = x + self.along(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.across(self.second(x))


class Conformer(nn.Module):
    """Half a feed-forward block, attention, a gated depthwise convolution with batch normalisation, the other half."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = (nn.Sequential(layer_norm(), Plain(F.silu)) for _ in range(2))
        self.attention = nn.Sequential(layer_norm(), Attention())
        self.norm, self.last = layer_norm(), layer_norm()
        self.wide, self.narrow = nn.Conv1d(WIDTH, 2 * WIDTH, 1), nn.Conv1d(WIDTH, WIDTH, 1)
        self.depthwise = nn.Conv1d(WIDTH, WIDTH, 5, padding=2, groups=WIDTH)
        self.batch = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to frames."""
        x = x + 0.5 * self.before(x)
        x = x + self.attention(x)
        part = F.glu(self.wide(self.norm(x).transpose(1, 2)), 1)
        x = x + self.narrow(F.silu(self.batch(self.depthwise(part)))).transpose(1, 2)
        return self.last(x + 0.5 * self.after(x))


class Spectrum(nn.Module):
    """Logarithms of energies, normalised by mean and deviation, then an encoder: Whisper's and wav2vec's beginnings."""

    def __init__(self, block: nn.Module, is_global: bool) -> None:
        super().__init__()
        self.filters = nn.Parameter(torch.rand(33, 20))
        self.mean, self.deviation = nn.Parameter(torch.randn(20)), nn.Parameter(torch.rand(20) + 0.5)
        self.enter, self.next = nn.Conv1d(20, WIDTH, 3, padding=1), nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.block, self.is_global = block, is_global

    def forward(self, real: Tensor, imaginary: Tensor) -> Tensor:
        """Encode frames given by their transforms."""
        energy = (real.square() + imaginary.square()) @ self.filters
        logarithms = torch.log10(energy.clamp(min=1e-10))
        if self.is_global:
            logarithms = (torch.maximum(logarithms, logarithms.max() - 8.0) + 4.0) / 4.0
        else:
            logarithms = (logarithms - self.mean) / self.deviation
        x = F.gelu(self.next(F.gelu(self.enter(logarithms.transpose(1, 2)))))
        return self.block(x.transpose(1, 2))


class Recurrent(nn.Module):
    """A recurrent cell, unrolled: its two products, gates, and the sum that is kept."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, count = kind, {"lstm": 4, "gru": 3, "rnn": 1}[kind]
        self.enter, self.again = nn.Linear(WIDTH, count * WIDTH), nn.Linear(WIDTH, count * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Run over rows; gives the last state."""
        state = kept = torch.zeros(1, WIDTH)
        for step in range(4):
            fresh, old = self.enter(x[:, step]), self.again(state)
            if self.kind == "lstm":
                enter, forget, value, leave = (fresh + old).chunk(4, -1)
                kept = torch.sigmoid(forget) * kept + torch.sigmoid(enter) * torch.tanh(value)
                state = torch.sigmoid(leave) * torch.tanh(kept)
            elif self.kind == "gru":
                (reset, update, value), (reset_, update_, value_) = fresh.chunk(3, -1), old.chunk(3, -1)
                gate = torch.sigmoid(update + update_)
                value = torch.tanh(value + torch.sigmoid(reset + reset_) * value_)
                state = (1 - gate) * value + gate * state
            else:
                state = torch.tanh(fresh + old)
        return state


class Scan(nn.Module):
    """RWKV's and Mamba's kind: mixing with the row before, decays that are exponentials of weights, gates."""

    def __init__(self) -> None:
        super().__init__()
        self.share, self.decay = nn.Parameter(torch.rand(WIDTH)), nn.Parameter(torch.randn(WIDTH))
        self.key, self.value, self.gate, self.output = (nn.Linear(WIDTH, WIDTH, False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Apply to rows."""
        before = F.pad(x, (0, 0, 1, -1))
        mixed = x * self.share + before * (1 - self.share)
        key, value, state, found = self.key(mixed), self.value(mixed), torch.zeros(1, WIDTH), []
        for step in range(4):
            state = state * torch.exp(-torch.exp(self.decay)) + key[:, step] * value[:, step]
            found.append(state)
        return self.output(torch.sigmoid(self.gate(mixed[:, :4])) * torch.stack(found, 1))


class Recommender(nn.Module):
    """Deep & cross network with factorisation: products of features with themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.cross = nn.Embedding(WORDS, 8), nn.ModuleList([nn.Linear(104, 104) for _ in range(2)])
        self.deep, self.last = nn.Sequential(nn.Linear(104, 32), nn.ReLU()), nn.Linear(137, 1)
        self.mean, self.deviation = nn.Parameter(torch.randn(8)), nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, tokens: Tensor, numbers: Tensor) -> Tensor:
        """Score."""
        rows = self.table(tokens)
        factors = 0.5 * (rows.sum(1).square() - rows.square().sum(1)).sum(-1, keepdim=True)
        first = x = torch.cat([rows.flatten(1), (numbers - self.mean) / self.deviation], 1)
        for layer in self.cross:
            x = first * layer(x) + x
        return torch.sigmoid(self.last(torch.cat([x, self.deep(first), factors], 1)))


class Graph(nn.Module):
    """Graph convolution with a normalised adjacency, and pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Score a graph."""
        degree = edges.sum(-1, keepdim=True).clamp(min=1).pow(-0.5)
        normal = degree * edges * degree.transpose(-1, -2)
        x = F.relu(normal @ self.first(x))
        return (normal @ self.second(x)).mean(1)


class Denoiser(nn.Module):
    """A diffusion transformer's block: normalisation modulated by a condition, sines of the time."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.modulation = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 6 * WIDTH)
        self.norm, self.attention, self.feed = nn.LayerNorm(WIDTH, elementwise_affine=False), Attention(), Plain()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Predict the noise."""
        angles = time[:, None] * torch.exp(torch.arange(WIDTH // 2) * -(math.log(10000) / (WIDTH // 2)))
        condition = F.silu(self.time(torch.cat([angles.cos(), angles.sin()], -1)))
        shift, scale, gate, shift2, scale2, gate2 = self.modulation(condition)[:, None].chunk(6, -1)
        x = x + gate * self.attention(self.norm(x) * (1 + scale) + shift)
        return x + gate2 * self.feed(self.norm(x) * (1 + scale2) + shift2)


def _blocks(attention: Callable[[], nn.Module], feed: Callable[[], nn.Module], order: str = "pre") -> nn.Module:
    return nn.Sequential(*(Block(attention(), feed(), layer_norm, order) for _ in range(2)))


def _llama(
    keys: int, style: str = "rotary causal", gate: Callable[[Tensor], Tensor] = F.silu, shifted: bool = False
) -> nn.Module:
    def norm() -> nn.Module:
        return RootMeanSquare(WIDTH, shifted)

    def block() -> nn.Module:
        return Block(Attention(keys=keys, bias=False, style=style), Gated(gate), norm)

    return Language(block, norm(), has_places=False, scale=math.sqrt(WIDTH) if shifted else 1)


def _language(style: str, feed: Callable[[], nn.Module], order: str = "pre") -> nn.Module:
    return Language(lambda: Block(Attention(style=style), feed(), layer_norm, order), layer_norm())


def _rows() -> tuple[Tensor, ...]:
    return (torch.randn(1, ROWS, WIDTH),)


def _tokens() -> tuple[Tensor, ...]:
    return (torch.arange(ROWS)[None] % WORDS,)


def _frames() -> tuple[Tensor, ...]:
    return torch.randn(1, ROWS, 33), torch.randn(1, ROWS, 33)


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "gpt2_tanh": (lambda: _language("packed causal", lambda: Plain(tanh_gelu)), _tokens),
    "gpt_neox": (lambda: _language("packed rotary causal", Plain, "parallel"), _tokens),
    "opt": (lambda: _language("before causal", lambda: Plain(F.relu)), _tokens),
    "llama": (lambda: _llama(HEADS), _tokens),
    "mistral": (lambda: _llama(2), _tokens),
    "gemma": (lambda: _llama(1, "rotary causal capped", lambda x: F.gelu(x, approximate="tanh"), True), _tokens),
    "qwen": (lambda: _language("rotary causal", Gated), _tokens),
    "bert_post": (lambda: _language("", Plain, "post"), _tokens),
    "roberta_tanh": (lambda: _language("", lambda: Plain(tanh_gelu), "post"), _tokens),
    "t5": (lambda: _llama(HEADS, "unscaled relative", F.relu), _tokens),
    "primer": (lambda: _language("causal", lambda: Plain(squared_relu)), _tokens),
    "vit": (lambda: _blocks(lambda: Attention(style="packed"), Plain), _rows),
    "clip_text": (lambda: _language("before causal", lambda: Plain(quick_gelu)), _tokens),
    "cait": (lambda: _blocks(lambda: Attention(style="before packed"), Plain, "scaled"), _rows),
    "swin": (lambda: _blocks(lambda: Attention(style="before packed relative"), Plain), _rows),
    "swin_v2": (lambda: _blocks(lambda: Attention(style="cosine packed relative"), Plain, "post"), _rows),
    "linear_attention": (lambda: _blocks(Linear, Plain), _rows),
    "mlp_mixer": (lambda: nn.Sequential(Mixer(), Mixer()), _rows),
    "conformer": (lambda: nn.Sequential(Conformer(), Conformer()), _rows),
    "whisper": (lambda: Spectrum(_blocks(lambda: Attention(style="both"), Plain), True), _frames),
    "wav2vec": (lambda: Spectrum(_blocks(Attention, Plain, "post"), False), _frames),
    "lstm": (lambda: Recurrent("lstm"), _rows),
    "gru": (lambda: Recurrent("gru"), _rows),
    "rnn": (lambda: Recurrent("rnn"), _rows),
    "rwkv": (lambda: nn.Sequential(layer_norm(), Scan()), _rows),
    "deep_cross": (Recommender, lambda: (*_tokens(), torch.randn(1, 8))),
    "graph_convolution": (Graph, lambda: (*_rows(), torch.rand(1, ROWS, ROWS))),
    "diffusion_transformer": (Denoiser, lambda: (*_rows(), torch.tensor([17.0]))),
}
