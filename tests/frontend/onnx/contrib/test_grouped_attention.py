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


def feeds_of(model: onnx.ModelProto, b: int, s: int, p: int, lengths: list[int] | None = None) -> dict[str, np.ndarray]:
    sizes = {"b": b, "s": s, "p": p}
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
