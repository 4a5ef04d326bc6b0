"""Decoders in plain torch, with made-up weights: what compiled ones are compared with, and exported for other engines.

Parameters have the names that checkpoints have, so that weights of one fit the other.
"""

# mypy: disable-error-code="no-untyped-call, no-any-return"
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tvm_ext.generation.config import DecoderConfig

Cache = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, ``[1, kv_heads, positions, head_size]``."""

SIZES = {
    "gpt2-124m": DecoderConfig("gpt2", 12, 768, 12, 12, 64, 3072, 50257, 1024),
    "qwen-0.5b": DecoderConfig("llama", 24, 896, 14, 2, 64, 4864, 151936, 32768, 1e-6, 1e6),
    "llama-1.1b": DecoderConfig("llama", 22, 2048, 32, 4, 64, 5632, 32000, 2048, tied=False),
    "qwen-1.5b": DecoderConfig("llama", 28, 1536, 12, 2, 128, 8960, 151936, 32768, 1e-6, 1e6),
    "gpt2-tiny": DecoderConfig("gpt2", 2, 48, 3, 3, 16, 192, 211, 160),
    "llama-tiny": DecoderConfig("llama", 2, 64, 4, 2, 16, 96, 211, 512),
}
"""Extents of known decoders, and of two that are small enough for tests."""


def made_up(config: DecoderConfig, seed: int = 0, biased: bool = False) -> Transformer:
    """Make a decoder with random weights, scaled so that tokens stay about as large from block to block.

    Parameters
    ----------
    config : DecoderConfig
    seed : int
        The same seed gives the same weights.
    biased : bool
        Give queries, keys and values biases, as Qwen2 has them.

    Returns
    -------
    Transformer
        In float32, for inference.
    """
    generator = torch.Generator().manual_seed(seed)
    model = (GPT2 if config.family == "gpt2" else Llama)(config, biased)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("bias"):
                value.normal_(0, 0.1, generator=generator)
            elif value.ndim == 1:
                value.normal_(1, 0.1, generator=generator)
            elif "embed" in name or "wte" in name or "wpe" in name:
                value.normal_(0, 0.02, generator=generator)
            else:
                rows = value.shape[0] if config.family == "gpt2" else value.shape[1]
                value.normal_(0, rows**-0.5, generator=generator)
    return model.eval()


class Transformer(nn.Module):
    """A decoder: token ids and a cache to logits and a longer cache."""

    config: DecoderConfig

    def forward(self, ids: Tensor, past: Cache | None = None) -> tuple[Tensor, Cache]:
        """Compute logits of all tokens.

        Parameters
        ----------
        ids : torch.Tensor
            ``[1, tokens]``.
        past : list of pairs of torch.Tensor, optional
            What the tokens before left.

        Returns
        -------
        tuple
            Logits ``[1, tokens, vocabulary]``, and the cache with these tokens.
        """
        raise NotImplementedError

    @torch.no_grad()
    def generate(self, ids: list[int], count: int) -> tuple[list[int], list[float]]:
        """Generate tokens greedily.

        Returns
        -------
        tuple
            The new tokens, and by how much each one's logit was above the second.
        """
        given, past = torch.tensor([ids]), None
        tokens, margins = [], []
        for _ in range(count):
            logits, past = self(given, past)
            best = logits[0, -1].topk(2)
            tokens.append(int(best.indices[0]))
            margins.append(float(best.values[0] - best.values[1]))
            given = best.indices[:1][None]
        return tokens, margins


def attention(
    query: Tensor, key: Tensor, value: Tensor, past: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Attend over a cache and the new tokens; gives the result ``[1, tokens, heads * head_size]``, keys and values."""
    if past is not None:
        key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
    tokens, total, shared = query.shape[2], key.shape[2], query.shape[1] // key.shape[1]
    # Keys of all heads by expansion: exporters make of it what they make of checkpoints' own code.
    keys, values = (
        part[:, :, None].expand(-1, -1, shared, -1, -1).reshape(1, query.shape[1], total, part.shape[3])
        for part in (key, value)
    )
    scores = query @ keys.transpose(2, 3) * query.shape[3] ** -0.5
    places = torch.arange(total)
    hidden = places[None, :] > places[total - tokens :, None]
    scores = scores.masked_fill(hidden, float("-inf"))
    result = torch.softmax(scores, -1) @ values
    return result.transpose(1, 2).reshape(1, tokens, -1), key, value


def heads_of(x: Tensor, heads: int) -> Tensor:
    """``[1, tokens, heads * size]`` to ``[1, heads, tokens, size]``."""
    return x.reshape(1, x.shape[1], heads, -1).transpose(1, 2)


class RMSNorm(nn.Module):
    """Root-mean-square norm."""

    def __init__(self, hidden: int, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(hidden)), epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Norm the last axis."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon) * self.weight


class LlamaAttention(nn.Module):
    """Attention with rotary positions and shared heads of keys and values."""

    def __init__(self, config: DecoderConfig, biased: bool) -> None:
        super().__init__()
        self.config = config
        size = config.head_size
        self.q_proj = nn.Linear(config.hidden, config.heads * size, biased)
        self.k_proj = nn.Linear(config.hidden, config.kv_heads * size, biased)
        self.v_proj = nn.Linear(config.hidden, config.kv_heads * size, biased)
        self.o_proj = nn.Linear(config.heads * size, config.hidden, False)
        if config.head_norms:
            self.q_norm, self.k_norm = RMSNorm(size, config.epsilon), RMSNorm(size, config.epsilon)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Attend; gives the result and the longer cache."""
        config = self.config
        begin = 0 if past is None else past[0].shape[2]
        powers = torch.arange(0, config.head_size, 2).float() / config.head_size
        rates = config.rotary_base**-powers if config.rates is None else torch.tensor(config.rates)
        angles = (torch.arange(x.shape[1]) + begin).float()[:, None] * rates[None, :]
        cosine, sine = angles.cos() * config.rotary_gain, angles.sin() * config.rotary_gain

        def turned(part: Tensor) -> Tensor:
            first, second = part.chunk(2, -1)
            return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)

        query, key = heads_of(self.q_proj(x), config.heads), heads_of(self.k_proj(x), config.kv_heads)
        if config.head_norms:
            query, key = self.q_norm(query), self.k_norm(key)
        result, key, value = attention(turned(query), turned(key), heads_of(self.v_proj(x), config.kv_heads), past)
        return self.o_proj(result), (key, value)


class LlamaMLP(nn.Module):
    """SwiGLU, or GELU in its place."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.gate_proj = nn.Linear(config.hidden, config.inner, False)
        self.up_proj = nn.Linear(config.hidden, config.inner, False)
        self.down_proj = nn.Linear(config.inner, config.hidden, False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network."""
        gate = self.gate_proj(x)
        gate = functional.silu(gate) if self.activation == "silu" else functional.gelu(gate, approximate="tanh")
        return self.down_proj(gate * self.up_proj(x))


class LlamaBlock(nn.Module):
    """A block of Llama."""

    def __init__(self, config: DecoderConfig, biased: bool) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden, config.epsilon)
        self.self_attn = LlamaAttention(config, biased)
        self.post_attention_layernorm = RMSNorm(config.hidden, config.epsilon)
        self.mlp = LlamaMLP(config)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Apply the block."""
        result, cache = self.self_attn(self.input_layernorm(x), past)
        x = x + result
        return x + self.mlp(self.post_attention_layernorm(x)), cache


class Llama(Transformer):
    """A decoder of the kind of Llama and Qwen2."""

    def __init__(self, config: DecoderConfig, biased: bool = False) -> None:
        super().__init__()
        self.config = config
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.model.layers = nn.ModuleList(LlamaBlock(config, biased) for _ in range(config.layers))
        self.model.norm = RMSNorm(config.hidden, config.epsilon)
        if not config.tied:
            self.lm_head = nn.Linear(config.hidden, config.vocabulary, False)

    def forward(self, ids: Tensor, past: Cache | None = None) -> tuple[Tensor, Cache]:
        """Compute logits of all tokens."""
        x, caches = self.model.embed_tokens(ids), []
        for number, block in enumerate(self.model.layers):
            x, cache = block(x, None if past is None else past[number])
            caches.append(cache)
        head = self.model.embed_tokens.weight if self.config.tied else self.lm_head.weight
        return functional.linear(self.model.norm(x), head), caches


class Conv1D(nn.Module):
    """A linear layer whose weight is stored ``[inputs, outputs]``."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(inputs, outputs)), nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        return x @ self.weight + self.bias


class GPT2Block(nn.Module):
    """A block of GPT-2."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.ln_1 = nn.LayerNorm(config.hidden, config.epsilon)
        self.attn = nn.Module()
        self.attn.c_attn = Conv1D(config.hidden, 3 * config.hidden)
        self.attn.c_proj = Conv1D(config.hidden, config.hidden)
        self.ln_2 = nn.LayerNorm(config.hidden, config.epsilon)
        self.mlp = nn.Module()
        self.mlp.c_fc, self.mlp.c_proj = Conv1D(config.hidden, config.inner), Conv1D(config.inner, config.hidden)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Apply the block."""
        query, key, value = (heads_of(part, self.config.heads) for part in self.attn.c_attn(self.ln_1(x)).chunk(3, -1))
        result, key, value = attention(query, key, value, past)
        x = x + self.attn.c_proj(result)
        inner = functional.gelu(self.mlp.c_fc(self.ln_2(x)), approximate="tanh")
        return x + self.mlp.c_proj(inner), (key, value)


class GPT2(Transformer):
    """A decoder of the kind of GPT-2; all its layers have biases."""

    def __init__(self, config: DecoderConfig, _biased: bool = True) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocabulary, config.hidden)
        self.wpe = nn.Embedding(config.positions, config.hidden)
        self.h = nn.ModuleList(GPT2Block(config) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.hidden, config.epsilon)

    def forward(self, ids: Tensor, past: Cache | None = None) -> tuple[Tensor, Cache]:
        """Compute logits of all tokens."""
        begin = 0 if past is None else past[0][0].shape[2]
        x, caches = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]) + begin), []
        for number, block in enumerate(self.h):
            x, cache = block(x, None if past is None else past[number])
            caches.append(cache)
        return functional.linear(self.ln_f(x), self.wte.weight), caches
