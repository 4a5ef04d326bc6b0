"""Attention and rotary embedding of open batches and lengths, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import tvm_ext
from tvm_ext.errors import InputError

RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def model_of(text: str, **initializers: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]>\ng {text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in initializers.items())
    return model


def compare(model: onnx.ModelProto, ranges: dict[str, Any], sizes: list[dict[str, np.ndarray]]) -> Any:
    compiled = tvm_ext.compile(model, dynamic=ranges)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for feeds in sizes:
        for found, expected in zip(compiled.run(feeds).values(), session.run(None, feeds), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    return compiled


def test_grouped_heads_masks_and_caps() -> None:
    model = model_of(
        """(float[b,4,s,8] q, float[b,2,t,8] k, float[b,2,t,8] v, bool[s,t] m) => (float[b,4,s,8] y, float[b,4,s,8] z) {
        y = Attention(q, k, v, m)
        z = Attention<is_causal=1, softcap=5.0>(q, k, v) }"""
    )

    def feeds(b: int, s: int, t: int) -> dict[str, np.ndarray]:
        seen = RNG.random((s, t)) > 0.5
        seen[:, 0] = True
        return {"q": normal(b, 4, s, 8), "k": normal(b, 2, t, 8), "v": normal(b, 2, t, 8), "m": seen}

    sizes = [feeds(1, 1, 1), feeds(3, 17, 33), feeds(2, 7, 3)]
    compiled = compare(model, {"b": (1, 3), "s": (1, 40), "t": (1, 40)}, sizes)
    hidden = sizes[1] | {"m": np.zeros((17, 33), bool)}
    assert not compiled.run(hidden)["y"].any()
    with pytest.raises(InputError, match="dimension 2 must be 33"):
        compiled.run(sizes[1] | {"v": normal(3, 2, 32, 8)})


def test_cache() -> None:
    model = model_of(
        """(float[b,s,32] q, float[b,s,16] k, float[b,s,16] v, float[b,2,p,8] pk, float[b,2,p,8] pv)
        => (float[b,s,32] y, float[b,2,t,8] nk, float[b,2,t,8] nv) {
        y, nk, nv = Attention<is_causal=1, q_num_heads=4, kv_num_heads=2>(q, k, v, , pk, pv) }"""
    )
    sizes = [
        {"q": normal(b, s, 32), "k": normal(b, s, 16), "v": normal(b, s, 16)}
        | {name: normal(b, 2, p, 8) for name in ("pk", "pv")}
        for b, s, p in ((1, 1, 0), (2, 9, 0), (2, 1, 31), (1, 5, 7))
    ]
    compare(model, {"b": (1, 3), "s": (1, 40), "p": (0, 40)}, sizes)


def test_rotary_embedding() -> None:
    model = model_of(
        """(float[b,s,32] x, int64[b,s] i, int64[1] first) => (float[b,s,32] y, float[b,s,32] z) {
        y = RotaryEmbedding<num_heads=4>(x, c, d, i)
        z = com.microsoft.RotaryEmbedding<num_heads=4, interleaved=1>(x, first, c, d) }""",
        c=normal(50, 4),
        d=normal(50, 4),
    )
    sizes = [
        {"x": normal(b, s, 32), "i": RNG.integers(0, 50, (b, s)), "first": np.array([3])}
        for b, s in ((1, 1), (3, 40), (2, 7))
    ]
    compare(model, {"b": (1, 3), "s": (1, 40)}, sizes)


def test_numbers_of_keys() -> None:
    model = model_of(
        """(float[b,s,12] x, int32[b] m) => (float[b,s,24] y) {
        y = com.microsoft.Attention<num_heads=3, unidirectional=1>(x, w, c, m) }""",
        w=normal(12, 72) / 3,
        c=normal(72),
    )
    sizes = [
        {"x": normal(b, s, 12), "m": RNG.integers(1, s + 1, b).astype("int32")} for b, s in ((1, 1), (3, 17), (2, 40))
    ]
    compare(model, {"b": (1, 3), "s": (1, 40)}, sizes)


def test_masks_over_a_cache() -> None:
    model = model_of(
        """(float[b,s,12] x, int32[b,t] m, float[2,b,3,p,8] past) => (float[b,s,24] y, float[2,b,3,u,8] kept) {
        y, kept = com.microsoft.Attention<num_heads=3, unidirectional=1>(x, w, c, m, past) }""",
        w=normal(12, 72) / 3,
        c=normal(72),
    )
    sizes = []
    for b, s, p in ((1, 1, 0), (3, 17, 5), (2, 1, 20)):
        seen = np.maximum(RNG.integers(0, 2, (b, s + p)), np.arange(s + p) == 0).astype("int32")
        sizes.append({"x": normal(b, s, 12), "m": seen, "past": normal(2, b, 3, p, 8)})
    compiled = compare(model, {"b": (1, 3), "s": (1, 40), "p": (0, 40), "t": (1, 80)}, sizes)
    with pytest.raises(InputError, match="fit together"):
        compiled.run(sizes[1] | {"m": sizes[1]["m"][:, 1:]})


def test_projected_heads() -> None:
    model = model_of(
        """(float[b,s,24] q, float[b,t,24] k, float[b,t,24] v, float[72] c, int32[b,t] m) => (float[b,s,24] y) {
        y = com.microsoft.MultiHeadAttention<num_heads=3>(q, k, v, c, m) }"""
    )
    sizes = []
    for b, s, t in ((1, 1, 1), (3, 17, 33), (2, 7, 3)):
        kept = np.maximum(RNG.integers(0, 2, (b, t)), np.arange(t) == 0).astype("int32")
        sizes.append({"q": normal(b, s, 24), "k": normal(b, t, 24), "v": normal(b, t, 24), "c": normal(72), "m": kept})
    compare(model, {"b": (1, 3), "s": (1, 40), "t": (1, 40)}, sizes)
