"""What tensors a compiled decoder is given: which weights of a decoder, in what form, and in what order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tvm_ext.generation.config import DecoderConfig
from tvm_ext.generation.decoder import Decoder
from tvm_ext.generation.quantization import stored
from tvm_ext.schedules.compute.weight_words import WeightFormat, WeightShape
from tvm_ext.schedules.cpu.cached_attention import HeadShape
from tvm_ext.schedules.cpu.expert_kernels import Choice
from tvm_ext.schedules.cpu.machine import Machine

Read = Callable[[Decoder], np.ndarray]


@dataclass(frozen=True)
class Stored:
    """Tensors that a compiled decoder is given, made of weights of the decoder.

    Attributes
    ----------
    shapes : tuple
        Shape and type of each.
    make : callable
        Makes them of a decoder.
    share : float
        What part of them is read for a token.
    """

    shapes: tuple[tuple[tuple[int, ...], str], ...]
    make: Callable[[Decoder], Sequence[np.ndarray]]
    share: float = 1.0


@dataclass
class Layout:
    """What tensors a compiled decoder is given, and in what order.

    Attributes
    ----------
    config : DecoderConfig
    form : WeightFormat
        Of the weights of products.
    context : int
        Positions that the cache has room for.
    machine : Machine
    biases : frozenset of str
        Products that have biases, as :attr:`Decoder.biases` lists them.
    """

    config: DecoderConfig
    form: WeightFormat
    context: int
    machine: Machine
    biases: frozenset[str]
    entries: dict[str, Stored] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, entry in _weights(self):
            self.entries[name] = entry

    @property
    def heads(self) -> HeadShape:
        """Extents of the attention."""
        config = self.config
        return HeadShape(config.heads, config.kv_heads, config.head_size, self.context, self.machine.lanes("float32"))

    def product(self, reduction: int, columns: int) -> WeightShape:
        """How the weights of a product are stored."""
        return WeightShape(reduction, columns, self.machine.lanes("float32"), self.form)

    def matrix(self, reduction: int, columns: int, read: Read) -> Stored:
        """Weights of a product; ``read`` gives them as ``[reduction, columns]``."""
        shape = self.product(reduction, columns)
        return Stored(shape.stored, lambda decoder: stored(read(decoder), self.form, shape.lanes))

    def expert_matrices(self, reduction: int, columns: int, name: str) -> Stored:
        """Weights of a product of all experts, which a weight holds as ``[experts, columns, reduction]``."""
        shape, experts = self.product(reduction, columns), self.choice.experts

        def make(decoder: Decoder) -> list[np.ndarray]:
            found = decoder.weights[name]
            parts = [stored(np.asarray(found[e], "float32").T, self.form, shape.lanes) for e in range(experts)]
            return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]

        shapes = tuple(((experts * first, *rest), dtype) for (first, *rest), dtype in shape.stored)
        return Stored(shapes, make, self.choice.chosen / experts)

    @property
    def choice(self) -> Choice:
        """How experts are chosen."""
        config = self.config
        return Choice(config.experts or 0, config.chosen or 0, config.normalised)

    @property
    def router(self) -> WeightShape:
        """How the weights are stored that choose experts: as floats, for which they are few enough."""
        return WeightShape(self.config.hidden, self.choice.experts, self.machine.lanes("float32"), WeightFormat())

    @property
    def caches(self) -> list[tuple[int, ...]]:
        """Shapes of the tensors of the cache, layer by layer keys and values."""
        return [self.heads.keys, self.heads.values] * self.config.layers

    @property
    def shapes(self) -> list[tuple[tuple[int, ...], str]]:
        """Shapes and types of all weights, in order."""
        return [shape for entry in self.entries.values() for shape in entry.shapes]

    def arrays(self, decoder: Decoder) -> Iterator[np.ndarray]:
        """Make all weights, in order."""
        for entry in self.entries.values():
            yield from entry.make(decoder)

    def bytes_per_token(self) -> int:
        """Count the bytes of weights that the products of one token read."""
        matrices = (entry for entry in self.entries.values() if entry.shapes[0][1] == "uint32")
        return int(sum(4 * entry.share * np.prod(shape) for entry in matrices for shape, _ in entry.shapes))


def _vector(name: str, *shape: int) -> Stored:
    def make(decoder: Decoder) -> list[np.ndarray]:
        found = decoder.weight(name)
        assert found is not None
        return [found]

    return Stored(((shape, "float32"),), make)


def _columns(*names: str) -> Read:
    """Read matrices that are stored ``[columns, reduction]``, side by side."""

    def read(decoder: Decoder) -> np.ndarray:
        return np.concatenate([found for name in names if (found := decoder.weight(name)) is not None]).T

    return read


def _joined(names: list[str], size: int) -> Stored:
    def make(decoder: Decoder) -> list[np.ndarray]:
        return [np.concatenate([found for name in names if (found := decoder.weight(name)) is not None])]

    return Stored((((size,), "float32"),), make)


def _weights(layout: Layout) -> Iterator[tuple[str, Stored]]:
    """List what a compiled decoder is given."""
    config, hidden = layout.config, layout.config.hidden
    yield "embedding", _vector("model.embed_tokens.weight", config.vocabulary, hidden)
    if config.positional == "learnt":
        yield "positions", _vector("model.embed_positions.weight", config.positions, hidden)
    if config.embedding_norm:
        yield from _norm(config, "embedding_norm", "model.embed_norm")
    for name in sorted({name for layer in range(config.layers) if (name := config.turns(layer)) is not None}):
        yield name, _angles(config, name, layout.context)
    if config.slopes is not None:
        yield "slopes", _added_to_scores(config, layout.heads)
    for number in range(config.layers):
        yield from _block(layout, number, f"model.layers.{number}.")
    yield from _norm(config, "norm", "model.norm")
    head = "model.embed_tokens.weight" if config.tied else "lm_head.weight"
    yield "logits", layout.matrix(hidden, config.vocabulary, _columns(head))
    if "logits" in layout.biases:
        yield "logits_bias", _vector("lm_head.bias", config.vocabulary)


def _angles(config: DecoderConfig, name: str, context: int) -> Stored:
    angles, gain = config.angles(context, name), np.float32(config.rotary_gain if name == "angles" else 1)
    turns = [np.cos(angles) * gain, np.sin(angles) * gain]
    return Stored((((context, config.head_size // 2), "float32"),) * 2, lambda decoder: turns)


def _added_to_scores(config: DecoderConfig, heads: HeadShape) -> Stored:
    shape = (heads.heads, heads.blocks * heads.lanes)
    return Stored(((shape, "float32"),), lambda decoder: [config.added_to_scores(shape[1])])


def _norm(config: DecoderConfig, entry: str, name: str) -> Iterator[tuple[str, Stored]]:
    yield entry, _vector(f"{name}.weight", config.hidden)
    if config.centred:
        yield f"{entry}_bias", _vector(f"{name}.bias", config.hidden)


def _block(layout: Layout, number: int, prefix: str) -> Iterator[tuple[str, Stored]]:
    config, hidden, heads = layout.config, layout.config.hidden, layout.heads
    before, after = config.norms in ("before", "both"), config.norms in ("after", "both")
    if before:
        yield from _norm(config, f"{number}.first_norm", prefix + "input_layernorm")
    names = [f"{prefix}self_attn.{part}_proj" for part in "qkv"]
    weights = _columns(*(f"{name}.weight" for name in names))
    yield f"{number}.projection", layout.matrix(hidden, heads.projected, weights)
    if "qkv" in layout.biases:
        yield f"{number}.projection_bias", _joined([f"{name}.bias" for name in names], heads.projected)
    if config.head_norms != "none":
        size = (config.heads + config.kv_heads) * config.head_size
        for entry, end in (("head_norms", "weight"), *((("head_norms_bias", "bias"),) if config.centred else ())):
            yield f"{number}.{entry}", _joined([f"{prefix}self_attn.{part}_norm.{end}" for part in "qk"], size)
    yield (
        f"{number}.output",
        layout.matrix(config.heads * config.head_size, hidden, _columns(prefix + "self_attn.o_proj.weight")),
    )
    if "output" in layout.biases:
        yield f"{number}.output_bias", _vector(prefix + "self_attn.o_proj.bias", hidden)
    if after:
        yield from _norm(config, f"{number}.output_norm", prefix + "self_attn.norm")
    if before and config.residual != "shared":
        yield from _norm(config, f"{number}.second_norm", prefix + "post_attention_layernorm")
    yield from (_experts if config.mixed(number) else _network)(layout, f"{number}.", prefix + "mlp.", config.inner)
    if after:
        yield from _norm(config, f"{number}.down_norm", prefix + "mlp.norm")


def _network(layout: Layout, entry: str, prefix: str, inner: int) -> Iterator[tuple[str, Stored]]:
    config, hidden = layout.config, layout.config.hidden
    ups = [prefix + part for part in (("gate_proj", "up_proj") if config.gated else ("up_proj",))]
    width = len(ups) * inner
    yield entry + "up", layout.matrix(hidden, width, _columns(*(f"{up}.weight" for up in ups)))
    if "up" in layout.biases:
        yield entry + "up_bias", _joined([f"{up}.bias" for up in ups], width)
    yield entry + "down", layout.matrix(inner, hidden, _columns(prefix + "down_proj.weight"))
    if "down" in layout.biases:
        yield entry + "down_bias", _vector(prefix + "down_proj.bias", hidden)


def _experts(layout: Layout, entry: str, prefix: str, _inner: int) -> Iterator[tuple[str, Stored]]:
    config, hidden, router = layout.config, layout.config.hidden, layout.router
    inner = config.expert_inner or 0
    scores = _columns(prefix + "router.weight")
    yield entry + "router", Stored(router.stored, lambda decoder: stored(scores(decoder), router.format, router.lanes))
    yield entry + "expert_up", layout.expert_matrices(hidden, 2 * inner, prefix + "experts.gate_up_proj")
    yield entry + "expert_down", layout.expert_matrices(inner, hidden, prefix + "experts.down_proj")
    if config.shared_inner is not None:
        yield from _network(layout, entry + "shared_", prefix + "shared.", config.shared_inner)
        number = _columns(prefix + "shared_gate.weight")
        one = WeightShape(hidden, 1, router.lanes, WeightFormat())
        yield (
            entry + "shared_number",
            Stored(one.stored, lambda decoder: stored(number(decoder), one.format, one.lanes)),
        )
