"""Sorts and searches of every kind of float, against NumPy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

import tvm_ext
from tests.fusion.relax.test_fuse import build
from tests.modules import run
from tests.schedules.kernels import TARGETS, graph


def hard_values(dtype: str) -> np.ndarray:
    """Each value once, but for zeros and NaN, of which there is one of each sign; in an order drawn at random."""
    limits = np.finfo(dtype)
    positive = [0.0, limits.smallest_subnormal, limits.tiny / 2, limits.tiny, 0.5, 1.0, 1.0 + limits.eps, limits.max]
    values = np.array([*positive, np.inf, np.nan], dtype)
    return np.random.default_rng(0).permutation(np.concatenate([values, -values]))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("descending", [False, True])
def test_hard_values_are_sorted_as_numpy_sorts_them(dtype: str, descending: bool) -> None:
    def make(_builder: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        return op.argsort(x, 1, descending, "int64")

    values = hard_values(dtype)
    x = np.stack([values, values[::-1]])
    (places,) = run(tvm_ext.compile(graph(make, [(x.shape, dtype)])).executable, [x])
    assert (np.sort(places) == np.arange(values.size)).all()
    found = np.take_along_axis(x, places, 1)
    expected = np.sort(x, 1)[:, ::-1] if descending else np.sort(x, 1)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_extremes_of_hard_values(dtype: str) -> None:
    """Of rows with NaN the first NaN, of others the first of the largest or smallest; zeros of both signs are equal."""

    def make(builder: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        return op.concat([builder.emit(op.argmax(x, 1)), builder.emit(op.argmin(x, 1))])

    values = hard_values(dtype)
    numbers = np.resize(values[~np.isnan(values)], values.shape)
    zeros = np.where(np.isnan(values), values.dtype.type(0), np.copysign(np.zeros_like(values), values))
    x = np.stack([values, numbers, numbers[::-1], zeros, -zeros])
    (found,) = run(tvm_ext.compile(graph(make, [(x.shape, dtype)])).executable, [x])
    np.testing.assert_array_equal(found, np.concatenate([x.argmax(1), x.argmin(1)]))


def test_what_is_searched_is_computed_once(tmp_path: Path) -> None:
    """A search loads each element several times; the joined tensors before it compiled for minutes within it."""

    def make(emit: Any, x: relax.Var, slope: relax.Var) -> relax.Var:
        joined = emit(op.concat([x, x, x]))
        bent = emit(op.where(emit(op.less(joined, relax.const(0.0))), emit(op.multiply(joined, slope)), joined))
        return emit(op.argmax(bent, 2))

    x = np.random.default_rng(0).standard_normal((1, 3, 17)).astype("float32")
    slope = np.full((1, 1), -3.0, "float32")
    mod = build(make, x.shape, slope.shape)
    compiled = tvm_ext.compile(mod, fuse="mapping-type", rewrite="strict", dump_dir=tmp_path)
    (fused,) = tmp_path.glob("*_fuse.py")
    assert "def argmax(" in fused.read_text()  # a kernel of its own
    (found,) = run(compiled.executable, [x, slope])
    np.testing.assert_array_equal(found, np.where(x < 0, x * -3, x).argmax(2).repeat(3, 0))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(1,), (33,), (5, 1), (3, 127), (2, 3, 1000), (4, 3000), (0, 7)])
def test_first_extreme_of_each_row(shape: tuple[int, ...], target: str) -> None:
    """Equal values, NaN, with and without the axis kept, rows that fill vectors and that do not."""
    random = np.random.default_rng(0)
    x = random.integers(-2, 3, shape).astype("float32")
    x[random.random(shape) < 1 / 500] = np.nan
    for name in ("argmax", "argmin"):
        for keep in (False, True):
            mod = build(lambda emit, v, name=name, keep=keep: emit(getattr(op, name)(v, -1, keep)), shape)
            (found,) = run(tvm_ext.compile(mod, TARGETS[target]).executable, [x])
            expected = getattr(np, name)(x, -1, keepdims=keep)
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == expected.dtype


def test_extremes_of_rows_are_searched_in_vectors(tmp_path: Path) -> None:
    mod = build(lambda emit, v: emit(op.argmax(v, -1)), (128, 1000))
    tvm_ext.compile(mod, TARGETS["avx2"], dump_dir=tmp_path)
    (vectors,) = tmp_path.glob("*_vectorize.py")
    for operator in ("max", "min"):
        assert re.search(rf"T\.{operator}\(partial\w*\[T\.Ramp\(0, 1, 8\)\]", vectors.read_text())
