"""Checkpoints of several makers: what is computed beside the known blocks, put into their weights and configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.generation.test_generator import require_same
from tvm_ext import Generator
from tvm_ext.errors import ModelError
from tvm_ext.generation.checkpoints import adapted_weights, config_from_checkpoint
from tvm_ext.generation.config import DecoderConfig
from tvm_ext.generation.decoder import Decoder
from tvm_ext.generation.definitions import SIZES, made_up

CONTEXT = 150
NAMES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj")


LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "intermediate_size": 96, "vocab_size": 211, "max_position_embeddings": 512,
    "hidden_act": "silu",
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 48, "n_head": 3, "n_layer": 2, "vocab_size": 211, "n_positions": 160}


def described(**fields: Any) -> dict[str, Any]:
    return LLAMA | fields


def weights_of(seed: int = 0) -> dict[str, np.ndarray]:
    """Make the weights of a small Llama."""
    return {name: value.numpy() for name, value in made_up(SIZES["llama-tiny"], seed).state_dict().items()}


def adapted(fields: dict[str, Any], weights: dict[str, np.ndarray]) -> Decoder:
    config = config_from_checkpoint(fields, "config.json")
    return Decoder(config, adapted_weights(fields, config, weights, "config.json"))


@pytest.mark.parametrize(
    "fields",
    [
        {"head_norms": "heads"},
        {"activation": "gelu", "rotary_gain": 1.25, "rates": [1.0, 0.5, 0.3, 0.1, 0.01, 0.0, 0.0, 0.0]},
    ],
)
def test_greedy_tokens(fields: dict[str, Any]) -> None:
    config = DecoderConfig(**SIZES["llama-tiny"].to_json() | fields)
    model = made_up(config, biases=("qkv",))
    require_same(model, Generator.compile(model, context=CONTEXT), 60)


def test_projections_that_are_stored_as_one() -> None:
    plain, stored = weights_of(), weights_of()
    for number in range(2):
        prefix = f"model.layers.{number}."
        parts = [stored.pop(f"{prefix}self_attn.{part}_proj.weight") for part in "qkv"]
        stored[f"{prefix}self_attn.qkv_proj.weight"] = np.concatenate(parts)
        gates = [stored.pop(f"{prefix}mlp.{part}_proj.weight") for part in ("gate", "up")]
        stored[f"{prefix}mlp.gate_up_proj.weight"] = np.concatenate(gates)
    found = adapted(described(model_type="phi3", tie_word_embeddings=True), stored)
    assert found.weights.keys() == plain.keys()
    for name, value in plain.items():
        np.testing.assert_array_equal(found.weights[name], value)


def test_norms_and_embedding_of_gemma() -> None:
    plain = weights_of()
    stored = {name: value - 1 if name.endswith("norm.weight") else value for name, value in plain.items()}
    found = adapted(described(model_type="gemma", hidden_act="gelu"), stored)
    assert (found.config.activation, found.config.tied) == ("gelu", False)
    table = plain["model.embed_tokens.weight"]
    np.testing.assert_allclose(found.weights["model.embed_tokens.weight"], table * 8, rtol=1e-6)
    np.testing.assert_array_equal(found.weights["lm_head.weight"], table)
    for name in ("model.norm.weight", "model.layers.1.input_layernorm.weight"):
        np.testing.assert_allclose(found.weights[name], plain[name], atol=1e-6)


def test_multipliers_of_granite() -> None:
    plain = weights_of()
    fields = described(
        model_type="granite", embedding_multiplier=12, logits_scaling=8, residual_multiplier=0.22,
        attention_multiplier=0.5, tie_word_embeddings=True,
    )  # fmt: skip
    found = adapted(fields, plain)
    factors = {"self_attn.q_proj": 0.5 * 4, "self_attn.o_proj": 0.22, "mlp.down_proj": 0.22}
    for part in NAMES:
        name = f"model.layers.1.{part}.weight"
        np.testing.assert_allclose(found.weights[name], plain[name] * np.float32(factors.get(part, 1)), rtol=1e-6)
    table = plain["model.embed_tokens.weight"]
    np.testing.assert_allclose(found.weights["lm_head.weight"], table / 8, rtol=1e-6)
    np.testing.assert_allclose(found.weights["model.embed_tokens.weight"], table * 12, rtol=1e-6)
    with pytest.raises(ModelError, match="a multiplier is no number"):
        adapted(fields | {"logits_scaling": 0}, plain)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_heads_only_part_of_which_is_turned(share: float) -> None:
    """Scores of a query and a key are those of the usual order, in which the turned elements come first."""
    plain = weights_of()
    found = adapted(described(partial_rotary_factor=share, tie_word_embeddings=True), plain)
    x = torch.tensor(np.random.default_rng(0).standard_normal((2, 64)).astype("float32"))
    turned = int(16 * share)
    rates = 1e4 ** -(torch.arange(0, turned, 2).float() / turned)

    def turn(part: torch.Tensor, position: int, rates: torch.Tensor) -> torch.Tensor:
        first, second = part.chunk(2, -1)
        cosine, sine = (position * rates).cos(), (position * rates).sin()
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)

    scores = []
    for weights, is_adapted in ((plain, False), (found.weights, True)):
        heads = []
        for row, name, position in ((0, "q_proj", 17), (1, "k_proj", 5)):
            head = x[row] @ torch.tensor(np.asarray(weights[f"model.layers.0.self_attn.{name}.weight"])).T[:, 16:32]
            if is_adapted:
                heads.append(turn(head, position, torch.tensor(found.config.rates)))
            else:
                heads.append(torch.cat([turn(head[:turned], position, rates), head[turned:]]))
        scores.append(float(heads[0] @ heads[1]))
    np.testing.assert_allclose(scores[1], scores[0], rtol=1e-4)


def test_scaled_angles() -> None:
    plain = 1e4 ** -(np.arange(8) / 8)

    def rates(**scaling: Any) -> tuple[np.ndarray, DecoderConfig]:
        config = config_from_checkpoint(described(rope_scaling=scaling), "config.json")
        return np.asarray(config.rates), config

    np.testing.assert_allclose(rates(type="linear", factor=4.0)[0], plain / 4, rtol=1e-5)
    edges = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    found, _ = rates(rope_type="llama3", factor=8.0, **edges)
    waves = 2 * np.pi / plain
    np.testing.assert_allclose(found[waves < 16], plain[waves < 16], rtol=1e-5)
    np.testing.assert_allclose(found[waves > 64], plain[waves > 64] / 8, rtol=1e-5)
    between = (waves > 16) & (waves < 64)
    assert between.any()
    assert np.all((found[between] < plain[between]) & (found[between] > plain[between] / 8))
    found, config = rates(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
    np.testing.assert_allclose([found[0], found[-1]], [plain[0], plain[-1] / 4], rtol=1e-5)
    np.testing.assert_allclose(config.rotary_gain, 0.1 * np.log(4) + 1)
    long = {"short_factor": [2.0] * 8, "long_factor": [9.0] * 8, "original_max_position_embeddings": 128}
    found, config = rates(rope_type="longrope", **long)
    np.testing.assert_allclose(found, plain / 2, rtol=1e-5)
    assert config.positions == 128
    np.testing.assert_allclose(config.rotary_gain, np.sqrt(1 + np.log(4) / np.log(128)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_theta": 0}, "a base or factor that is no positive number"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "a base or factor that is no positive number"),
        ({"rms_norm_eps": float("nan")}, "field epsilon is nan"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "original_max_position_embeddings": 64}},
            "has 1 short factors where 16 elements of a head are turned in 8 pairs",
        ),
    ],
)
def test_numbers_that_make_no_sense(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        config_from_checkpoint(described(**fields), "config.json")


def test_integers_are_no_weights() -> None:
    weights = weights_of() | {"model.norm.weight": np.ones(64, "int8")}
    with pytest.raises(ModelError, match=r"'model.norm.weight' is int8 where floats were expected"):
        Decoder(SIZES["llama-tiny"], weights)


def test_windows() -> None:
    def windows(**fields: Any) -> tuple[int, ...] | None:
        config = config_from_checkpoint(described(sliding_window=64, num_hidden_layers=4, **fields), "config.json")
        assert config.positions == 512
        return config.windows if config.windows is None else tuple(config.windows)

    assert windows(model_type="mistral") == (64,) * 4
    assert windows(model_type="qwen2") is None
    assert windows(model_type="qwen3", use_sliding_window=True, max_window_layers=3) == (0, 0, 0, 64)
    assert windows(model_type="qwen2", use_sliding_window=True, layer_types=["full_attention"] * 4) is None
    assert windows(model_type="gemma2", hidden_act=None) == (64, 0, 64, 0)
    assert windows(model_type="olmo3") == (64, 64, 64, 0)
    assert windows(model_type="olmo3", layer_types=["full_attention", "sliding_attention"] * 2) == (0, 64, 0, 64)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_act": "mish"}, "hidden_act is 'mish', which is not supported; candidates are silu, swish, gelu_pyt"),
        ({"partial_rotary_factor": 0.2}, "partial_rotary_factor is 0.2, so that 3 of the 16 elements"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling is .*candidates are default, linear"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e6}}, "field 'low_freq_factor' is missing"),
        ({"model_type": "mamba2"}, "model_type 'mamba2' keeps a state in place of keys and values"),
        ({"model_type": "gemma9"}, "model_type 'gemma9' is not supported; candidates are .*gemma2"),
        ({"hidden_size": "wide"}, "a field is no number"),
        ({"rope_parameters": "default"}, "a field is no number"),
        ({"hidden_size": 0}, "field hidden is 0"),
        (GPT2 | {"activation_function": "tanh"}, "activation_function is 'tanh'"),
        (GPT2 | {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        (GPT2 | {"num_attention_heads": 0}, "a field is no number"),
    ],
)
def test_checkpoints_that_compute_something_else(fields: dict[str, object], message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | fields))
    with pytest.raises(ModelError, match=message):
        Decoder.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("[1, 2]")
    with pytest.raises(ModelError, match="holds no object of fields"):
        Decoder.from_folder(tmp_path)


def test_the_base_of_angles_is_read_where_it_stands() -> None:
    assert config_from_checkpoint(LLAMA, "").rotary_base == 1e4
    assert config_from_checkpoint(LLAMA | {"rope_theta": 5e5}, "").rotary_base == 5e5
    angles = {"rope_type": "default", "rope_theta": 1e6}
    assert config_from_checkpoint(LLAMA | {"rope_parameters": angles}, "").rotary_base == 1e6
