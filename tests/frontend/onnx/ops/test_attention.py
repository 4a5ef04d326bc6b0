"""Attention and rotary embedding against the onnx package's stored results and onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.onnx.ops.harness import (
    check_stored,
    check_with_onnxruntime,
    import_with_converters,
    node_model,
    run_module,
    stored_cases,
)
from tvm_ext.errors import ModelError, UnsupportedOperatorError

pytest.importorskip("onnxruntime")

DOMAIN = "com.microsoft"
QUICK = (
    "test_attention_3d_gqa_with_past_and_present",
    "test_attention_4d_attn_mask_bool_4d",
    "test_attention_4d_causal_with_past_and_present",
    "test_attention_4d_diff_heads_with_past_and_present_mask3d",
    "test_attention_4d_fp16",
    "test_attention_4d_gqa_softcap",
    "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal",
    "test_attention_23_boolmask_fullymasked_row_nan_robustness",
    "test_attention_24_qk_matmul_output_mode3_softmax_precision",
    "test_attention_local_window_gqa_rank4_mask",
    "test_attention_4d_diff_heads_mask4d_padded_kv",
)
CASES = [
    pytest.param(case, marks=() if case.model_name in QUICK or "rotary" in case.model_name else pytest.mark.slow)
    for case in stored_cases(["attention", "rotaryembedding"])
    if "_expanded" not in case.model_name
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.model_name)
def test_stored_result(case):
    half = any("16" in str(np.asarray(value).dtype) for value in case.data_sets[0][1])
    check_stored(case, atol=2e-2 if half else 1e-5)


def test_quick_cases_exist():
    names = {parameter.values[0].model_name for parameter in CASES}
    assert not set(QUICK) - names


def draw(random, *shape):
    return random.standard_normal(shape).astype("float32")


def check(operator, values, outputs, attributes, constants=()):
    model = node_model(operator, values, outputs, attributes, constants, DOMAIN)
    return check_with_onnxruntime(model, values, atol=1e-4)


MASKS = {
    "none": None,
    "lengths": np.array([4, 2], "int32"),
    "ends and starts": np.array([5, 3, 1, 0], "int32"),
    "keys": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], "int32"),
    "pairs": (np.arange(50).reshape(2, 5, 5) % 3 > 0).astype("int32"),
}


@pytest.mark.parametrize("mask", sorted(MASKS))
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_self_attention_masks(mask, unidirectional):
    random = np.random.default_rng(0)
    values = {
        "input": draw(random, 2, 5, 8),
        "weights": draw(random, 8, 24),
        "bias": draw(random, 24),
        "mask_index": MASKS[mask],
    }
    check("Attention", values, ["output"], {"num_heads": 2, "unidirectional": unidirectional}, ("weights", "bias"))


@pytest.mark.parametrize("mask", ["none", "keys"])
def test_self_attention_with_a_past(mask):
    random = np.random.default_rng(1)
    values = {
        "input": draw(random, 2, 5, 8),
        "weights": draw(random, 8, 24),
        "bias": draw(random, 24),
        "mask_index": None if mask == "none" else np.array([[1] * 7 + [0], [0] + [1] * 7], "int32"),
        "past": draw(random, 2, 2, 2, 3, 4),
    }
    check("Attention", values, ["output", "present"], {"num_heads": 2, "unidirectional": 1}, ("weights", "bias"))


def test_self_attention_with_other_sizes_scale_and_bias():
    random = np.random.default_rng(2)
    values = {
        "input": draw(random, 2, 5, 7),
        "weights": draw(random, 7, 28),
        "bias": draw(random, 28),
        "mask_index": None,
        "past": None,
        "attention_bias": draw(random, 1, 2, 5, 5),
    }
    attributes = {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 12], "scale": 0.3}
    check("Attention", values, ["output"], attributes, ("weights", "bias"))


@pytest.mark.parametrize("kind", ["separate", "cross", "past", "heads first", "biased"])
def test_multi_head_attention(kind):
    random = np.random.default_rng(3)
    batch, queries, keys, heads, size = 2, 5, 5, 2, 4
    width, outputs = heads * size, ["output"]
    values = dict.fromkeys(
        ("query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key", "past_value")
    )
    if kind == "cross":
        keys = 7
    values["query"] = draw(random, batch, queries, width)
    values["key"], values["value"] = draw(random, batch, keys, width), draw(random, batch, keys, width)
    if kind == "heads first":
        values |= {"key": draw(random, batch, heads, keys, size), "value": draw(random, batch, heads, keys, size)}
    elif kind == "past":
        values |= {"past_key": draw(random, batch, heads, 3, size), "past_value": draw(random, batch, heads, 3, size)}
        outputs = ["output", "present_key", "present_value"]
    elif kind == "biased":
        values["bias"] = draw(random, 3 * width)
        values["key_padding_mask"] = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], "int32")
        values["attention_bias"] = draw(random, 1, heads, queries, keys)
    check("MultiHeadAttention", values, outputs, {"num_heads": heads}, ("bias",))


@pytest.mark.parametrize("packed", [("query", "key", "value"), ("key", "value")], ids=len)
def test_packed_tensors_are_taken_apart(packed):
    """The runtime takes them on GPUs only; the same tensors one by one are the reference."""
    random = np.random.default_rng(4)
    values = {name: draw(random, 2, 5, 8) for name in ("query", "key", "value")}
    together = np.stack([values[name].reshape(2, 5, 2, 4) for name in packed], 3)
    joined = {**values, **dict.fromkeys(packed), packed[0]: together}
    attributes = {"num_heads": 2}
    expected = check("MultiHeadAttention", values, ["output"], attributes)
    model = node_model("MultiHeadAttention", joined, ["output"], attributes, domain=DOMAIN)
    given = [value for value in joined.values() if value is not None]
    np.testing.assert_allclose(run_module(import_with_converters(model), given)[0], expected[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("positions", ["first", "each"])
@pytest.mark.parametrize("rank", [3, 4])
def test_rotary_embedding(rank, positions, interleaved):
    random = np.random.default_rng(4)
    angles = random.random((9, 4)).astype("float32")
    values = {
        "input": draw(random, 2, 5, 24) if rank == 3 else draw(random, 2, 3, 5, 8),
        "position_ids": np.array([2]) if positions == "first" else random.integers(0, 9, (2, 5)),
        "cos_cache": np.cos(angles),
        "sin_cache": np.sin(angles),
    }
    check("RotaryEmbedding", values, ["output"], {"interleaved": interleaved}, ("cos_cache", "sin_cache"))


def test_rotary_embedding_of_some_features():
    random = np.random.default_rng(5)
    angles = random.random((9, 2)).astype("float32")
    values = {
        "input": draw(random, 1, 5, 24),
        "position_ids": random.integers(0, 9, (1, 5)),
        "cos_cache": np.cos(angles),
        "sin_cache": np.sin(angles),
    }
    attributes = {"num_heads": 3, "rotary_embedding_dim": 4}
    check("RotaryEmbedding", values, ["output"], attributes, ("cos_cache", "sin_cache"))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"do_rotary": 1}, r"rotary embedding inside \(attribute do_rotary\) is not supported"),
        ({"past_present_share_buffer": 1}, r"a state in a shared buffer .* is not supported"),
    ],
)
def test_refused_attributes(attributes, message):
    values = {"input": np.zeros((1, 2, 4), "float32"), "weights": np.zeros((4, 12), "float32")}
    model = node_model("Attention", values, ["output"], {"num_heads": 2, **attributes}, domain=DOMAIN)
    with pytest.raises(UnsupportedOperatorError, match=message):
        import_with_converters(model)


def test_indivisible_heads_are_named():
    values = {name: np.zeros((1, 2, 6), "float32") for name in "QKV"}
    model = node_model("Attention", values, ["Y"], {"q_num_heads": 4, "kv_num_heads": 4}, opset=23)
    with pytest.raises(ModelError, match=r"input Q has shape \(1, 2, 6\), which 4 heads do not divide"):
        import_with_converters(model)


def test_softmax_is_a_plain_operator():
    """No opaque kernel: layout, fusion and scheduling see every step."""
    values = {name: np.ones((1, 2, 3, 4), "float32") for name in "QKV"}
    mod = import_with_converters(node_model("Attention", values, ["Y"], opset=23))
    assert [variable.name_hint for variable in mod.get_global_vars()] == ["main"]
    assert run_module(mod, list(values.values()))[0].shape == (1, 2, 3, 4)
