"""Networks of rows: language models, encoders, speech, recurrent ones, recommenders, written as their papers do.

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
