"""What a decoder-only transformer computes, as plain data: its extents, its structure, and the names of its weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from tvm_ext.errors import ModelError
from tvm_ext.schedules.compute.weight_words import rounded_to_bfloat16

CHOICES = {
    "activation": ("silu", "gelu", "exact_gelu", "relu", "squared_relu"),
    "norm": ("rms", "layer"),
    "norms": ("before", "after", "both"),
    "residual": ("serial", "parallel", "shared"),
    "positional": ("rotary", "learnt", "alibi"),
    "head_norms": ("none", "heads", "whole"),
}
"""What fields that are a choice may be; :class:`DecoderConfig` says what they mean."""


@dataclass(frozen=True)
class DecoderConfig:
    """Extents and structure of a decoder.

    Attributes
    ----------
    layers, hidden, heads, kv_heads, head_size, inner, vocabulary : int
        Blocks, elements of a token, heads of queries, heads of keys and values, elements of a head, of the hidden layer
        of a feed-forward network, and tokens that there are.
    positions : int
        Positions that the model was made for.
    epsilon : float
        Of the norms.
    rotary_base : float
        Of the angles of positions.
    tied : bool
        The weights of the last product are the embedding.
    activation : str
        ``"silu"``, ``"gelu"`` by its tangent, ``"exact_gelu"``, ``"relu"`` or its square.
    gated : bool
        The activation is that of a gate, which is multiplied by a second product.
    norm : str
        ``"rms"``: by the root mean square; ``"layer"``: by mean and variance, with a bias.
    norms : str
        A block's norms stand ``"before"`` attention and feed-forward network, ``"after"`` them, or ``"both"``.
    residual : str
        ``"serial"``: the feed-forward network takes what attention was added to; ``"parallel"``: what attention takes,
        with a norm of its own; ``"shared"``: with the same norm.
    positional : str
        Positions are angles (``"rotary"``), ``"learnt"`` vectors, or added to scores (``"alibi"``).
    head_norms : str
        Queries and keys are normed before they are turned: ``"heads"`` one by one, or the ``"whole"`` of them.
    embedding_norm : bool
        What is embedded is normed.
    rates : sequence of float, optional
        Angle of each pair of elements for a position, ``head_size / 2`` of them, where it is no power of the base.
    rotary_gain : float
        Factor of cosines and sines (YaRN).
    window_rates : sequence of float, optional
        Rates of blocks with a window, where they are others; their factor is 1.
    turned : sequence of bool, optional
        Blocks whose queries and keys are turned; all by default.
    windows : sequence of int, optional
        Of each block: tokens that one attends to, itself included; 0 for all.
    slopes : sequence of float, optional
        Of each head: what is added to a score for a position (ALiBi).
    slope_gain : float
        Factor of that.
    slopes_rounded : bool
        Slopes and their products with positions are rounded to bfloat16 before (Falcon).
    experts, chosen, expert_inner : int, optional
        Feed-forward networks that a block has several of, how many of them a token goes to, and the elements of their
        hidden layers (mixture of experts).
    shared_inner : int, optional
        Elements of the hidden layer of one more, which all tokens go to, weighted by the sigmoid of a product.
    normalised : bool
        What experts are weighted by adds up to 1.
    plain : sequence of bool, optional
        Blocks that have one network of ``inner`` elements all the same.
    score_cap, logit_cap : float, optional
        Scores and logits are ``cap * tanh(x / cap)``.
    """

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
    gated: bool = True
    norm: str = "rms"
    norms: str = "before"
    residual: str = "serial"
    positional: str = "rotary"
    head_norms: str = "none"
    embedding_norm: bool = False
    rates: Sequence[float] | None = None
    rotary_gain: float = 1.0
    window_rates: Sequence[float] | None = None
    turned: Sequence[bool] | None = None
    windows: Sequence[int] | None = None
    slopes: Sequence[float] | None = None
    slope_gain: float = 1.0
    slopes_rounded: bool = False
    experts: int | None = None
    chosen: int | None = None
    expert_inner: int | None = None
    shared_inner: int | None = None
    normalised: bool = False
    plain: Sequence[bool] | None = None
    score_cap: float | None = None
    logit_cap: float | None = None

    def __post_init__(self) -> None:
        """Refuse what fits no decoder.

        Raises
        ------
        ModelError
        """
        for field in fields(self):
            value = getattr(self, field.name)
            kind, _, optional = str(field.type).partition(" | ")
            wanted = {"int": int, "float": float | int}.get(kind)
            if wanted is not None and not (optional and value is None):
                if not (isinstance(value, wanted) and math.isfinite(value) and value > 0):
                    raise ModelError(f"decoder: field {field.name} is {value!r}, and has to be a positive number")
            if value not in CHOICES.get(field.name, (value,)):
                raise ModelError(
                    f"decoder: {field.name} {value!r} is not known; candidates are {', '.join(CHOICES[field.name])}"
                )
        if self.heads % self.kv_heads:
            raise ModelError(
                f"decoder: {self.heads} heads cannot share {self.kv_heads} heads of keys and values; the first number "
                "has to be a multiple of the second"
            )
        if self.rotary and self.head_size % 2:
            raise ModelError(f"decoder: heads of {self.head_size} elements have no halves to turn; give an even size")
        pairs, blocks = (self.head_size // 2, "pairs"), (self.layers, "blocks")
        for name, (count, of) in {
            "rates": pairs, "window_rates": pairs, "turned": blocks, "windows": blocks, "plain": blocks,
            "slopes": (self.heads, "heads"),
        }.items():  # fmt: skip
            numbers = getattr(self, name)
            if numbers is not None and not all(map(math.isfinite, numbers)):
                raise ModelError(f"decoder: field {name} holds what is no finite number ({list(numbers)!r:.80})")
            if numbers is not None and len(numbers) != count:
                raise ModelError(f"decoder: field {name} has {len(numbers)} numbers where there are {count} {of}")
        if (self.slopes is not None) != (self.positional == "alibi"):
            raise ModelError("decoder: slopes belong to positional 'alibi', and to nothing else")
        if self.norms != "before" and self.residual != "serial":
            raise ModelError("decoder: norms after attention and feed-forward network need a serial residual")

        given = [part is not None for part in (self.experts, self.chosen, self.expert_inner)]
        if any(given) != all(given) or (self.chosen or 0) > (self.experts or 0):
            raise ModelError(
                f"decoder: {self.chosen} of {self.experts} experts of {self.expert_inner} elements are chosen; all "
                "three numbers were expected, the first no more than the second"
            )
        if self.experts is not None and not self.gated:
            raise ModelError("decoder: experts have gates; set gated")

    @property
    def rotary(self) -> bool:
        """Whether positions are angles of queries and keys."""
        return self.positional == "rotary"

    @property
    def centred(self) -> bool:
        """Whether norms subtract the mean, and have biases."""
        return self.norm == "layer"

    def window(self, layer: int) -> int:
        """Tokens that one attends to in a block, 0 for all."""
        return 0 if self.windows is None else int(self.windows[layer])

    def mixed(self, layer: int) -> bool:
        """Whether the feed-forward network of a block is a mixture of experts."""
        return self.experts is not None and (self.plain is None or not self.plain[layer])

    def turns(self, layer: int) -> str | None:
        """Name the angles that turn queries and keys in a block; None where they are not turned."""
        if not self.rotary or (self.turned is not None and not self.turned[layer]):
            return None
        return "window_angles" if self.window_rates is not None and self.window(layer) else "angles"

    def angles(self, context: int, name: str = "angles") -> np.ndarray:
        """Give the angles of ``context`` positions, float32 ``[context, head_size / 2]``."""
        given = self.rates if name == "angles" else self.window_rates
        powers = np.arange(0, self.head_size, 2, dtype="float32") / np.float32(self.head_size)
        plain = np.float32(self.rotary_base) ** -powers
        rates = plain if given is None else np.asarray(given, "float32")
        return np.asarray(np.arange(context, dtype="float32")[:, None] * rates)

    def added_to_scores(self, positions: int) -> np.ndarray:
        """Give what is added to scores (ALiBi), float32 ``[heads, positions]``."""

        def rounded(values: np.ndarray) -> np.ndarray:
            return rounded_to_bfloat16(values.view("uint32")).view("float32") if self.slopes_rounded else values

        assert self.slopes is not None
        added = rounded(np.asarray(self.slopes, "float32"))[:, None] * np.arange(positions, dtype="float32")
        return np.asarray(rounded(added) * np.float32(self.slope_gain))

    def to_json(self) -> dict[str, Any]:
        """Give the fields as they are written to a file."""
        return asdict(self)

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...], bool]]:
        """List the weights: name, shape, and whether a model may come without it (a bias)."""
        hidden = self.hidden
        yield "model.embed_tokens.weight", (self.vocabulary, hidden), False
        if self.positional == "learnt":
            yield "model.embed_positions.weight", (self.positions, hidden), False
        if self.embedding_norm:
            yield from self._norm("model.embed_norm")
        for layer in range(self.layers):
            yield from self._block(f"model.layers.{layer}.", self.mixed(layer))
        yield from self._norm("model.norm")
        if not self.tied:
            yield "lm_head.weight", (self.vocabulary, hidden), False
        yield "lm_head.bias", (self.vocabulary,), True

    def _block(self, prefix: str, mixed: bool) -> Iterator[tuple[str, tuple[int, ...], bool]]:
        hidden, queries, keys = self.hidden, self.heads * self.head_size, self.kv_heads * self.head_size
        before, after = self.norms in ("before", "both"), self.norms in ("after", "both")
        if before:
            yield from self._norm(prefix + "input_layernorm")
        for name, columns in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            yield from _linear(f"{prefix}self_attn.{name}", columns, hidden)
        if self.head_norms != "none":
            for name, size in (("q_norm", queries), ("k_norm", keys)):
                yield f"{prefix}self_attn.{name}.weight", (size,), False
                if self.centred:
                    yield f"{prefix}self_attn.{name}.bias", (size,), False
        yield from _linear(prefix + "self_attn.o_proj", hidden, queries)
        if after:
            yield from self._norm(prefix + "self_attn.norm")
        if before and self.residual != "shared":
            yield from self._norm(prefix + "post_attention_layernorm")
        yield from self._experts(prefix + "mlp.") if mixed else self._network(prefix + "mlp.", self.inner)
        if after:
            yield from self._norm(prefix + "mlp.norm")

    def _network(self, prefix: str, inner: int) -> Iterator[tuple[str, tuple[int, ...], bool]]:
        for name in ("gate_proj", "up_proj") if self.gated else ("up_proj",):
            yield from _linear(prefix + name, inner, self.hidden)
        yield from _linear(prefix + "down_proj", self.hidden, inner)

    def _experts(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...], bool]]:
        assert self.experts is not None
        assert self.expert_inner is not None
        yield prefix + "router.weight", (self.experts, self.hidden), False
        yield prefix + "experts.gate_up_proj", (self.experts, 2 * self.expert_inner, self.hidden), False
        yield prefix + "experts.down_proj", (self.experts, self.hidden, self.expert_inner), False
        if self.shared_inner is not None:
            yield from (row for row in self._network(prefix + "shared.", self.shared_inner) if not row[2])
            yield prefix + "shared_gate.weight", (1, self.hidden), False

    def _norm(self, name: str) -> Iterator[tuple[str, tuple[int, ...], bool]]:
        yield f"{name}.weight", (self.hidden,), False
        if self.centred:
            yield f"{name}.bias", (self.hidden,), False

    @property
    def parameters(self) -> int:
        """Count the weights, without biases that are optional."""
        return sum(int(np.prod(shape)) for _, shape, optional in self.shapes() if not optional)


def _linear(name: str, columns: int, reduction: int) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    yield f"{name}.weight", (columns, reduction), False
    yield f"{name}.bias", (columns,), True
