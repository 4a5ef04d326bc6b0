"""Decoders of transformers, where it is installed, against the plain torch that compiled ones are compared with.

A small model of each kind of checkpoints, its weights made up: its logits are those of the decoder that is read of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tvm_ext.bench.decoder_peers import module_of
from tvm_ext.generation.decoder import Decoder
from tvm_ext.generation.kinds import KINDS

SMALL = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "head_dim": 16,
    "intermediate_size": 96, "vocab_size": 211, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
GPT = {"n_embd": 96, "n_head": 6, "n_layer": 2, "vocab_size": 211, "n_positions": 256, "bos_token_id": 1}
ALIKE = {"hidden_size": 96, "n_head": 6, "num_attention_heads": 6, "vocab_size": 211, "num_hidden_layers": 2}
WINDOWS = {"sliding_window": 20, "num_hidden_layers": 7}
CASES: list[tuple[str, dict[str, Any]]] = [
    *((kind, {}) for kind in ("arcee", "cohere2", "exaone4", "gemma", "gemma3_text", "glm", "glm4", "granite", "helium",
                              "ministral", "mistral", "nemotron", "olmo", "olmo2", "olmo3", "phi", "phi3", "qwen3",
                              "seed_oss", "smollm3", "starcoder2", "vaultgemma", "ernie4_5", "stablelm", "cohere")),
    *((kind, WINDOWS) for kind in ("cohere2", "exaone4", "gemma2", "gemma3_text", "ministral", "mistral", "olmo3",
                                   "starcoder2", "vaultgemma")),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("gemma2", {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0, "query_pre_attn_scalar": 24}),
    ("qwen2", {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 20}),
    ("phi", {"qk_layernorm": True}), ("cohere", {"use_qk_norm": True, "logit_scale": 0.5}),
    ("stablelm", {"use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": True}),
    ("persimmon", {"num_key_value_heads": 4}), ("gpt_neox", {"num_key_value_heads": 4}),
    ("gpt_neox", {"num_key_value_heads": 4, "use_parallel_residual": False}), ("biogpt", {"num_key_value_heads": 4}),
    ("opt", {"ffn_dim": 96, "word_embed_proj_dim": 64, "num_key_value_heads": 4}),
    ("falcon", ALIKE | {"multi_query": True}),
    ("falcon", ALIKE | {"new_decoder_architecture": True, "num_kv_heads": 3}),
    ("falcon", ALIKE | {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}),
    ("bloom", ALIKE | {"n_layer": 2}), ("mpt", {"d_model": 96, "n_heads": 6, "n_layers": 2, "vocab_size": 211}),
    ("gpt2", GPT), ("gpt_bigcode", GPT), ("gptj", GPT | {"rotary_dim": 8}),
    ("gpt_neo", {"hidden_size": 64, "num_heads": 4, "num_layers": 2, "attention_types": [[["global", "local"], 1]],
                 "vocab_size": 211, "max_position_embeddings": 256, "window_size": 20}),
    ("mixtral", {"num_local_experts": 5}), ("granitemoe", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    ("olmoe", {"num_experts": 6, "num_experts_per_tok": 3}),
    ("qwen2_moe", {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40,
                   "shared_expert_intermediate_size": 56}),
    ("qwen3_moe", {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "norm_topk_prob": True,
                   "mlp_only_layers": [1]}),
]  # fmt: skip


def model_of(kind: str, fields: dict[str, Any]) -> Any:
    """Make a model whose gains and biases are none that a norm could do without."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    own = "hidden_size" in fields or "n_embd" in fields or "d_model" in fields
    config = transformers.AutoConfig.for_model(kind, **(fields if own else SMALL | fields))
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval().float()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.ndim == 1:
                value.add_(torch.empty_like(value).normal_(0, 0.1, generator=generator))
            else:
                scale = 0.04 if "emb" in name or "wte" in name or "wpe" in name else 1.6 * value.shape[-1] ** -0.5
                value.normal_(0, scale, generator=generator)
    return model


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "fields"), CASES, ids=[kind for kind, _ in CASES])
def test_logits(kind: str, fields: dict[str, Any]) -> None:
    model = model_of(kind, fields)
    decoder = module_of(Decoder.from_module(model))
    ids = torch.tensor(np.random.default_rng(0).integers(3, 211, (1, 90)))
    with torch.no_grad():
        expected, found = model(input_ids=ids, use_cache=False).logits[0], decoder(ids)[0][0]
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-5 * float(expected.std()))


def test_every_kind_is_compared() -> None:
    assert {kind for kind, _ in CASES} == set(KINDS)
