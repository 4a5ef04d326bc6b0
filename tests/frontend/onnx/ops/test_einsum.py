"""Sums of products of two operands are products of matrices, and give what NumPy gives."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

import tvm_ext
from tests.frontend.onnx.text import graph
from tvm_ext.frontend import import_model
from tvm_ext.frontend.index_products import Product, product_of

EXTENTS = {"a": 1, "b": 3, "d": 8, "h": 2, "i": 5, "j": 7, "k": 4}


def test_what_indices_count() -> None:
    assert product_of("bqhd", "bkhd", "bhqk") == Product("bh", "q", "k", "d")
    assert product_of("btd", "dhk", "bthk") == Product("", "bt", "hk", "d")
    assert product_of("bid", "bjd", "b") is None  # rows and columns are summed, too
    assert product_of("bid", "bd", "bi") == Product("b", "i", "", "d")
    for others in (("ii", "ij", "j"), ("i", "j", "ij"), ("ij", "jk", "ijk"), ("ij", "jk", "im")):
        assert product_of(*others) is None


@pytest.mark.parametrize(
    "subscripts",
    [
        "bid,bjd->bij",
        "bqhd,bkhd->bhqk".replace("q", "i").replace("k", "j"),
        "bid,dhk->bihk",
        "ij,kj->ki",
        "bijd,bjd->bi",
        "bid,bjd->b",
        "bid,jd->jbi",
        "ij,ij->ij",
    ],
)
def test_values(subscripts: str) -> None:
    first, second = subscripts.partition("->")[0].split(",")

    def declared(name: str, indices: str) -> str:
        # Two of the letters are open.
        return f"float[{','.join(i if i in 'bij' else str(EXTENTS[i]) for i in indices)}] {name}"

    rank = len(subscripts.partition("->")[2])
    model = graph(
        f"g ({declared('x', first)}, {declared('y', second)}) => (float[{','.join('pqrs'[:rank])}] z) "
        f'{{ z = Einsum<equation="{subscripts}">(x, y) }}'
    )
    compiled = tvm_ext.compile(model, dynamic="*")
    for b, i, j in ((1, 1, 1), (3, 5, 7), (2, 33, 17), (5, 1, 127)):
        extents = EXTENTS | {"b": b, "i": i, "j": j}
        rng = np.random.default_rng(b)
        x, y = (rng.standard_normal([extents[k] for k in indices]).astype("float32") for indices in (first, second))
        want = np.einsum(subscripts, x.astype("float64"), y.astype("float64"))
        np.testing.assert_allclose(compiled.run({"x": x, "y": y})["z"], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", ["n", "3"])
def test_all_orders_are_products(rows: str) -> None:
    for order in permutations("bij"):
        model = graph(
            f"g (float[{rows},5,8] x, float[{rows},7,8] y) => (float[p,q,r] z) "
            f'{{ z = Einsum<equation="bid,bjd->{"".join(order)}">(x, y) }}'
        )
        written = str(import_model(model, dynamic="*" if rows == "n" else None).mod["main"])
        assert "R.matmul" in written
        assert "R.call_tir" not in written


def test_a_sum_without_indices_and_one_that_is_implied() -> None:
    for equation, shape in (("i,i->", ()), ("ij,jk", (4, 3))):
        first = "float[i] x, float[i] y" if shape == () else "float[4,n] x, float[n,3] y"
        model = graph(
            f'g ({first}) => (float[{",".join(map(str, shape))}] z) {{ z = Einsum<equation="{equation}">(x, y) }}'
        )
        compiled = tvm_ext.compile(model, dynamic="*")
        for extent in (1, 7, 33):
            sizes = [(extent,), (extent,)] if shape == () else [(4, extent), (extent, 3)]
            x, y = (np.random.default_rng(extent).standard_normal(size).astype("float32") for size in sizes)
            want = np.einsum(equation, x.astype("float64"), y.astype("float64"))
            np.testing.assert_allclose(compiled.run({"x": x, "y": y})["z"], want, rtol=1e-4, atol=1e-4)
