"""What a decoder-only transformer computes, as plain data: its extents, its kind, and the names of its weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from tvm_ext.errors import ModelError

FAMILIES = ("llama", "gpt2")
"""Kinds of blocks: rotary positions, root-mean-square norms and gates; learnt positions, layer norms and GELU."""

ACTIVATIONS = ("silu", "gelu")


@dataclass(frozen=True)
class DecoderConfig:
    """Extents and kind of a decoder.

    Attributes
    ----------
    family : str
        ``"llama"`` (Llama, Mistral, Qwen, Gemma, Phi-3, Granite) or ``"gpt2"``.
    layers, hidden, heads, kv_heads, head_size, inner, vocabulary : int
        Blocks, elements of a token, heads of queries, heads of keys and values, elements of a head, of the hidden layer
        of a feed-forward network, and tokens that there are.
    positions : int
        Positions that the model was made for.
    epsilon : float
        Of the norms.
    rotary_base : float
        Of the angles of positions (Llama).
    tied : bool
        The weights of the last product are the embedding.
    activation : str
        Of the gates (Llama): ``"silu"``, or ``"gelu"`` by its tangent.
    head_norms : bool
        Each head of queries and keys is normed before it is turned (Qwen3).
    rates : sequence of float, optional
        Angle of each pair of elements for a position, ``head_size / 2`` of them, where it is no power of the base.
    rotary_gain : float
        Factor of cosines and sines (YaRN).
    """

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    inner: int
    vocabulary: int
    positions: int = 2048
    epsilon: float = 1e-5
    rotary_base: float = 10000.0
    tied: bool = True
    activation: str = "silu"
    head_norms: bool = False
    rates: Sequence[float] | None = None
    rotary_gain: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what fits no decoder.

        Raises
        ------
        ModelError
        """
        if self.family not in FAMILIES:
            raise ModelError(f"decoder: family {self.family!r} is not known; candidates are {', '.join(FAMILIES)}")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and not (isinstance(value, int) and value > 0):
                raise ModelError(f"decoder: field {field.name} is {value!r}, and has to be a positive number")
            if field.type == "float" and not (isinstance(value, float | int) and math.isfinite(value) and value > 0):
                raise ModelError(f"decoder: field {field.name} is {value!r}, and has to be a positive number")
        if self.heads % self.kv_heads:
            raise ModelError(
                f"decoder: {self.heads} heads cannot share {self.kv_heads} heads of keys and values; the first number "
                "has to be a multiple of the second"
            )
        if self.family == "llama" and self.head_size % 2:
            raise ModelError(f"decoder: heads of {self.head_size} elements have no halves to turn; give an even size")
        if self.activation not in ACTIVATIONS:
            raise ModelError(
                f"decoder: activation {self.activation!r} is not known; candidates are {', '.join(ACTIVATIONS)}"
            )
        if self.rates is not None and not all(map(math.isfinite, self.rates)):
            raise ModelError(f"decoder: a rate of angles is no finite number ({list(self.rates)!r:.80})")
        if self.rates is not None and len(self.rates) != self.head_size // 2:
            raise ModelError(
                f"decoder: {len(self.rates)} rates of angles where heads of {self.head_size} elements have "
                f"{self.head_size // 2} pairs"
            )

    @property
    def rotary(self) -> bool:
        """Whether positions are angles of queries and keys."""
        return self.family == "llama"

    def angles(self, context: int) -> np.ndarray:
        """Give the angles of ``context`` positions, float32 ``[context, head_size / 2]``."""
        powers = np.arange(0, self.head_size, 2, dtype="float32") / np.float32(self.head_size)
        plain = np.float32(self.rotary_base) ** -powers
        rates = plain if self.rates is None else np.asarray(self.rates, "float32")
        return np.asarray(np.arange(context, dtype="float32")[:, None] * rates)

    def to_json(self) -> dict[str, Any]:
        """Give the fields as they are written to a file."""
        return asdict(self)

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...], bool]]:
        """List the weights: name, shape, and whether a model may come without it (a bias)."""
        yield from (_gpt2_shapes if self.family == "gpt2" else _llama_shapes)(self)

    @property
    def parameters(self) -> int:
        """Count the weights, without biases that are optional."""
        return sum(int(np.prod(shape)) for _, shape, optional in self.shapes() if not optional)


def _llama_shapes(config: DecoderConfig) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    hidden, queries, keys = config.hidden, config.heads * config.head_size, config.kv_heads * config.head_size
    yield "model.embed_tokens.weight", (config.vocabulary, hidden), False
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (hidden,), False
        for name, columns in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            yield f"{prefix}self_attn.{name}.weight", (columns, hidden), False
            yield f"{prefix}self_attn.{name}.bias", (columns,), True
        for name in ("q_norm", "k_norm") if config.head_norms else ():
            yield f"{prefix}self_attn.{name}.weight", (config.head_size,), False
        yield prefix + "self_attn.o_proj.weight", (hidden, queries), False
        yield prefix + "post_attention_layernorm.weight", (hidden,), False
        yield prefix + "mlp.gate_proj.weight", (config.inner, hidden), False
        yield prefix + "mlp.up_proj.weight", (config.inner, hidden), False
        yield prefix + "mlp.down_proj.weight", (hidden, config.inner), False
    yield "model.norm.weight", (hidden,), False
    if not config.tied:
        yield "lm_head.weight", (config.vocabulary, hidden), False


def _gpt2_shapes(config: DecoderConfig) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    hidden = config.hidden
    yield "wte.weight", (config.vocabulary, hidden), False
    yield "wpe.weight", (config.positions, hidden), False
    for layer in range(config.layers):
        prefix = f"h.{layer}."
        for norm in ("ln_1", "ln_2"):
            yield f"{prefix}{norm}.weight", (hidden,), False
            yield f"{prefix}{norm}.bias", (hidden,), False
        for name, rows, columns in (
            ("attn.c_attn", hidden, 3 * hidden), ("attn.c_proj", hidden, hidden),
            ("mlp.c_fc", hidden, config.inner), ("mlp.c_proj", config.inner, hidden),
        ):  # fmt: skip
            yield f"{prefix}{name}.weight", (rows, columns), False
            yield f"{prefix}{name}.bias", (columns,), False
    yield "ln_f.weight", (hidden,), False
    yield "ln_f.bias", (hidden,), False
