"""Kinds of checkpoints, one a row: by ``model_type``, what a decoder of it computes, and how its weights are stored.

A row says how the kind differs from Llama. Fields of a ``config.json`` that decide about the structure are read by
small functions at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Described = Mapping[str, Any]
"""A ``config.json``."""


@dataclass(frozen=True)
class Kind:
    """How a kind of checkpoints differs from Llama.

    Attributes
    ----------
    structure : mapping
        Fields of :class:`~tvm_ext.generation.config.DecoderConfig`.
    more : callable, optional
        Gives further ones that fields of the ``config.json`` decide about.
    defaults : mapping
        Fields of the ``config.json`` where it leaves them out.
    only : mapping
        Fields of the ``config.json``, and what they may be; others make the model compute something else.
    grouped : bool
        A joined projection holds queries, key and value of each head of keys one after the other, not one part behind
        the other.
    interleaved : bool
        Elements of a head that are turned with each other are neighbours.
    transposed : bool
        Matrices are stored ``[reduction, columns]``.
    gain : float
        What is added to the gains of norms.
    offset : int
        Rows of the table of positions before the first position.
    pattern : int
        Blocks whose number is a multiple of so many attend to everything, where blocks have windows and no field
        ``layer_types`` says which; 0: all have the window.
    """

    structure: Mapping[str, Any] = field(default_factory=dict)
    more: Callable[[Described], Mapping[str, Any]] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    grouped: bool = False
    interleaved: bool = False
    transposed: bool = False
    gain: float = 0.0
    offset: int = 0
    pattern: int = 0


def _residual(field: str, when: str, *, otherwise: bool) -> Callable[[Described], Mapping[str, Any]]:
    """Blocks whose residual is ``when`` if a field is set."""

    def more(described: Described) -> Mapping[str, Any]:
        found: dict[str, Any] = {"residual": when if described.get(field, otherwise) else "serial"}
        if described.get("qk_layernorm") or described.get("use_qk_norm"):
            found["head_norms"] = "heads"
        return found

    return more


def _head_norms(described: Described) -> Mapping[str, Any]:
    wanted = described.get("qk_layernorm") or described.get("use_qk_norm")
    return {"head_norms": "heads"} if wanted else {}


def _falcon(described: Described) -> Mapping[str, Any]:
    if described.get("new_decoder_architecture"):
        two = described.get("num_ln_in_parallel_attn") in (2, None)
        found: dict[str, Any] = {"residual": "parallel" if two else "shared"}
        kv_heads = int(described.get("num_kv_heads") or described["num_attention_heads"])
    else:
        found = {"residual": "shared" if described.get("parallel_attn", True) else "serial"}
        kv_heads = 1 if described.get("multi_query", True) else int(described["num_attention_heads"])
    if not described.get("alibi"):
        return found | {"kv_heads": kv_heads, "positional": "rotary"}
    size = int(described["hidden_size"]) // int(described["num_attention_heads"])
    return found | {"kv_heads": kv_heads, "positional": "alibi", "slope_gain": size**-0.5, "slopes_rounded": True}


def _own_activation(described: Described) -> Mapping[str, Any]:
    """OPT's networks are as wide as a field says, others are four times as wide as tokens."""
    hidden = int(described.get("hidden_size") or described.get("d_model") or described["n_embd"])
    wide = described.get("intermediate_size") or described.get("n_inner") or described.get("ffn_hidden_size")
    return {"inner": int(wide or 4 * hidden)}


def _falcon_inner(described: Described) -> Mapping[str, Any]:
    return {**_falcon(described), **_own_activation(described)}


def _mpt(described: Described) -> Mapping[str, Any]:
    return {"inner": int(described["d_model"]) * int(described.get("expansion_ratio", 4))}


def _one_key(described: Described) -> Mapping[str, Any]:
    """Starcoder's heads share one key and value if ``multi_query`` is set."""
    return {**_own_activation(described), **({"kv_heads": 1} if described.get("multi_query", True) else {})}


def _experts(described: Described) -> Mapping[str, Any]:
    """Read how many experts there are, and which blocks have them."""
    layers = int(described["num_hidden_layers"])
    step, plain = int(described.get("decoder_sparse_step", 1)), described.get("mlp_only_layers") or []
    mixed = [number not in plain and (number + 1) % step == 0 for number in range(layers)]
    experts = described.get("num_local_experts") or described["num_experts"]
    return {
        "experts": int(experts), "chosen": int(described["num_experts_per_tok"]),
        "expert_inner": int(described.get("moe_intermediate_size") or described["intermediate_size"]),
        "normalised": bool(described.get("norm_topk_prob", False)),
        "plain": None if all(mixed) else tuple(not is_mixed for is_mixed in mixed),
    }  # fmt: skip


def _always_normalised(described: Described) -> Mapping[str, Any]:
    return {**_experts(described), "normalised": True}


def _with_shared(described: Described) -> Mapping[str, Any]:
    return {**_experts(described), "shared_inner": int(described["shared_expert_intermediate_size"])}


_LEARNT = {"norm": "layer", "positional": "learnt", "gated": False}
_LAYERED = {"norm": "layer", "gated": False}
_TANGENT = {"hidden_activation": "gelu_pytorch_tanh"}
_GEMMA = {"activation": "gelu", "norms": "both"}
_CAUSAL = {"use_bidirectional_attention": (False,)}
_UNCLIPPED = {"clip_qkv": ()}

KINDS: Mapping[str, Kind] = {
    "arcee": Kind({"gated": False}, defaults={"hidden_act": "relu2"}),
    "biogpt": Kind(_LEARNT | {"epsilon": 1e-5}, defaults={"tie_word_embeddings": True, "hidden_act": "gelu"},
                   offset=2),
    "bloom": Kind(
        _LAYERED | {"positional": "alibi", "embedding_norm": True}, _own_activation,
        {"tie_word_embeddings": True, "hidden_act": "gelu_new", "max_position_embeddings": 1 << 20},
        {"apply_residual_connection_post_layernorm": (False,)}, grouped=True,
    ),
    "cohere": Kind({"norm": "layer", "residual": "shared"}, _head_norms,
                   {"tie_word_embeddings": True, "layer_norm_eps": 1e-5}, interleaved=True),
    "cohere2": Kind({"norm": "layer", "residual": "shared"}, None,
                    {"tie_word_embeddings": True, "layer_norm_eps": 1e-5, "sliding_window": 4096}, interleaved=True,
                    pattern=4),
    "ernie4_5": Kind(defaults={"tie_word_embeddings": True, "head_dim": 128, "rope_theta": 500000.0},
                     interleaved=True),
    "exaone4": Kind({"norms": "after", "head_norms": "heads"}, pattern=4),
    "falcon": Kind(
        _LAYERED, _falcon_inner, {"tie_word_embeddings": True, "activation": "gelu", "max_position_embeddings": 2048},
        grouped=True,
    ),
    "gemma": Kind({"activation": "gelu"}, None, {"tie_word_embeddings": True} | _TANGENT, _CAUSAL, gain=1.0),
    "gemma2": Kind(
        _GEMMA, None,
        {"tie_word_embeddings": True, "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096,
         "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0} | _TANGENT,
        _CAUSAL, gain=1.0, pattern=2,
    ),
    "gemma3_text": Kind(
        _GEMMA | {"head_norms": "heads"}, None,
        {"tie_word_embeddings": True, "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096,
         "rope_theta": 1e6, "rope_local_base_freq": 1e4} | _TANGENT,
        _CAUSAL, gain=1.0, pattern=6,
    ),
    "glm": Kind(defaults={"partial_rotary_factor": 0.5, "head_dim": 128}, interleaved=True),
    "glm4": Kind({"norms": "both"}, defaults={"partial_rotary_factor": 0.5, "head_dim": 128}, interleaved=True),
    "gpt2": Kind(
        _LEARNT, _own_activation, {"tie_word_embeddings": True, "activation_function": "gelu_new"},
        {"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,), "add_cross_attention": (False,)},
        transposed=True,
    ),
    "gpt_bigcode": Kind(
        _LEARNT, _one_key, {"tie_word_embeddings": True, "activation_function": "gelu_pytorch_tanh"},
        {"scale_attn_weights": (True,), "add_cross_attention": (False,)},
    ),
    "gpt_neo": Kind(_LEARNT, _own_activation, {"tie_word_embeddings": True, "activation_function": "gelu_new",
                                               "window_size": 256}),
    "gpt_neox": Kind(
        _LAYERED, _residual("use_parallel_residual", "parallel", otherwise=True),
        {"rotary_pct": 0.25, "hidden_act": "gelu"}, grouped=True,
    ),
    "gptj": Kind(_LAYERED | {"residual": "shared"}, _own_activation,
                 {"activation_function": "gelu_new", "rotary_dim": 64}, interleaved=True),
    "granite": Kind(),
    "granitemoe": Kind({}, _always_normalised),
    "helium": Kind(interleaved=True),
    "llama": Kind(),
    "ministral": Kind(),
    "mistral": Kind(),
    "mixtral": Kind({}, _always_normalised, {"num_experts_per_tok": 2, "num_local_experts": 8, "rope_theta": 1e6}),
    "mpt": Kind(
        _LAYERED | {"positional": "alibi"}, _mpt, {"tie_word_embeddings": True, "hidden_act": "gelu"},
    ),
    "nemotron": Kind(_LAYERED, defaults={"hidden_act": "relu2", "partial_rotary_factor": 0.5}, gain=1.0),
    "olmo": Kind({"norm": "layer"}, only=_UNCLIPPED),
    "olmo2": Kind({"norms": "after", "head_norms": "whole"}),
    "olmo3": Kind({"norms": "after", "head_norms": "whole"}, defaults={"sliding_window": 4096}, pattern=4),
    "olmoe": Kind({"head_norms": "whole"}, _experts, {"num_experts_per_tok": 8, "num_experts": 64}, _UNCLIPPED),
    "opt": Kind(
        _LEARNT, lambda described: {"inner": int(described["ffn_dim"])},
        {"tie_word_embeddings": True, "activation_function": "relu"},
        {"do_layer_norm_before": (True,), "_remove_final_layer_norm": (False,)}, offset=2,
    ),
    "persimmon": Kind(_LAYERED, _head_norms, {"hidden_act": "relu2", "qk_layernorm": True,
                                              "partial_rotary_factor": 0.5}, grouped=True),
    "phi": Kind(_LAYERED | {"residual": "shared"}, _head_norms,
                {"hidden_act": "gelu_new", "partial_rotary_factor": 0.5}),
    "phi3": Kind(),
    "qwen2": Kind(),
    "qwen2_moe": Kind({}, _with_shared, {"num_experts_per_tok": 4, "num_experts": 60}),
    "qwen3": Kind({"head_norms": "heads"}),
    "qwen3_moe": Kind({"head_norms": "heads"}, _experts, {"num_experts_per_tok": 8, "num_experts": 128}),
    "seed_oss": Kind(),
    "smollm3": Kind(defaults={"tie_word_embeddings": True}),
    "stablelm": Kind({"norm": "layer"}, _residual("use_parallel_residual", "shared", otherwise=False),
                     {"partial_rotary_factor": 0.25}),
    "starcoder2": Kind(_LAYERED, defaults={"tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh"}),
    "vaultgemma": Kind(
        {"activation": "gelu"}, None,
        {"tie_word_embeddings": True, "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096,
         "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0} | _TANGENT,
        gain=1.0, pattern=2,
    ),
}  # fmt: skip
"""The checkpoints that are taken, by ``model_type``."""


WITHOUT_CACHE = (
    "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "lfm2", "mamba", "mamba2", "nemotron_h",
    "qwen3_next", "recurrent_gemma", "rwkv", "xlstm", "zamba", "zamba2",
)  # fmt: skip
"""Kinds some or all of whose blocks keep a state."""


def slopes_of(described: Described, heads: int) -> tuple[float, ...]:
    """Give what ALiBi adds to a score for a position, head by head (Press et al., arXiv:2108.12409, section 3)."""
    if described.get("model_type") == "mpt":
        attention = described.get("attn_config") or {}
        power = 1 << (heads - 1).bit_length()
        slopes = [
            2.0 ** -(number * float(attention.get("alibi_bias_max", 8)) / power) for number in range(1, power + 1)
        ]
        return tuple(slopes if power == heads else (slopes[1::2] + slopes[::2])[:heads])
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * number / power) for number in range(1, power + 1)]
    further = [2.0 ** (-4 * number / power) for number in range(1, 2 * (heads - power), 2)]
    return tuple(slopes + further)
