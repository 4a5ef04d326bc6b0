"""Names of weights as checkpoints have them, and as a decoder has them: those of Llama, with further parts."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

_PREFIX = re.compile(
    r"^(model\.language_model|language_model\.model|model\.decoder|model|transformer|gpt_neox|biogpt)\."
)
_BLOCK = re.compile(r"^(?:layers|h|blocks)\.(\d+)\.(.+?)(\.weight|\.bias|)$")
_NO_WEIGHTS = re.compile(
    r"(\.(attn|attention)\.(bias|masked_bias)|\.rotary_emb\.[a-z_]+)$|^(vision_tower|multi_modal_projector|model\.vision_tower|"
    r"model\.multi_modal_projector)\."
)
"""Tensors that checkpoints hold and that are no weights of the decoder: masks, rates of angles, what reads pictures."""

_TOP = {
    "embed_tokens": ("wte", "word_embeddings", "embed_in"),
    "embed_positions": ("wpe",),
    "embed_norm": ("word_embeddings_layernorm",),
    "norm": ("ln_f", "final_layer_norm", "final_layernorm", "norm_f", "layer_norm"),
}
_HEAD = {"embed_out": "lm_head", "output_projection": "lm_head"}
_PARTS = {
    "input_layernorm": ("ln_1", "ln_attn", "norm_1", "self_attn_layer_norm"),
    "post_attention_layernorm": ("ln_2", "ln_mlp", "norm_2", "final_layer_norm", "pre_feedforward_layernorm"),
    "self_attn.norm": ("post_self_attn_layernorm",),
    "mlp.norm": ("post_mlp_layernorm", "post_feedforward_layernorm"),
}
_ATTENTION = re.compile(r"^(attention|self_attention|attn\.attention|attn|self_attn)\.(.+)$")
_IN_ATTENTION = {
    "qkv_proj": ("query_key_value", "Wqkv", "c_attn"),
    "o_proj": ("dense", "out_proj", "c_proj"),
    "q_norm": ("q_layernorm",),
    "k_norm": ("k_layernorm",),
}
_NETWORK = re.compile(r"^(?:(?:mlp|ffn)\.)?([a-z0-9_]+)$")
_IN_NETWORK = {
    "up_proj": ("fc1", "c_fc", "fc_in", "dense_h_to_4h"),
    "down_proj": ("fc2", "c_proj", "fc_out", "dense_4h_to_h"),
}


_MIXTURE = re.compile(r"^(?:mlp|block_sparse_moe)\.(.+)$")
_IN_MIXTURE = {
    "router": ("gate", "router.layer"),
    "experts.gate_up_proj": ("input_linear",),
    "experts.down_proj": ("output_linear",),
    "shared_gate": ("shared_expert_gate",),
}
_ONE_EXPERT = re.compile(r"^experts\.(\d+)\.(w[123]|gate_proj|up_proj|down_proj)$")
_OF_EXPERT = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def _turned_around(table: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    return {old: new for new, names in table.items() for old in names}


_TOP_OF, _PART_OF = _turned_around(_TOP), _turned_around(_PARTS)
_MIXTURE_OF = _turned_around(_IN_MIXTURE)
_WHOLE = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
"""Weights of all experts, which have no name of their own behind them."""
_ATTENTION_OF, _NETWORK_OF = _turned_around(_IN_ATTENTION), _turned_around(_IN_NETWORK)


def named(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Give weights the names that a decoder has them under; a name that is not known stays as it is."""
    # With a norm behind the network, the one that Llama has before it stands behind attention.
    behind = any(name.endswith("post_feedforward_layernorm.weight") for name in weights)
    return {_name(name, behind): value for name, value in weights.items() if not _NO_WEIGHTS.search(name)}


def _name(name: str, behind: bool) -> str:
    name = name.removeprefix("language_model.") if name.startswith("language_model.lm_head") else name
    stripped = _PREFIX.sub("", name)
    block = _BLOCK.match(stripped)
    if block is not None:
        number, part, end = block.groups()
        return f"model.layers.{number}.{_part(part, behind)}{end if _part(part, behind) not in _WHOLE else ''}"
    module, _, end = stripped.rpartition(".")
    if module in _HEAD or module == "lm_head":
        return f"{_HEAD.get(module, module)}.{end}"
    known = _TOP_OF.get(module, module)
    return f"model.{known}.{end}" if known in _TOP else name


def _part(part: str, behind: bool) -> str:
    if behind and part == "post_attention_layernorm":
        return "self_attn.norm"
    if part in _PARTS or part in _PART_OF:
        return _PART_OF.get(part, part)
    attention = _ATTENTION.match(part)
    if attention is not None:
        head, _, rest = attention[2].partition(".norms.")  # a norm for each head
        head = _ATTENTION_OF.get(head, head)
        return f"self_attn.{head}.norms.{rest}" if rest else f"self_attn.{head}"
    network = _NETWORK.match(part)
    if network is not None and network[1] in (*_IN_NETWORK, *_NETWORK_OF, "gate_proj", "gate_up_proj"):
        return f"mlp.{_NETWORK_OF.get(network[1], network[1])}"
    mixture = _MIXTURE.match(part)
    if mixture is None:
        return part
    expert = _ONE_EXPERT.match(mixture[1])
    if expert is not None:
        return f"mlp.experts.{expert[1]}.{_OF_EXPERT.get(expert[2], expert[2])}"
    return f"mlp.{_MIXTURE_OF.get(mixture[1], mixture[1]).replace('shared_expert.', 'shared.')}"
