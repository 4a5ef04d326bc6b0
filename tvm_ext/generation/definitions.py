"""Decoders in plain torch, with made-up weights: what compiled ones are compared with, and exported for other engines.

Parameters have the names of :meth:`DecoderConfig.shapes`, so that weights of a decoder fit the module.
"""

# mypy: disable-error-code="no-untyped-call, no-any-return"
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tvm_ext.generation.config import DecoderConfig
from tvm_ext.generation.decoder import bias_kind

Cache = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, ``[1, kv_heads, positions, head_size]``."""

_GPT2: dict[str, Any] = {"norm": "layer", "positional": "learnt", "gated": False, "activation": "gelu"}

SIZES = {
    "gpt2-124m": DecoderConfig(12, 768, 12, 12, 64, 3072, 50257, 1024, **_GPT2),
    "qwen-0.5b": DecoderConfig(24, 896, 14, 2, 64, 4864, 151936, 32768, 1e-6, 1e6),
    "llama-1.1b": DecoderConfig(22, 2048, 32, 4, 64, 5632, 32000, 2048, tied=False),
    "qwen-1.5b": DecoderConfig(28, 1536, 12, 2, 128, 8960, 151936, 32768, 1e-6, 1e6),
    "gpt2-tiny": DecoderConfig(2, 48, 3, 3, 16, 192, 211, 160, **_GPT2),
    "llama-tiny": DecoderConfig(2, 64, 4, 2, 16, 96, 211, 512),
}
"""Extents of known decoders, and of two that are small enough for tests."""

_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "exact_gelu": functional.gelu,
    "relu": functional.relu,
    "squared_relu": lambda x: functional.relu(x).square(),
}


def made_up(config: DecoderConfig, seed: int = 0, biases: Iterable[str] | None = None) -> Transformer:
    """Make a decoder with random weights, scaled so that tokens stay about as large from block to block.

    Parameters
    ----------
    config : DecoderConfig
    seed : int
        The same seed gives the same weights.
    biases : iterable of str, optional
        Products that have biases, of ``qkv`` (as Qwen2), ``output``, ``up``, ``down`` and ``logits``; all but the last
        by default where norms are centred (as GPT-2), none elsewhere.

    Returns
    -------
    Transformer
        In float32, for inference.
    """
    generator = torch.Generator().manual_seed(seed)
    if biases is None:
        biases = ("qkv", "output", "up", "down") if config.centred else ()
    model = Transformer(config, biases)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("bias"):
                value.normal_(0, 0.1, generator=generator)
            elif value.ndim == 1:
                value.normal_(1, 0.1, generator=generator)
            elif "embed" in name:
                value.normal_(0, 0.02, generator=generator)
            else:
                value.normal_(0, value.shape[-1] ** -0.5, generator=generator)
    return model.eval()


class Transformer(nn.Module):
    """A decoder: token ids and a cache to logits and a longer cache.

    Parameters
    ----------
    config : DecoderConfig
    biases : iterable of str
        Products that have biases.
    """

    def __init__(self, config: DecoderConfig, biases: Iterable[str] = ()) -> None:
        super().__init__()
        self.config = config
        for name, shape, optional in config.shapes():
            if not optional or bias_kind(name) in biases:
                self._register(name, nn.Parameter(torch.empty(shape)))

    def _register(self, name: str, value: nn.Parameter) -> None:
        *path, end = name.split(".")
        module: nn.Module = self
        for part in path:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        module.register_parameter(end, value)

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
        config = self.config
        begin = 0 if past is None else past[0][0].shape[2]
        table = self.get_parameter("model.embed_tokens.weight")
        x, caches = functional.embedding(ids, table), []
        if config.positional == "learnt":
            places = torch.arange(ids.shape[1]) + begin
            x = x + functional.embedding(places, self.get_parameter("model.embed_positions.weight"))
        if config.embedding_norm:
            x = self._norm(x, "model.embed_norm")
        for number in range(config.layers):
            x, cache = self._block(x, number, None if past is None else past[number])
            caches.append(cache)
        x = self._norm(x, "model.norm")
        logits = functional.linear(x, table) if config.tied else functional.linear(x, self._given("lm_head.weight"))
        bias = self._found("lm_head.bias")
        logits = logits if bias is None else logits + bias
        return _capped(logits, config.logit_cap), caches

    def _given(self, name: str) -> Tensor:
        return self.get_parameter(name)

    def _found(self, name: str) -> Tensor | None:
        module, _, end = name.rpartition(".")
        try:
            return self.get_submodule(module)._parameters.get(end)
        except AttributeError:
            return None

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return functional.linear(x, self._given(f"{name}.weight"), self._found(f"{name}.bias"))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return self._normed(x) * self._given(f"{name}.weight") + (
            self._given(f"{name}.bias") if self.config.centred else 0
        )

    def _normed(self, x: Tensor) -> Tensor:
        if self.config.centred:
            x = x - x.mean(-1, keepdim=True)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config.epsilon)

    def _block(
        self, x: Tensor, number: int, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        config, prefix = self.config, f"model.layers.{number}."
        before, after = config.norms in ("before", "both"), config.norms in ("after", "both")
        given = self._norm(x, prefix + "input_layernorm") if before else x
        result, cache = self._attention(given, number, past)
        result = self._norm(result, prefix + "self_attn.norm") if after else result
        if config.residual == "serial":
            x = given = x + result
            result = torch.zeros_like(x)
        else:
            given = given if config.residual == "shared" else x
        if before and config.residual != "shared":
            given = self._norm(given, prefix + "post_attention_layernorm")
        inner = (self._mixture if config.mixed(number) else self._network)(given, prefix + "mlp.")
        return x + result + (self._norm(inner, prefix + "mlp.norm") if after else inner), cache

    def _network(self, x: Tensor, prefix: str) -> Tensor:
        activation = _ACTIVATIONS[self.config.activation]
        inner = self._linear(x, prefix + "up_proj")
        if self.config.gated:
            return self._linear(activation(self._linear(x, prefix + "gate_proj")) * inner, prefix + "down_proj")
        return self._linear(activation(inner), prefix + "down_proj")

    def _mixture(self, x: Tensor, prefix: str) -> Tensor:
        config, activation = self.config, _ACTIVATIONS[self.config.activation]
        shares = torch.softmax(self._linear(x, prefix + "router"), -1)
        best = shares.topk(config.chosen or 0, -1)
        gates = torch.zeros_like(shares).scatter(-1, best.indices, best.values)
        gates = gates / best.values.sum(-1, keepdim=True) if config.normalised else gates
        ups, downs = self._given(prefix + "experts.gate_up_proj"), self._given(prefix + "experts.down_proj")
        result = torch.zeros_like(x)
        for expert in range(config.experts or 0):
            gate, up = functional.linear(x, ups[expert]).chunk(2, -1)
            result = result + gates[..., expert, None] * functional.linear(activation(gate) * up, downs[expert])
        if config.shared_inner is not None:
            weight = torch.sigmoid(self._linear(x, prefix + "shared_gate"))
            result = result + weight * self._network(x, prefix + "shared.")
        return result

    def _head_norm(self, x: Tensor, heads: int, name: str) -> Tensor:
        config = self.config
        if config.head_norms == "none":
            return x
        parts = x.reshape(1, x.shape[1], heads, -1) if config.head_norms == "heads" else x
        normed = self._normed(parts).reshape(x.shape) * self._given(f"{name}.weight")
        return normed + self._given(f"{name}.bias") if config.centred else normed

    def _attention(
        self, x: Tensor, number: int, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        config, prefix = self.config, f"model.layers.{number}.self_attn."
        begin = 0 if past is None else past[0].shape[2]
        query = self._head_norm(self._linear(x, prefix + "q_proj"), config.heads, prefix + "q_norm")
        key = self._head_norm(self._linear(x, prefix + "k_proj"), config.kv_heads, prefix + "k_norm")
        value = heads_of(self._linear(x, prefix + "v_proj"), config.kv_heads)
        query, key = heads_of(query, config.heads), heads_of(key, config.kv_heads)
        turns = config.turns(number)
        if turns is not None:
            given = config.rates if turns == "angles" else config.window_rates
            powers = torch.arange(0, config.head_size, 2).float() / config.head_size
            rates = config.rotary_base**-powers if given is None else torch.tensor(given)
            angles = (torch.arange(x.shape[1]) + begin).float()[:, None] * rates[None, :]
            gain = config.rotary_gain if turns == "angles" else 1.0
            query, key = (turned(part, angles.cos() * gain, angles.sin() * gain) for part in (query, key))
        if past is not None:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        result = attention(query, key, value, config, config.window(number))
        return self._linear(result, prefix + "o_proj"), (key, value)

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


def attention(query: Tensor, key: Tensor, value: Tensor, config: DecoderConfig, window: int) -> Tensor:
    """Attend: queries of the last tokens, keys and values of all; gives ``[1, tokens, heads * head_size]``."""
    tokens, total, shared = query.shape[2], key.shape[2], query.shape[1] // key.shape[1]
    # Keys of all heads by expansion: exporters make of it what they make of checkpoints' own code.
    keys, values = (
        part[:, :, None].expand(-1, -1, shared, -1, -1).reshape(1, query.shape[1], total, part.shape[3])
        for part in (key, value)
    )
    scores = _capped(query @ keys.transpose(2, 3) * query.shape[3] ** -0.5, config.score_cap)
    places = torch.arange(total)
    if config.slopes is not None:
        scores = scores + torch.tensor(config.added_to_scores(total))[:, None]
    rows = places[total - tokens :, None]
    hidden = places[None, :] > rows
    if window:
        hidden = hidden | (places[None, :] <= rows - window)
    scores = scores.masked_fill(hidden, float("-inf"))
    result = torch.softmax(scores, -1) @ values
    return result.transpose(1, 2).reshape(1, tokens, -1)


def turned(part: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn heads by the angles of their positions."""
    first, second = part.chunk(2, -1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


def _capped(x: Tensor, cap: float | None) -> Tensor:
    return x if cap is None else torch.tanh(x / cap) * cap


def heads_of(x: Tensor, heads: int) -> Tensor:
    """``[1, tokens, heads * size]`` to ``[1, heads, tokens, size]``."""
    return x.reshape(1, x.shape[1], heads, -1).transpose(1, 2)
