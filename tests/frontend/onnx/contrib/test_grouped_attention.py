"""Attention over a cache with a length for each sequence, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import tvm_ext
from tvm_ext.errors import InputError, ModelError, UnsupportedOperatorError

onnxruntime = pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(11)
ROWS = 64  # of the tables of angles


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def model_of(
    attributes: str = "",
    heads: int = 4,
    groups: int = 2,
    size: int = 16,
    packed: bool = False,
    past: str = "p",
    kept: str = "u",
    extra: str = "",
    total: np.ndarray | None = None,
) -> onnx.ModelProto:
    """One node, its sizes open; the total length is a number that is fed, or a constant."""
    half = size // 2 if "rotary=1" in attributes else 0
    width = (heads + 2 * groups if packed else heads) * size
    declared = [f"float[b,s,{width}] q"]
    declared += [] if packed else [f"float[b,s,{groups * size}] k", f"float[b,s,{groups * size}] v"]
    declared += [f"float[b,{groups},{past},{size}] pk", f"float[b,{groups},{past},{size}] pv"] if past else []
    declared += ["int32[b] l"] + ([] if total is not None else ["int32 t"])
    names = ["q", "" if packed else "k", "" if packed else "v", *(["pk", "pv"] if past else ["", ""]), "l", "t"]
    names += ["c", "d"] if half else ["", ""]
    results = ", ".join(f"float[b,{groups},{kept},{size}] {name}" for name in ("nk", "nv"))
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g ({", ".join(declared)}) => (float[b,s,{heads * size}] y, {results}) {{
        y, nk, nv = com.microsoft.GroupQueryAttention<num_heads={heads}, kv_num_heads={groups}{attributes}>(
            {", ".join(names)}{extra}) }}"""
    )
    tables = {name: normal(ROWS, half) for name in "cd"} if half else {}
    constants = tables if total is None else {**tables, "t": total}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in constants.items())
    return model


def feeds_of(
    model: onnx.ModelProto, b: int, s: int, p: int, lengths: list[int] | None = None, t: int = 0
) -> dict[str, np.ndarray]:
    sizes = {"b": b, "s": s, "p": p, "t": t}
    feeds = {}
    for item in model.graph.input:
        dims = item.type.tensor_type.shape.dim
        feeds[item.name] = normal(*(sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in dims))
    feeds["l"] = np.array([s + p - 1] * b if lengths is None else lengths, "int32")
    return feeds | ({"t": np.array(s + p, "int32")} if "t" in feeds else {})


def compare(compiled: Any, model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    """Compare the rows and positions that sequences have; onnxruntime says nothing about padding behind them."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found, expected = compiled.run(feeds).values(), session.run(None, feeds)
    queries = feeds["q"].shape[1]
    for sequence, last in enumerate(feeds["l"].tolist()):
        for index, (have, want) in enumerate(zip(found, expected, strict=True)):
            have, want = have[sequence], want[sequence]
            assert have.shape == want.shape
            ends = np.s_[: min(queries, last + 1)] if index == 0 else np.s_[:, : last + 1]
            np.testing.assert_allclose(have[ends], want[ends], rtol=1e-4, atol=1e-5)


RANGES = {"b": (1, 4), "s": (1, 20), "p": (0, 40)}


@pytest.mark.parametrize(
    ("attributes", "heads", "groups", "packed"),
    [
        (", do_rotary=1", 4, 2, False),
        (", do_rotary=1, rotary_interleaved=1, scale=0.2", 3, 1, True),
        (", softcap=2.0, local_window_size=3", 3, 1, False),
    ],
)
def test_open_sizes(attributes: str, heads: int, groups: int, packed: bool) -> None:
    model = model_of(attributes, heads, groups, packed=packed)
    compiled = tvm_ext.compile(model, dynamic=RANGES)
    for b, s, p in ((1, 1, 0), (1, 7, 0), (3, 17, 0), (1, 1, 5), (3, 1, 31), (1, 7, 5), (1, 17, 31)):
        compare(compiled, model, feeds_of(model, b, s, p))
    compare(compiled, model, feeds_of(model, 3, 7, 0, [6, 2, 0]))  # prompts with padding behind them
    compare(compiled, model, feeds_of(model, 3, 1, 5, [5, 2, 0]))  # caches with as much
    compare(compiled, model, feeds_of(model, 1, 7, 31, [20]))


def test_fixed_sizes_and_biases() -> None:
    model = model_of(", do_rotary=1", extra=", , a", total=np.array([12], "int32"))
    model.graph.input.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [1, 4, "s", 12]))
    feeds = feeds_of(model, 1, 7, 5)
    shapes = {name: value.shape for name, value in feeds.items()}
    compare(tvm_ext.compile(model, input_shapes=shapes), model, feeds)
    model.graph.initializer[-1].CopyFrom(onnx.numpy_helper.from_array(np.array([11], "int32"), "t"))
    with pytest.raises(ModelError, match="total_sequence_length is 11, the past and the new tokens are 12"):
        tvm_ext.compile(model, input_shapes=shapes)


def test_prompts_without_a_cache() -> None:
    model = model_of(past="", heads=3, groups=3)
    compiled = tvm_ext.compile(model, dynamic={"b": (1, 3), "s": (1, 20)})
    for b, s in ((1, 1), (3, 17)):
        compare(compiled, model, feeds_of(model, b, s, 0))


def test_cache_of_the_maximal_length() -> None:
    model = model_of(", do_rotary=1", past="20", kept="20", total=np.array([12], "int32"))
    compiled = tvm_ext.compile(model, dynamic={"b": (1, 3), "s": (1, 20)})
    for b, s, lengths in ((2, 1, [11, 4]), (1, 7, [11]), (3, 12, [11, 5, 0])):
        compare(compiled, model, feeds_of(model, b, s, 0, lengths))


def test_cache_of_the_maximal_length_and_a_mask_that_grows() -> None:
    """The extent of the mask varies and the past has a fixed number of places, so that these are filled up."""
    model = model_of(", do_rotary=1", past="20", kept="20")
    total = next(item for item in model.graph.input if item.name == "t")
    total.CopyFrom(onnx.helper.make_tensor_value_info("mask", onnx.TensorProto.FLOAT, ["b", "t"]))
    nodes = onnx.parser.parse_graph(
        "g (float[b,t] mask) => (int32 t) { e = Shape(mask) i = Gather(e, one) t = Cast<to=6>(i) }"
    )
    for place, node in enumerate(nodes.node):
        model.graph.node.insert(place, node)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1), "one"))
    compiled = tvm_ext.compile(model, dynamic={"b": (1, 3), "s": (1, 20), "t": (1, 60)})
    for b, s, t, lengths in ((2, 1, 12, [11, 4]), (1, 7, 7, [6]), (1, 5, 20, [19])):
        feeds = feeds_of(model, b, s, 0, lengths, t)
        compare(compiled, model, feeds)
    with pytest.raises(InputError, match="seqlens_k must hold numbers from 0 to below 20"):
        compiled.run(feeds | {"l": np.array([20], "int32")})


def test_lengths_that_do_not_fit_end_the_run() -> None:
    model = model_of(", do_rotary=1")
    compiled = tvm_ext.compile(model, dynamic={"b": (1, 3), "s": (1, 9), "p": (0, 90)})
    feeds = feeds_of(model, 2, 1, 5)
    for wrong in ({"l": np.array([5, 6], "int32")}, {"l": np.array([-1, 5], "int32")}, {"t": np.array(5, "int32")}):
        with pytest.raises(InputError, match=r"total_sequence_length must be p \+ s.* seqlens_k hold numbers"):
            compiled.run(feeds | wrong)
    with pytest.raises(InputError, match=r"below .* and 64"):
        compiled.run(feeds_of(model, 1, 1, 64))


@pytest.mark.parametrize(
    ("attributes", "extra", "error", "message"),
    [
        (", smooth_softmax=1", "", UnsupportedOperatorError, "attribute smooth_softmax is 1, only 0 is supported"),
        (', k_quant_type="PER_TENSOR"', "", UnsupportedOperatorError, "attribute k_quant_type is PER_TENSOR"),
        ("", ", , , sink", UnsupportedOperatorError, "input head_sink is not supported"),
        (", do_rotary=1", "", ModelError, "cos_cache or sin_cache is not given"),
    ],
)
def test_what_is_refused(attributes: str, extra: str, error: type[Exception], message: str) -> None:
    model = model_of(attributes, extra=extra)
    if extra:
        model.graph.initializer.append(onnx.numpy_helper.from_array(normal(4), "sink"))
    if error is ModelError:
        del model.graph.node[0].input[7:]
    with pytest.raises(error, match=message):
        tvm_ext.compile(model, dynamic=RANGES)


def test_block_of_a_decoder() -> None:
    """As onnxruntime-genai exports it: lengths are sums of a mask, whose extent is the total length."""
    weights = {"one": np.array([1]), "axis": np.array(1), "table": normal(50, 64), "g": normal(64), "h": normal(64)}
    weights |= {"c": np.cos(normal(ROWS, 8)), "d": np.sin(normal(ROWS, 8))}

    def product(name: str, depth: int, columns: int) -> str:
        weights[f"{name}_b"] = RNG.integers(0, 256, (columns, depth // 32, 16)).astype("uint8")
        weights[f"{name}_s"] = (RNG.random(columns * depth // 32) / 20).astype("float32")
        return f"com.microsoft.MatMulNBits<K={depth}, N={columns}, bits=4, block_size=32>"

    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (int64[b,s] ids, int64[b,t] mask, float[b,2,p,16] pk, float[b,2,p,16] pv)
        => (float[b,s,50] y, float[b,2,t,16] nk, float[b,2,t,16] nv) {{
        x = Gather(table, ids)
        sums = ReduceSum<keepdims=0>(mask, one)
        last = Sub(sums, one)
        l = Cast<to=6>(last)
        shape = Shape(mask)
        long = Gather(shape, axis)
        total = Cast<to=6>(long)
        a = SimplifiedLayerNormalization<axis=-1, epsilon=0.00001>(x, g)
        qkv = {product("qkv", 64, 128)}(a, qkv_b, qkv_s)
        o, nk, nv = com.microsoft.GroupQueryAttention<num_heads=4, kv_num_heads=2, do_rotary=1>(
            qkv, , , pk, pv, l, total, c, d)
        w = {product("w", 64, 64)}(o, w_b, w_s)
        f, , , r = com.microsoft.SkipSimplifiedLayerNormalization<epsilon=0.00001>(x, w, h)
        u = {product("u", 64, 96)}(f, u_b, u_s)
        gate = Sigmoid(u)
        gated = Mul(gate, u)
        z = {product("z", 96, 64)}(gated, z_b, z_s)
        n = com.microsoft.SkipSimplifiedLayerNormalization<epsilon=0.00001>(r, z, g)
        y = {product("y", 64, 50)}(n, y_b, y_s) }}"""
    )
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in weights.items())
    ranges = {"b": (1, 4), "s": (1, 20), "p": (0, 40), "t": (1, 60)}
    compiled = tvm_ext.compile(model, dynamic=ranges)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for b, s, p in ((1, 7, 0), (1, 1, 7), (3, 17, 0), (3, 1, 31)):
        feeds = {"ids": RNG.integers(0, 50, (b, s)), "pk": normal(b, 2, p, 16), "pv": normal(b, 2, p, 16)}
        feeds["mask"] = np.ones((b, s + p), "int64")
        if s == 1:
            feeds["mask"][1:, 5:] = 0
        for found, expected in zip(compiled.run(feeds).values(), session.run(None, feeds), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=2e-3)
    with pytest.raises(InputError, match=r"total_sequence_length must be p \+ s"):
        compiled.run(feeds | {"mask": feeds["mask"][:, 1:]})
