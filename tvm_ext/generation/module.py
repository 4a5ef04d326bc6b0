"""A decoder as a Relax module of two functions: ``prefill`` for any number of tokens, ``decode`` for one.

Both take token ids, the position of the first, the cache (two tensors a layer), and the weights, and give the logits of
the last token. They write keys and values of their tokens into the cache that they are given: it is the one argument
that a kernel changes, and the kernel that reads it needs the queries that come out of the one that writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from tvm_ext.generation.config import DecoderConfig
from tvm_ext.generation.decoder import Decoder
from tvm_ext.generation.quantization import stored
from tvm_ext.schedules.compute.weight_words import WeightFormat, WeightShape
from tvm_ext.schedules.cpu import cached_attention, decoder_kernels
from tvm_ext.schedules.cpu.cached_attention import HeadShape
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.schedules.cpu.word_product import word_product

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
    """

    shapes: tuple[tuple[tuple[int, ...], str], ...]
    make: Callable[[Decoder], Sequence[np.ndarray]]


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
    biased : bool
        Queries, keys and values have biases.
    """

    config: DecoderConfig
    form: WeightFormat
    context: int
    machine: Machine
    biased: bool
    entries: dict[str, Stored] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, entry in (_gpt2 if self.config.family == "gpt2" else _llama)(self):
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
        return sum(4 * int(np.prod(shape)) for entry in matrices for shape, _ in entry.shapes)


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


def _llama(layout: Layout) -> Iterator[tuple[str, Stored]]:
    config = layout.config
    hidden, heads = config.hidden, layout.heads
    yield "embedding", _vector("model.embed_tokens.weight", config.vocabulary, hidden)
    half = config.head_size // 2
    angles, gain = config.angles(layout.context), np.float32(config.rotary_gain)
    turns = [np.cos(angles) * gain, np.sin(angles) * gain]
    yield "angles", Stored((((layout.context, half), "float32"),) * 2, lambda decoder: turns)
    for number in range(config.layers):
        prefix = f"model.layers.{number}."
        names = [f"{prefix}self_attn.{part}_proj" for part in "qkv"]
        yield f"{number}.first_norm", _vector(prefix + "input_layernorm.weight", hidden)
        yield (
            f"{number}.projection",
            layout.matrix(hidden, heads.projected, _columns(*(f"{name}.weight" for name in names))),
        )
        if layout.biased:
            yield f"{number}.projection_bias", _joined([f"{name}.bias" for name in names], heads.projected)
        if config.head_norms:
            gains = [f"{prefix}self_attn.{part}_norm.weight" for part in "qk"]
            yield f"{number}.head_norms", _joined(gains, 2 * config.head_size)
        yield (
            f"{number}.output",
            layout.matrix(config.heads * config.head_size, hidden, _columns(prefix + "self_attn.o_proj.weight")),
        )
        yield f"{number}.second_norm", _vector(prefix + "post_attention_layernorm.weight", hidden)
        gates = (f"{prefix}mlp.gate_proj.weight", f"{prefix}mlp.up_proj.weight")
        yield f"{number}.gates", layout.matrix(hidden, 2 * config.inner, _columns(*gates))
        yield f"{number}.down", layout.matrix(config.inner, hidden, _columns(prefix + "mlp.down_proj.weight"))
    yield "norm", _vector("model.norm.weight", hidden)
    head = "model.embed_tokens.weight" if config.tied else "lm_head.weight"
    yield "logits", layout.matrix(hidden, config.vocabulary, _columns(head))


def _joined(names: list[str], size: int) -> Stored:
    def make(decoder: Decoder) -> list[np.ndarray]:
        return [np.concatenate([found for name in names if (found := decoder.weight(name)) is not None])]

    return Stored((((size,), "float32"),), make)


def _rows(name: str) -> Read:
    """Read a matrix that is stored ``[reduction, columns]``."""

    def read(decoder: Decoder) -> np.ndarray:
        found = decoder.weight(name)
        assert found is not None
        return found

    return read


def _gpt2(layout: Layout) -> Iterator[tuple[str, Stored]]:
    config = layout.config
    hidden, inner = config.hidden, config.inner
    yield "embedding", _vector("wte.weight", config.vocabulary, hidden)
    yield "positions", _vector("wpe.weight", config.positions, hidden)
    for number in range(config.layers):
        prefix = f"h.{number}."
        yield f"{number}.first_norm", _vector(prefix + "ln_1.weight", hidden)
        yield f"{number}.first_norm_bias", _vector(prefix + "ln_1.bias", hidden)
        yield f"{number}.projection", layout.matrix(hidden, 3 * hidden, _rows(prefix + "attn.c_attn.weight"))
        yield f"{number}.projection_bias", _vector(prefix + "attn.c_attn.bias", 3 * hidden)
        yield f"{number}.output", layout.matrix(hidden, hidden, _rows(prefix + "attn.c_proj.weight"))
        yield f"{number}.output_bias", _vector(prefix + "attn.c_proj.bias", hidden)
        yield f"{number}.second_norm", _vector(prefix + "ln_2.weight", hidden)
        yield f"{number}.second_norm_bias", _vector(prefix + "ln_2.bias", hidden)
        yield f"{number}.up", layout.matrix(hidden, inner, _rows(prefix + "mlp.c_fc.weight"))
        yield f"{number}.up_bias", _vector(prefix + "mlp.c_fc.bias", inner)
        yield f"{number}.down", layout.matrix(inner, hidden, _rows(prefix + "mlp.c_proj.weight"))
        yield f"{number}.down_bias", _vector(prefix + "mlp.c_proj.bias", hidden)
    yield "norm", _vector("ln_f.weight", hidden)
    yield "norm_bias", _vector("ln_f.bias", hidden)
    yield "logits", layout.matrix(hidden, config.vocabulary, _columns("wte.weight"))


def decoder_module(layout: Layout, most_tokens: int) -> tvm.IRModule:
    """Write the two functions; ``prefill`` takes at most ``most_tokens`` tokens at once."""
    builder = relax.BlockBuilder()
    for name, rows in (("decode", 1), ("prefill", None)):
        _Function(builder, layout, rows, most_tokens).write(name)
    return builder.finalize()


class _Function:
    """Writes one of the functions."""

    def __init__(self, builder: relax.BlockBuilder, layout: Layout, rows: int | None, most_tokens: int) -> None:
        self.builder, self.layout, self.config, self.rows = builder, layout, layout.config, rows
        self.most_tokens = most_tokens
        self.count: Any = 1 if rows == 1 else tirx.Var("tokens", "int64")
        self.ids = relax.Var("ids", relax.TensorType([self.count], "int64"))
        self.position = relax.Var("position", relax.TensorType([1], "int64"))
        self.caches = [
            relax.Var(f"cache{number}", relax.TensorType(list(shape), "float32"))
            for number, shape in enumerate(layout.caches)
        ]
        self.weights = {
            name: [
                relax.Var(f"{name}_{number}", relax.TensorType(list(shape), dtype))
                for number, (shape, dtype) in enumerate(entry.shapes)
            ]
            for name, entry in layout.entries.items()
        }

    def write(self, name: str) -> None:
        """Write the function under a name."""
        weights = [variable for group in self.weights.values() for variable in group]
        attributes = {} if self.rows == 1 else {"tir_var_upper_bound": {"tokens": self.most_tokens}}
        with self.builder.function(name, [self.ids, self.position, *self.caches, *weights], attrs=attributes):
            with self.builder.dataflow():
                logits = self.builder.emit_output(self._logits())
            self.builder.emit_func_output(logits)

    def _call(self, name: str, kernel: tirx.PrimFunc, given: Sequence[Any], columns: int, last: bool = False) -> Any:
        variable = self.builder.add_func(kernel, name)
        result = relax.TensorType([1 if last else self.count, columns], "float32")
        return self.builder.emit(relax.call_tir(variable, list(given), result))

    def _product(self, x: Any, name: str, reduction: int, columns: int, rows: int | None) -> Any:
        kernel = word_product(self.layout.product(reduction, columns), rows, self.layout.machine)
        return self._call("word_product", kernel, [x, *self.weights[name]], columns, rows == 1)

    def _norm(self, x: Any, name: str, last: bool = False) -> Any:
        config = self.config
        centred = config.family == "gpt2"
        kernel = decoder_kernels.norm(self.rows, config.hidden, config.epsilon, centred, last, self.layout.machine)
        bias = self.weights[f"{name}_bias"] if centred else []
        return self._call("norm", kernel, [x, *self.weights[name], *bias], config.hidden, last)

    def _attention(self, x: Any, number: int) -> Any:
        config, heads, machine = self.config, self.layout.heads, self.layout.machine
        size = config.heads * config.head_size
        projected = self._product(x, f"{number}.projection", config.hidden, heads.projected, self.rows)
        bias = self.weights.get(f"{number}.projection_bias", [])
        if config.head_norms:
            kernel = cached_attention.head_norms(self.rows, heads, config.epsilon, bool(bias), machine)
            gains = self.weights[f"{number}.head_norms"]
            projected, bias = self._call("head_norms", kernel, [projected, *bias, *gains], heads.projected), []
        caches = self.caches[2 * number : 2 * number + 2]
        angles = self.weights.get("angles", [])
        append = cached_attention.append(self.rows, heads, config.rotary, bool(bias), machine)
        queries = self._call("append", append, [projected, *bias, self.position, *angles, *caches], size)
        attend = cached_attention.attend(self.rows, heads, machine)
        result = self._call("attend", attend, [queries, self.position, *caches], size)
        return self._product(result, f"{number}.output", size, config.hidden, self.rows)

    def _feed_forward(self, x: Any, number: int) -> Any:
        config, machine = self.config, self.layout.machine
        if config.family == "gpt2":
            inner = self._product(x, f"{number}.up", config.hidden, config.inner, self.rows)
            gelu = decoder_kernels.gelu(self.rows, config.inner, machine)
            inner = self._call("gelu", gelu, [inner, *self.weights[f"{number}.up_bias"]], config.inner)
        else:
            gates = self._product(x, f"{number}.gates", config.hidden, 2 * config.inner, self.rows)
            gated = decoder_kernels.gated(self.rows, config.inner, config.activation, machine)
            inner = self._call("gated", gated, [gates], config.inner)
        return self._product(inner, f"{number}.down", config.inner, config.hidden, self.rows)

    def _residual(self, past: Any, data: Any, bias: list[Any]) -> Any:
        kernel = decoder_kernels.residual(self.rows, self.config.hidden, bool(bias), self.layout.machine)
        return self._call("residual", kernel, [past, data, *bias], self.config.hidden)

    def _logits(self) -> Any:
        config, machine = self.config, self.layout.machine
        places = self.weights.get("positions", [])
        kernel = decoder_kernels.embedding(
            self.rows, config.vocabulary, config.hidden, config.positions if places else 0, machine
        )
        given = [self.ids, self.position, *self.weights["embedding"], *places]
        x = self._call("embedding", kernel, given, config.hidden)
        for number in range(config.layers):
            result = self._attention(self._norm(x, f"{number}.first_norm"), number)
            x = self._residual(x, result, self.weights.get(f"{number}.output_bias", []))
            result = self._feed_forward(self._norm(x, f"{number}.second_norm"), number)
            x = self._residual(x, result, self.weights.get(f"{number}.down_bias", []))
        return self._product(self._norm(x, "norm", True), "logits", config.hidden, config.vocabulary, 1)
