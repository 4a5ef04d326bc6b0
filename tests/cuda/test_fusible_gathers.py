"""Embeddings as one kernel: indices made valid, rows of several tables, and what is computed of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_ext
from tests.cuda.whole_model import SM_90, EmulatedModel
from tests.frontend.onnx.text import graph
from tvm_ext.frontend import import_model

RNG = np.random.default_rng(0)
WORDS, KINDS = RNG.standard_normal((37, 24)).astype("float32"), RNG.standard_normal((3, 24)).astype("float32")


def emulated(model: Any, dynamic: bool, **options: Any) -> EmulatedModel:
    imported = import_model(model, dynamic={"n": (0, 8)}) if dynamic else import_model(model)
    return EmulatedModel(imported.mod, SM_90, **options)


@pytest.mark.parametrize(
    ("dynamic", "options"),
    [(False, {}), (True, {"precision": "float16"}), (False, {"precision": "float16", "fuse": "mapping-type"})],
)
def test_embeddings_are_one_kernel(dynamic: bool, options: dict[str, str]) -> None:
    rows = "n" if dynamic else "3"
    model = graph(
        f"g (int64[{rows},7] ids, int64[{rows},7] types) => (float[{rows},7,24] y) "
        "{ a = Gather(words, ids) b = Gather(kinds, types) c = Add(a, b) y = Tanh(c) }",
        words=WORDS, kinds=KINDS,
    )  # fmt: skip
    found = emulated(model, dynamic, **options)
    assert list(found.rules.values()) == ["cuda.elementwise"], found.rules
    for count in (1, 3) if dynamic else (3,):
        ids, types = RNG.integers(-37, 37, (count, 7)), RNG.integers(-3, 3, (count, 7))
        expected = np.tanh(WORDS[ids] + KINDS[types])
        np.testing.assert_allclose(found(ids, types)[0], expected, rtol=2e-3, atol=2e-3)
    assert not found.faults


@pytest.mark.parametrize("fuse", ["stock", "mapping-type"])
def test_what_is_gathered_from_is_computed_before(fuse: str) -> None:
    """Of a table that is computed each element is, once, however often it is gathered."""
    model = graph(
        "g (float[37,24] x, int64[3,7] ids) => (float[3,7,24] y) { t = Exp(x) a = Gather(t, ids) y = Neg(a) }"
    )
    found = emulated(model, False, fuse=fuse)
    assert len(found.rules) > 1
    x, ids = RNG.standard_normal((37, 24)).astype("float32"), RNG.integers(-37, 37, (3, 7))
    np.testing.assert_allclose(found(x, ids)[0], -np.exp(x)[ids], rtol=1e-5)


def test_elements_and_indices_beyond_the_end() -> None:
    model = graph(
        "g (int64[5,24] ids) => (float[5,24] y) { a = GatherElements<axis = 0>(words, ids) y = Exp(a) }", words=WORDS
    )
    found = emulated(model, False)
    ids = RNG.integers(0, 37, (5, 24))
    expected = tvm_ext.compile(model).run({"ids": ids})["y"]
    np.testing.assert_allclose(found(ids)[0], expected, rtol=1e-5)
    found(np.full((5, 24), 1 << 40))  # any value, and nothing beyond the table
    assert not found.faults
