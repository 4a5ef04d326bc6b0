"""Checkpoints of decoders of several makers, brought to the two kinds of blocks that are compiled.

What others compute beside these blocks is put into the weights: norms with a gain of ``1 + weight``, factors of
embeddings, residuals, scores and logits, projections that are stored as one, and heads only part of which is turned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tvm_ext.errors import ModelError, first_line
from tvm_ext.generation.config import DecoderConfig
from tvm_ext.generation.rotary import rotary_rates

KINDS = ("gemma", "gpt2", "granite", "llama", "mistral", "phi3", "qwen2", "qwen3")
"""``model_type`` of the checkpoints that are taken."""

_WINDOWED = ("mistral", "phi3")
"""Kinds whose attention is over a window wherever one is given; others say so in a field of their own."""

_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu", "gelu_new": "gelu"}


def config_from_checkpoint(described: Mapping[str, Any], where: str) -> DecoderConfig:
    """Read the ``config.json`` of a checkpoint.

    Raises
    ------
    ModelError
        If a field is missing, or it describes another kind of model.
    """
    kind = described.get("model_type")
    if kind not in KINDS:
        raise ModelError(f"{where}: model_type {kind!r:.80} is not supported; candidates are {', '.join(KINDS)}")
    try:
        return _gpt2(described, where) if kind == "gpt2" else _llama(described, where)
    except KeyError as error:
        raise ModelError(f"{where}: field {error} is missing") from None
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise ModelError(f"{where}: a field is no number ({first_line(error)})") from None


def _gpt2(described: Mapping[str, Any], where: str) -> DecoderConfig:
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


def _llama(described: Mapping[str, Any], where: str) -> DecoderConfig:
    kind = described["model_type"]
    field = "hidden_activation" if described.get("hidden_activation") else "hidden_act"
    known = _ACTIVATIONS | {"gelu": "gelu"} if kind == "gemma" else _ACTIVATIONS  # an old name for its tangent
    _require(described, where, field, tuple(known))
    activation = known[described.get(field) or ("gelu_new" if kind == "gemma" else "silu")]
    hidden, heads = int(described["hidden_size"]), int(described["num_attention_heads"])
    size = int(described.get("head_dim") or hidden // heads)
    rotary = rotary_rates(described, size, where)
    positions = min(int(described["max_position_embeddings"]), rotary.longest or 1 << 62)
    window = described.get("sliding_window")
    layers = described.get("layer_types") or ["sliding_attention"]
    if window and described.get("use_sliding_window", kind in _WINDOWED) and "sliding_attention" in layers:
        positions = min(positions, int(window))  # as far as the window is everything
    tied = bool(described.get("tie_word_embeddings", kind == "gemma"))
    return DecoderConfig(
        "llama", int(described["num_hidden_layers"]), hidden, heads,
        int(described.get("num_key_value_heads") or heads), size,
        int(described["intermediate_size"]), int(described["vocab_size"]),
        positions, float(described.get("rms_norm_eps", 1e-5)),
        rotary.base, tied and not _embeds_apart(described),
        activation, kind == "qwen3", rotary.rates, rotary.gain,
    )  # fmt: skip


def _embeds_apart(described: Mapping[str, Any]) -> bool:
    """Whether what is embedded is not what the logits are products with, although the weights are stored once."""
    return described.get("model_type") in ("gemma", "granite")


def _require(described: Mapping[str, Any], where: str, field: str, known: tuple[Any, ...]) -> None:
    """Refuse a field that makes the model compute something else."""
    value = described.get(field)
    if value is not None and value not in known:
        candidates = ", ".join(map(str, known))
        raise ModelError(
            f"{where}: field {field} is {value!r:.80}, which is not supported; candidates are {candidates}"
        )


def adapted_weights(
    described: Mapping[str, Any], config: DecoderConfig, weights: Mapping[str, np.ndarray], where: str
) -> dict[str, np.ndarray]:
    """Give weights the names, shapes and values that they have in a decoder of Llama or GPT-2.

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
    # Modules put a prefix before the names of GPT-2's checkpoints.
    adapted = {name.removeprefix("transformer."): value for name, value in weights.items()}
    kind = described.get("model_type")
    if kind == "phi3":
        adapted = _taken_apart(config, adapted)
    try:
        if kind == "gemma":
            adapted = {
                name: np.asarray(value, "float32") + 1 if name.endswith("norm.weight") else value
                for name, value in adapted.items()
            }
            _scale_embedding(adapted, math.sqrt(config.hidden), 1.0)
        elif kind == "granite":
            _scale_embedding(
                adapted, float(described.get("embedding_multiplier", 1)), 1 / float(described.get("logits_scaling", 1))
            )
            scores = float(described.get("attention_multiplier", 1)) * math.sqrt(config.head_size)
            _scale(adapted, ("q_proj.weight", "q_proj.bias"), scores)
            _scale(adapted, ("o_proj.weight", "down_proj.weight"), float(described.get("residual_multiplier", 1)))
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ModelError(f"{where}: a multiplier is no number ({first_line(error)})") from None
    if config.rates is not None and config.rates[-1] == 0:
        adapted = {name: _halves(config, name, value) for name, value in adapted.items()}
    return adapted


def _taken_apart(config: DecoderConfig, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Take projections apart that are stored as one."""
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    parts = {
        "self_attn.qkv_proj.": (("q_proj", "k_proj", "v_proj"), (queries, queries + keys)),
        "mlp.gate_up_proj.": (("gate_proj", "up_proj"), (config.inner,)),
    }
    found: dict[str, np.ndarray] = {}
    for name, value in weights.items():
        stored = next((stored for stored in parts if stored in name), None)
        if stored is None:
            found[name] = value
            continue
        names, ends = parts[stored]
        for part, rows in zip(names, np.split(value, ends), strict=True):
            found[name.replace(stored, f"{stored.split('.')[0]}.{part}.")] = rows
    return found


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


def _halves(config: DecoderConfig, name: str, value: np.ndarray) -> np.ndarray:
    """Put the elements of a head that are turned with each other half a head apart; scores do not see the order."""
    rates, size = config.rates, config.head_size
    assert rates is not None
    if not any(f"self_attn.{part}" in name for part in ("q_proj", "k_proj", "q_norm", "k_norm")):
        return value
    if value.shape[0] % size:
        return value  # a shape that is refused
    turned, half = sum(rate != 0 for rate in rates), size // 2
    left = np.arange(2 * turned, size)
    order = np.concatenate([np.arange(turned), left[: half - turned], np.arange(turned, 2 * turned),
                            left[half - turned :]])  # fmt: skip
    return value.reshape(-1, size, *value.shape[1:])[:, order].reshape(value.shape)
