"""The rule for products of few rows with a transposed computed operand, against numpy."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tvm_ext
from tests.frontend.onnx.text import graph
from tests.schedules.cpu.test_matmul import TARGETS, Product, check, scheduled
from tvm_ext.schedules import cpu
from tvm_ext.schedules.cpu.matvec import Matvec, dot_products_pay
from tvm_ext.schedules.rule import RULE_ATTRIBUTE, apply_rules

EXTENT = st.sampled_from([8, 9, 15, 16, 17, 31, 33, 63, 65, 127, 129])


@settings(max_examples=12, deadline=None)
@given(
    m=st.integers(1, 2), k=EXTENT, n=EXTENT, batch=st.lists(st.sampled_from([1, 2, 3]), max_size=1),
    epilogue=st.sampled_from(["", "bias_relu", "gelu_residual", "broadcast", "unit_axis"]),
    target=st.sampled_from(list(TARGETS)),
)  # fmt: skip
def test_awkward_extents(
    m: int, k: int, n: int, batch: list[int], epilogue: str, target: str
) -> None:  # fmt: skip
    weight_axes = (0, 2, 1) if batch else (1, 0)
    product = Product((*batch, m, k), (*batch, k, n), (), weight_axes, (), epilogue=epilogue)
    check(product, target, Matvec())


def test_double_precision() -> None:
    check(Product((2, 65), (65, 33), (), (1, 0), epilogue="bias_relu", dtype="float64"), rule=Matvec())


def test_one_query_against_many_keys() -> None:
    check(Product((1, 12, 1, 64), (1, 12, 64, 100), (0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)), rule=Matvec())


def test_nothing_is_packed_and_large_products_are_divided() -> None:
    func, _ = Product((1, 512), (512, 1024), (), (1, 0)).kernel(TARGETS["avx2"])
    text = scheduled(func, TARGETS["avx2"], Matvec()).script()
    assert "pack_columns" not in text
    assert "T.parallel" in text


@pytest.mark.parametrize(
    "product",
    [
        Product((1, 64), (64, 64), constant=True),
        Product((1, 64), (64, 64)),
        Product((5, 512), (512, 64), (), (1, 0)),
    ],
    ids=["constant", "not-transposed", "many-rows"],
)
def test_others_are_left_to_the_next_rule(product: Product) -> None:
    target = TARGETS["native"]
    func, _ = product.kernel(target)
    assert Matvec().apply(func, target) is None
    assert apply_rules(func, target, cpu.RULES).attrs[RULE_ATTRIBUTE] == "cpu.matmul"


def test_order_of_the_rules() -> None:
    func, _ = Product((1, 64), (64, 64), (), (1, 0)).kernel(TARGETS["native"])
    assert apply_rules(func, TARGETS["native"], cpu.RULES).attrs[RULE_ATTRIBUTE] == "cpu.matvec"


@given(rows=st.integers(1, 100), reduction=st.integers(1, 10000))
def test_fewer_rows_never_speak_against_dot_products(rows: int, reduction: int) -> None:
    if dot_products_pay(rows + 1, reduction):
        assert dot_products_pay(rows, reduction)


def test_quantised_scores_of_one_token() -> None:
    """The product reads a tensor that another kernel was to make: its axes of one element have no loops."""
    byte, scale = np.array(128, "uint8"), np.array(0.03, "float32")
    model = graph(
        "g (float[4,1,32] x) => (float[a,b,c] y) { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) "
        "t = Transpose<perm = [0, 2, 1]>(d) a = MatMul(d, t) p = QuantizeLinear(a, o, z) "
        "y = DequantizeLinear(p, o, z) }",
        s=scale, o=np.array(0.3, "float32"), z=byte,
    )  # fmt: skip
    x = np.random.default_rng(0).standard_normal((4, 1, 32)).astype("float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (found,) = tvm_ext.compile(model).run({"x": x}).values()
    rounded = np.clip(np.rint(x / scale), -128, 127) * scale
    np.testing.assert_allclose(found, np.einsum("bnc,bmc->bnm", rounded, rounded), atol=0.16)
