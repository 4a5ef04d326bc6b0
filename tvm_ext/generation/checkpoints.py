"""Checkpoints of decoders of several makers: their ``config.json``, and their weights as a decoder has them.

What is no part of a decoder's structure is put into the weights: norms with a gain of ``1 + weight``, factors of
embeddings, residuals, scores and logits, projections that are stored as one, and heads that are turned in part, or
whose neighbours are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvm_ext.errors import ModelError, first_line
from tvm_ext.generation.config import DecoderConfig
from tvm_ext.generation.kinds import KINDS, WITHOUT_CACHE, Kind, slopes_of
from tvm_ext.generation.names import named
from tvm_ext.generation.rotary import Rotary, rotary_rates

_ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu", "gelu_new": "gelu", "gelu_fast": "gelu",
    "gelu": "exact_gelu", "relu": "relu", "relu2": "squared_relu",
}  # fmt: skip

_FIELDS = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "inner": ("intermediate_size",),
    "positions": ("max_position_embeddings", "n_positions", "max_seq_len"),
    "epsilon": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
    "activation": ("hidden_activation", "hidden_act", "activation_function", "activation"),
}
"""What makers call a number; the first that is there counts."""

_WINDOWED = ("ministral", "mistral", "mixtral", "phi3", "starcoder2")
"""Kinds all of whose blocks have a window wherever one is given."""

_TURNED_IN_WINDOWS = ("cohere2", "exaone4")
"""Kinds that turn queries and keys only in blocks with a window."""

_TWO_ROTARIES = ("gemma3_text", "olmo3")
"""Kinds whose blocks with a window turn by angles of their own."""

_CONV1D = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")
"""Matrices that GPT-2 stores ``[reduction, columns]``."""

_MULTIPLIERS = ("embedding_multiplier", "logits_scaling", "attention_multiplier", "residual_multiplier")
_OF_GEMMA = ("gemma", "gemma2", "gemma3_text", "vaultgemma")
_SCALED_EMBEDDING = (*_OF_GEMMA, "biogpt")


def config_from_checkpoint(described: Mapping[str, Any], where: str) -> DecoderConfig:
    """Read the ``config.json`` of a checkpoint.

    Raises
    ------
    ModelError
        If a field is missing, or it describes another kind of model.
    """
    kind, described = _kind(described, where)
    try:
        return _config(kind, described, where)
    except KeyError as error:
        raise ModelError(f"{where}: field {error} is missing") from None
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise ModelError(f"{where}: a field is no number ({first_line(error)})") from None


def _kind(described: Mapping[str, Any], where: str) -> tuple[Kind, Mapping[str, Any]]:
    """Find the row of a checkpoint, and its fields with those that it leaves out."""
    text = described.get("text_config")
    if described.get("model_type") == "gemma3" and isinstance(text, Mapping):
        described = {"model_type": "gemma3_text"} | dict(text)  # of a model that reads pictures, too
    kind = described.get("model_type")
    row = KINDS.get(kind) if isinstance(kind, str) else None
    if row is None:
        if kind in WITHOUT_CACHE:
            raise ModelError(
                f"{where}: model_type {kind!r} keeps a state in place of keys and values, which decoders here have; "
                "compile it as a model with tvm_ext.compile"
            )
        raise ModelError(f"{where}: model_type {kind!r:.80} is not supported; candidates are {', '.join(KINDS)}")
    given = {name: value for name, value in described.items() if value is not None}
    return row, {**row.defaults, **given}


def _field(described: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """Find a field under one of its names."""
    found = next((described[name] for name in _FIELDS[name] if described.get(name) is not None), default)
    if found is None:
        raise KeyError(_FIELDS[name][0])
    return found


def _config(row: Kind, described: Mapping[str, Any], where: str) -> DecoderConfig:
    kind = described["model_type"]
    for field, allowed in row.only.items():
        _require(described, where, field, allowed)
    found: dict[str, Any] = {**row.structure, **(row.more(described) if row.more else {})}
    if "activation" not in row.structure:
        names = sorted(_FIELDS["activation"], key=lambda name: name not in row.defaults)
        field = next((name for name in names if described.get(name)), "hidden_act")
        _require(described, where, field, tuple(_ACTIVATIONS))
        found["activation"] = _ACTIVATIONS[described.get(field) or "silu"]
    elif described.get("hidden_activation") not in (None, "gelu_pytorch_tanh"):
        _require(described, where, "hidden_activation", ("gelu_pytorch_tanh",))
    hidden, heads = int(_field(described, "hidden")), int(_field(described, "heads"))
    layers, positions = int(_field(described, "layers")), int(_field(described, "positions"))
    size = int(described.get("head_dim") or hidden // heads)
    found.setdefault("positional", "rotary")
    found.setdefault("kv_heads", int(described.get("num_key_value_heads") or heads))
    if kind == "opt":
        _require(described, where, "word_embed_proj_dim", (hidden,))
    if kind == "mpt":
        attention = described.get("attn_config") or {}
        _require({"alibi": False} | dict(attention), where, "alibi", (True, 1))
        _require(attention, where, "clip_qkv", ())
        _require(attention, where, "qk_ln", (False,))
        _require(attention, where, "prefix_lm", (False,))
    if found["positional"] == "alibi":
        found["slopes"] = slopes_of(described, heads)
    windows = _windows(row, described, layers)
    if windows is not None:
        found["windows"] = windows
        if kind in _TURNED_IN_WINDOWS:
            found["turned"] = tuple(window > 0 for window in windows)
    elif kind == "cohere2":
        found["turned"] = (False,) * layers
    if kind == "smollm3":
        every = int(described.get("no_rope_layer_interval", 4))
        turned = described.get("no_rope_layers") or [int((number + 1) % every != 0) for number in range(layers)]
        found["turned"] = tuple(map(bool, turned))
    if found["positional"] == "rotary":
        rotary = rotary_rates(_rotary_fields(described, "full_attention", size), size, where)
        positions = min(positions, rotary.longest or 1 << 62)
        found |= {"rotary_base": rotary.base, "rates": rotary.rates, "rotary_gain": rotary.gain}
        if kind in _TWO_ROTARIES and windows is not None:
            found["window_rates"] = _all_rates(_window_rotary(described, size, where), size)
    for name, cap in (("score_cap", "attn_logit_softcapping"), ("logit_cap", "final_logit_softcapping")):
        if described.get(cap):
            found[name] = float(described[cap])
    if "inner" not in found:
        found["inner"] = int(_field(described, "inner"))
    tied = bool(described.get("tie_word_embeddings", False))
    return DecoderConfig(
        layers=layers, hidden=hidden, heads=heads, head_size=size, vocabulary=int(described["vocab_size"]),
        positions=positions, epsilon=found.pop("epsilon", None) or float(_field(described, "epsilon", 1e-5)),
        tied=tied and not _embeds_apart(described), **found,
    )  # fmt: skip


def _rotary_fields(described: Mapping[str, Any], kind: str, size: int) -> Mapping[str, Any]:
    """Choose what is said of the angles of one kind of blocks, under the names that most makers use."""
    found = dict(described)
    angles = described.get("rope_parameters")
    if isinstance(angles, Mapping) and isinstance(angles.get(kind), Mapping):
        found["rope_parameters"] = angles[kind]
    for name in ("rotary_pct", "rope_pct"):
        if name in described:
            found.setdefault("partial_rotary_factor", described[name])
    if "rotary_dim" in described:
        found["partial_rotary_factor"] = int(described["rotary_dim"]) / size
    if "rotary_emb_base" in described:
        found.setdefault("rope_theta", described["rotary_emb_base"])
    return found


def _window_rotary(described: Mapping[str, Any], size: int, where: str) -> Rotary:
    angles = described.get("rope_parameters")
    if isinstance(angles, Mapping) and "sliding_attention" in angles:
        return rotary_rates(_rotary_fields(described, "sliding_attention", size), size, where)
    base = described.get("rope_local_base_freq", described.get("rope_theta", 1e4))
    return rotary_rates({"rope_theta": base}, size, where)


def _all_rates(rotary: Rotary, size: int) -> tuple[float, ...]:
    if rotary.rates is not None:
        return rotary.rates
    powers = np.arange(0, size, 2, dtype="float32") / np.float32(size)
    return tuple(map(float, np.float32(rotary.base) ** -powers))


def _windows(row: Kind, described: Mapping[str, Any], layers: int) -> tuple[int, ...] | None:
    """Read how far each block attends; None if all attend to everything."""
    kind = described["model_type"]
    if kind == "gpt_neo":
        parts = described.get("attention_types") or [[["global", "local"], layers // 2]]
        names = described.get("attention_layers") or [n for part, times in parts for _ in range(times) for n in part]
        return tuple(int(described["window_size"]) if name == "local" else 0 for name in names)
    window = described.get("sliding_window")
    if not window or not described.get("use_sliding_window", kind in _WINDOWED or row.pattern > 0):
        return None
    names = described.get("layer_types")
    if names is not None:
        local: Sequence[bool] = [name == "sliding_attention" for name in names]
    elif row.pattern:
        every = int(described.get("sliding_window_pattern") or row.pattern)
        local = [(number + 1) % every != 0 for number in range(layers)]
    else:
        first = 0 if kind in _WINDOWED else int(described.get("max_window_layers", 0))
        local = [number >= first for number in range(layers)]
    return tuple(int(window) if is_local else 0 for is_local in local) if any(local) else None


def _embeds_apart(described: Mapping[str, Any]) -> bool:
    """Whether what is embedded is not what the logits are products with, although the weights are stored once."""
    return described["model_type"] in (*_SCALED_EMBEDDING, "granite", "granitemoe", "cohere", "cohere2")


def _require(described: Mapping[str, Any], where: str, field: str, known: tuple[Any, ...]) -> None:
    """Refuse a field that makes the model compute something else."""
    value = described.get(field)
    if value is not None and value not in known:
        candidates = f"candidates are {', '.join(map(str, known))}" if known else "leave it out"
        raise ModelError(f"{where}: field {field} is {value!r:.80}, which is not supported; {candidates}")


def adapted_weights(
    described: Mapping[str, Any], config: DecoderConfig, weights: Mapping[str, np.ndarray], where: str
) -> dict[str, np.ndarray]:
    """Give weights the names, shapes and values that they have in a decoder.

    Parameters
    ----------
    described : mapping
        The ``config.json``; ``config`` was made of it.
    weights : mapping from str to numpy.ndarray
        By the names of the checkpoint.

    Raises
    ------
    ModelError
        If a field is no number.
    """
    row, described = _kind(described, where)
    if row.transposed:
        weights = {name: value.T if _CONV1D.search(name) else value for name, value in weights.items()}
    adapted = named(weights)
    adapted = _experts_stacked(config, _taken_apart(config, adapted, row.grouped))
    if row.offset and (table := adapted.get("model.embed_positions.weight")) is not None:
        adapted["model.embed_positions.weight"] = table[row.offset :]
    if row.gain:
        adapted = {
            name: np.asarray(value, "float32") + np.float32(row.gain) if name.endswith("norm.weight") else value
            for name, value in adapted.items()
        }
    adapted = _each_head(config, adapted)
    if config.centred:
        _fill_norms(config, adapted)
    try:
        _scale_all(described, config, adapted)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ModelError(f"{where}: a multiplier is no number ({first_line(error)})") from None
    partial = config.rates is not None and config.rates[-1] == 0
    if config.rotary and (partial or row.interleaved):
        adapted = {name: _halves(config, row.interleaved, name, value) for name, value in adapted.items()}
    return adapted


def _taken_apart(config: DecoderConfig, weights: Mapping[str, np.ndarray], grouped: bool) -> dict[str, np.ndarray]:
    """Take projections apart that are stored as one."""
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    shared, size = config.heads // config.kv_heads, config.head_size
    found: dict[str, np.ndarray] = {}
    for name, value in weights.items():
        if "self_attn.qkv_proj." in name and value.shape[0] == queries + 2 * keys:
            if grouped:
                groups = value.reshape(config.kv_heads, shared + 2, size, *value.shape[1:])
                parts = [groups[:, :shared], groups[:, shared], groups[:, shared + 1]]
                parts = [part.reshape(-1, *value.shape[1:]) for part in parts]
            else:
                parts = np.split(value, (queries, queries + keys))
            for part, rows in zip("qkv", parts, strict=True):
                found[name.replace("qkv_proj", f"{part}_proj")] = rows
        elif "mlp.gate_up_proj." in name and value.shape[0] == 2 * config.inner:
            for part, rows in zip(("gate_proj", "up_proj"), np.split(value, 2), strict=True):
                found[name.replace("gate_up_proj", part)] = rows
        else:
            found[name] = value
    return found


def _experts_stacked(config: DecoderConfig, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Put weights together that are stored expert by expert."""
    found = dict(weights)
    for layer in range(config.layers if config.experts else 0):
        prefix = f"model.layers.{layer}.mlp.experts."
        for whole, parts in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
            names = [[f"{prefix}{e}.{part}.weight" for part in parts] for e in range(config.experts or 0)]
            if all(name in found for of_expert in names for name in of_expert):
                rows = [np.concatenate([found.pop(name) for name in of_expert]) for of_expert in names]
                found[prefix + whole] = np.stack(rows)
    return found


def _each_head(config: DecoderConfig, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Give norms of heads a gain for each element of each head, where heads share gains or keep them apart."""
    found: dict[str, np.ndarray] = {}
    for name, value in weights.items():
        for part, heads in (("q_norm", config.heads), ("k_norm", config.kv_heads)):
            if f"self_attn.{part}.norms." in name:
                prefix, _, rest = name.partition(".norms.")
                end = rest.partition(".")[2]
                if rest.startswith("0."):
                    parts = [weights.get(f"{prefix}.norms.{number}.{end}") for number in range(heads)]
                    found[f"{prefix}.{end}"] = np.concatenate([part for part in parts if part is not None])
                break
            if f"self_attn.{part}." in name:
                alone = config.head_norms == "heads" and value.shape == (config.head_size,)
                found[name] = np.tile(value, heads) if alone else value.reshape(-1)
                break
        else:
            found[name] = value
    return found


def _fill_norms(config: DecoderConfig, weights: dict[str, np.ndarray]) -> None:
    """Give norms zeros as biases, and ones as gains, where no norm of the checkpoint has any."""
    norms = [(name, shape) for name, shape, _ in config.shapes() if "norm." in name]
    for end, value in ((".bias", 0.0), (".weight", 1.0)):
        for part in (True, False):  # norms of heads, and others
            of_end = [(name, shape) for name, shape in norms if name.endswith(end) and ("_norm." in name) == part]
            if not any(name in weights for name, _ in of_end):
                weights |= {name: np.full(shape, value, "float32") for name, shape in of_end}


def _scale_all(described: Mapping[str, Any], config: DecoderConfig, weights: dict[str, np.ndarray]) -> None:
    """Put factors of embeddings, scores, residuals and logits into weights."""
    kind = described["model_type"]
    root, scores = math.sqrt(config.head_size), 1.0
    if kind in _SCALED_EMBEDDING:
        scaled = kind != "biogpt" or bool(described.get("scale_embedding", True))
        _scale_embedding(weights, math.sqrt(config.hidden) if scaled else 1.0, 1.0)
    if "query_pre_attn_scalar" in described and kind in _OF_GEMMA:
        scores = root / math.sqrt(float(described["query_pre_attn_scalar"]))
    elif kind == "gpt_neo":
        scores = root  # scores are not divided there
    elif kind == "mpt":
        scale = (described.get("attn_config") or {}).get("softmax_scale")
        scores = 1.0 if scale is None else float(scale) * root
    elif kind in ("cohere", "cohere2"):
        _scale_embedding(weights, 1.0, float(described.get("logit_scale", 0.0625)))
    elif kind in ("granite", "granitemoe"):
        embedded, logits, attention, residual = (float(described.get(name, 1)) for name in _MULTIPLIERS)
        _scale_embedding(weights, embedded, 1 / logits)
        scores = attention * root
        _scale(
            weights,
            ("o_proj.weight", "o_proj.bias", "down_proj.weight", "down_proj.bias", "experts.down_proj"),
            residual,
        )
    if scores != 1:
        part = "q_norm" if config.head_norms != "none" else "q_proj"
        _scale(weights, (f"{part}.weight", f"{part}.bias"), scores)


def _scale_embedding(weights: dict[str, np.ndarray], embedded: float, logits: float) -> None:
    """Scale what is embedded, and the weights of the last product, which may be stored as the same."""
    table = weights.get("model.embed_tokens.weight")
    if table is not None:
        head = weights.get("lm_head.weight", table)
        weights["lm_head.weight"] = np.asarray(head, "float32") * np.float32(logits)
        weights["model.embed_tokens.weight"] = np.asarray(table, "float32") * np.float32(embedded)


def _scale(weights: dict[str, np.ndarray], ends: tuple[str, ...], factor: float) -> None:
    for name, value in weights.items():
        if name.endswith(ends):
            weights[name] = np.asarray(value, "float32") * np.float32(factor)


def _halves(config: DecoderConfig, interleaved: bool, name: str, value: np.ndarray) -> np.ndarray:
    """Put the elements of a head that are turned with each other half a head apart; scores do not see the order."""
    size = config.head_size
    if not any(f"self_attn.{part}" in name for part in ("q_proj", "k_proj", "q_norm", "k_norm")):
        return value
    if value.shape[0] % size:
        return value  # a shape that is refused
    half = size // 2
    turned = half if config.rates is None else sum(rate != 0 for rate in config.rates)
    left = np.arange(2 * turned, size)
    first, second = np.arange(turned), np.arange(turned, 2 * turned)
    if interleaved:
        first, second = np.arange(0, 2 * turned, 2), np.arange(1, 2 * turned, 2)
    order = np.concatenate([first, left[: half - turned], second, left[half - turned :]])
    return value.reshape(-1, size, *value.shape[1:])[:, order].reshape(value.shape)
