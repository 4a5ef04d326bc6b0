"""Attention of open lengths is NumPy's, for awkward lengths and none at all, in the layouts that models have."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import tvm_ext
from tvm_ext.layout.relax.open_attention import open_attention
from tvm_ext.target import resolve_target

LENGTHS = (0, 1, 3, 7, 17, 31, 33, 127)


def module(size: int, columns: int, dtype: str, mask: str = "", apart: bool = False) -> tvm.IRModule:
    """Attention of 2 heads: of ``[b, seq, 2, size]`` through transposes, or of heads that lie ``apart``."""
    b, m, t = (tirx.Var(name, "int64") for name in "bmt")
    heads = tirx.IntImm("int64", 2)

    def shape(length: tirx.Var, width: int) -> list[object]:
        return [b, heads, length, width] if apart else [b, length, heads, width]

    query, key, value = (
        relax.Var(name, relax.TensorType(shape(length, width), dtype))
        for name, length, width in (("q", m, size), ("k", t, size), ("v", t, columns))
    )
    shapes = {"rows": [m, t], "batch": [b, 1, 1, t], "chosen": [b, 1, m, t]}
    given = [relax.Var("mask", relax.TensorType(shapes[mask], "bool" if mask == "chosen" else dtype))] if mask else []
    builder = relax.BlockBuilder()
    with builder.function("main", [query, key, value, *given]):
        with builder.dataflow():
            parts = [query, key, value]
            if not apart:
                parts = [builder.emit(relax.op.permute_dims(part, [0, 2, 1, 3])) for part in parts]
            turned = builder.emit(relax.op.permute_dims(parts[1], [0, 1, 3, 2]))
            scores = builder.emit(relax.op.matmul(parts[0], turned))
            scores = builder.emit(relax.op.multiply(scores, relax.const(0.25, dtype)))
            if mask == "chosen":
                scores = builder.emit(relax.op.where(given[0], scores, relax.const(-1e9, dtype)))
            elif mask:
                scores = builder.emit(relax.op.add(scores, given[0]))
            shares = builder.emit(relax.op.nn.softmax(scores, axis=-1))
            result = builder.emit(relax.op.matmul(shares, parts[2]))
            result = builder.emit_output(result if apart else relax.op.permute_dims(result, [0, 2, 1, 3]))
        builder.emit_func_output(result)
    return builder.get()


def expected(query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray | None, apart: bool) -> np.ndarray:
    if not apart:
        query, key, value = (part.transpose(0, 2, 1, 3) for part in (query, key, value))
    scores = 0.25 * query.astype("float64") @ key.transpose(0, 1, 3, 2)
    if mask is not None:
        scores = np.where(mask, scores, -1e9) if mask.dtype == bool else scores + mask
    with np.errstate(invalid="ignore"):
        largest = scores.max(-1, keepdims=True) if scores.shape[-1] else 0
        weights = np.exp(scores - largest)
        result = (weights / weights.sum(-1, keepdims=True)) @ value
    return result if apart else result.transpose(0, 2, 1, 3)


def compared(mod: tvm.IRModule, size: int, columns: int, dtype: str, mask: str, apart: bool) -> None:
    model = tvm_ext.compile(mod)
    rng = np.random.default_rng(size)
    pairs = [(length, length) for length in LENGTHS] + [(1, 33), (17, 0), (0, 5), (9, 1), (300, 65), (10, 16), (11, 32)]
    for rows, positions in pairs:

        def drawn(length: int, width: int) -> np.ndarray:
            shape = (2, 2, length, width) if apart else (2, length, 2, width)
            return rng.standard_normal(shape).astype(dtype)

        given = [drawn(rows, size), drawn(positions, size), drawn(positions, columns)]
        masks = {"rows": (rows, positions), "batch": (2, 1, 1, positions), "chosen": (2, 1, rows, positions)}
        added = None
        if mask:
            added = rng.standard_normal(masks[mask]).astype(dtype)
            added = added > -1 if mask == "chosen" else added
            given.append(added)
        found = model.run(given)["output"]
        np.testing.assert_allclose(found, expected(*given[:3], added, apart), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "columns", "dtype", "mask", "apart"),
    [
        (8, 8, "float32", "", False),
        (16, 32, "float32", "rows", False),
        (5, 19, "float32", "batch", True),
        (33, 48, "float32", "chosen", False),
        (7, 3, "float64", "rows", True),
    ],
)
def test_lengths(size: int, columns: int, dtype: str, mask: str, apart: bool) -> None:
    mod = module(size, columns, dtype, mask, apart)
    with resolve_target(None):
        assert "open_attention" in [var.name_hint for var in open_attention()(mod).get_global_vars()]
    compared(mod, size, columns, dtype, mask, apart)


def test_nan_and_rows_that_see_nothing() -> None:
    model = tvm_ext.compile(module(8, 8, "float32", "rows"))
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((1, length, 2, 8)).astype("float32") for length in (11, 20, 20))
    mask = np.zeros((11, 20), "float32")
    mask[3] = -np.inf
    mask[5, 1:] = -np.inf
    query[0, 9, 1, 2] = np.nan
    found = model.run([query, key, value, mask])["output"]
    assert np.isnan(found[0, 3]).all()
    assert np.isnan(found[0, 9, 1]).all()
    np.testing.assert_allclose(found[0, 5], value[0, 0], rtol=1e-5)
    rest = [row for row in range(11) if row not in (3, 9)]
    np.testing.assert_allclose(found[0, rest], expected(query, key, value, mask, False)[0, rest], rtol=1e-4, atol=1e-5)


def test_products_that_are_no_attention_are_left_alone() -> None:
    n = tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([n, 8], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            shares = builder.emit(relax.op.nn.softmax(x))
            result = builder.emit_output(relax.op.matmul(shares, relax.const(np.ones((8, 5), "float32"))))
        builder.emit_func_output(result)
    with resolve_target(None):
        assert [var.name_hint for var in open_attention()(builder.get()).get_global_vars()] == ["main"]


def test_one_head_of_one_query() -> None:
    """Nothing is divided among cores: the loop of tiles has one iteration and is gone where that is decided."""
    t = tirx.Var("t", "int64")
    query = relax.Var("q", relax.TensorType([1, 8], "float32"))
    key = relax.Var("k", relax.TensorType([t, 8], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [query, key]):
        with builder.dataflow():
            scores = builder.emit(relax.op.matmul(query, builder.emit(relax.op.permute_dims(key, [1, 0]))))
            shares = builder.emit(relax.op.nn.softmax(scores, axis=-1))
            result = builder.emit_output(relax.op.matmul(shares, key))
        builder.emit_func_output(result)
    model = tvm_ext.compile(builder.get())
    rng = np.random.default_rng(0)
    for positions in LENGTHS[1:]:
        given = [rng.standard_normal(shape).astype("float32") for shape in ((1, 8), (positions, 8))]
        weights = np.exp(given[0] @ given[1].T)
        np.testing.assert_allclose(model.run(given)["output"], weights / weights.sum() @ given[1], rtol=1e-4, atol=1e-5)
