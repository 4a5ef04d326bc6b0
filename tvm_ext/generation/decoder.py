"""A decoder-only transformer as plain data: its extents and kind, and its weights by the names that checkpoints use."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from tvm_ext.errors import MissingPackageError, ModelError, first_line

FAMILIES = ("llama", "gpt2")
"""Kinds of blocks: rotary positions, root-mean-square norms and SwiGLU; learnt positions, layer norms and GELU."""


_NO_WEIGHTS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
"""Ends of names of tensors that checkpoints may hold and that are no weights: masks, and rates of angles."""


@dataclass(frozen=True)
class DecoderConfig:
    """Extents and kind of a decoder.

    Attributes
    ----------
    family : str
        ``"llama"`` (Llama, Qwen2, Mistral without windows) or ``"gpt2"``.
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
        if self.heads % self.kv_heads:
            raise ModelError(
                f"decoder: {self.heads} heads cannot share {self.kv_heads} heads of keys and values; the first number "
                "has to be a multiple of the second"
            )
        if self.family == "llama" and self.head_size % 2:
            raise ModelError(f"decoder: heads of {self.head_size} elements have no halves to turn; give an even size")

    @property
    def rotary(self) -> bool:
        """Whether positions are angles of queries and keys."""
        return self.family == "llama"

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


@dataclass(frozen=True)
class Decoder:
    """A decoder with its weights.

    Attributes
    ----------
    config : DecoderConfig
    weights : mapping from str to numpy.ndarray
        Float32, by the names of :meth:`DecoderConfig.shapes`.
    name : str
    """

    config: DecoderConfig
    weights: Mapping[str, np.ndarray]
    name: str = "decoder"

    def __post_init__(self) -> None:
        """Refuse weights that are missing or have another shape.

        Raises
        ------
        ModelError
        """
        for name, shape, optional in self.config.shapes():
            found = self.weights.get(name)
            if found is None and not optional:
                raise ModelError(f"{self.name}: weight {name!r} of shape {list(shape)} is missing")
            if found is not None and tuple(found.shape) != shape:
                raise ModelError(
                    f"{self.name}: weight {name!r} has shape {list(found.shape)} where the configuration says "
                    f"{list(shape)}"
                )
        biases = [name for name, _, optional in self.config.shapes() if optional]
        lacking = [name for name in biases if name not in self.weights]
        if lacking and len(lacking) < len(biases):
            raise ModelError(f"{self.name}: weight {lacking[0]!r} is missing, and others of its kind are there")
        known = {name for name, _, _ in self.config.shapes()} | ({"lm_head.weight"} if self.config.tied else set())
        others = [name for name in self.weights if name not in known and not name.endswith(_NO_WEIGHTS)]
        if others:
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            raise ModelError(
                f"{self.name}: weight {others[0]!r}{more} belongs to no part of a decoder of this kind; the model "
                "computes something else"
            )

    def weight(self, name: str) -> np.ndarray | None:
        """Give a weight as float32; None where a bias is not there."""
        found = self.weights.get(name)
        return None if found is None else np.asarray(found, "float32")

    @classmethod
    def from_module(cls, module: Any) -> Decoder:
        """Take a module of torch: one of :mod:`tvm_ext.generation.definitions`, or one with a checkpoint's ``config``.

        Raises
        ------
        ModelError
            If it is no such module.
        """
        config = getattr(module, "config", None)
        if not isinstance(config, DecoderConfig):
            if config is None or not hasattr(config, "to_dict"):
                raise ModelError(f"{type(module).__name__} has no configuration of a decoder in its attribute config")
            config = config_from_checkpoint(config.to_dict(), type(module).__name__)
        weights = {name: value.detach().float().cpu().numpy() for name, value in module.state_dict().items()}
        return cls(config, _without_prefix(weights), type(module).__name__)

    @classmethod
    def from_folder(cls, folder: Path) -> Decoder:
        """Read a checkpoint: ``config.json`` and ``*.safetensors``.

        Raises
        ------
        ModelError
            If a file is missing or damaged, or the model is of another kind.
        MissingPackageError
            If there is no package to read weights with.
        """
        try:
            described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelError(f"{folder / 'config.json'} cannot be read: {first_line(error)}") from None
        if not isinstance(described, dict):
            raise ModelError(f"{folder / 'config.json'} holds no object of fields, as the one of a checkpoint does")
        config = config_from_checkpoint(described, str(folder / "config.json"))
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise ModelError(f"{folder} has no weights (*.safetensors) beside its config.json")
        try:
            from safetensors import safe_open
        except ImportError:
            raise MissingPackageError("reading *.safetensors needs the package safetensors; install it") from None
        weights: dict[str, np.ndarray] = {}
        for file in files:
            try:
                with safe_open(file, "numpy") as opened:
                    weights |= {name: opened.get_tensor(name) for name in opened.keys()}
            except Exception as error:  # of a class of its own
                raise ModelError(f"{file} cannot be read: {first_line(error)}") from None
        return cls(config, _without_prefix(weights), folder.name)


def _without_prefix(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Give weights of GPT-2 the names that its checkpoints have, in which modules put ``transformer.``."""
    return {name.removeprefix("transformer."): value for name, value in weights.items()}


def config_from_checkpoint(described: Mapping[str, Any], where: str) -> DecoderConfig:
    """Read the ``config.json`` of a checkpoint.

    Raises
    ------
    ModelError
        If a field is missing, or it describes another kind of model.
    """
    kind = described.get("model_type")
    try:
        if kind == "gpt2":
            _require(described, where, "activation_function", ("gelu_new", "gelu_pytorch_tanh"))
            _require(described, where, "scale_attn_weights", (True,))
            _require(described, where, "scale_attn_by_inverse_layer_idx", (False,))
            _require(described, where, "add_cross_attention", (False,))
            _require(described, where, "tie_word_embeddings", (True,))
            hidden, heads = int(described["n_embd"]), int(described["n_head"])
            return DecoderConfig(
                "gpt2", int(described["n_layer"]), hidden, heads, heads, hidden // heads,
                int(described.get("n_inner") or 4 * hidden), int(described["vocab_size"]),
                int(described["n_positions"]), float(described.get("layer_norm_epsilon", 1e-5)),
            )  # fmt: skip
        if kind in ("llama", "qwen2", "mistral"):
            _require(described, where, "hidden_act", ("silu", "swish"))
            _require(described, where, "partial_rotary_factor", (1.0,))
            window = described.get("sliding_window")
            angles = described.get("rope_parameters") or described.get("rope_scaling") or {}
            base = float(angles.get("rope_theta", described.get("rope_theta", 10000.0)))
            for field in ("rope_scaling", "rope_parameters"):
                scaled = described.get(field)
                if scaled and scaled.get("rope_type", scaled.get("type", "default")) != "default":
                    raise ModelError(f"{where}: field {field} is {scaled!r:.80}; only unscaled angles are supported")
            if window and described.get("use_sliding_window", kind == "mistral"):
                raise ModelError(f"{where}: field sliding_window is {window}; attention over a window is not supported")
            hidden, heads = int(described["hidden_size"]), int(described["num_attention_heads"])
            return DecoderConfig(
                "llama", int(described["num_hidden_layers"]), hidden, heads,
                int(described.get("num_key_value_heads") or heads), int(described.get("head_dim") or hidden // heads),
                int(described["intermediate_size"]), int(described["vocab_size"]),
                int(described["max_position_embeddings"]), float(described.get("rms_norm_eps", 1e-5)),
                base, bool(described.get("tie_word_embeddings", False)),
            )  # fmt: skip
    except KeyError as error:
        raise ModelError(f"{where}: field {error} is missing") from None
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise ModelError(f"{where}: a field is no number ({first_line(error)})") from None
    raise ModelError(f"{where}: model_type {kind!r} is not supported; candidates are gpt2, llama, mistral, qwen2")


def _require(described: Mapping[str, Any], where: str, field: str, known: tuple[Any, ...]) -> None:
    """Refuse a field that makes the model compute something else."""
    value = described.get(field)
    if value is not None and value not in known:
        candidates = ", ".join(map(str, known))
        raise ModelError(
            f"{where}: field {field} is {value!r:.80}, which is not supported; candidates are {candidates}"
        )


def _llama_shapes(config: DecoderConfig) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    hidden, queries, keys = config.hidden, config.heads * config.head_size, config.kv_heads * config.head_size
    yield "model.embed_tokens.weight", (config.vocabulary, hidden), False
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (hidden,), False
        for name, columns in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            yield f"{prefix}self_attn.{name}.weight", (columns, hidden), False
            yield f"{prefix}self_attn.{name}.bias", (columns,), True
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
