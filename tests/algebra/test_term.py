"""Terms: equal ones are one object, numbers fold, costs count what is shared once, bounds hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_ext.algebra.operators import OPERATORS, ShapeError
from tvm_ext.algebra.term import Cost, Terms, cost, evaluate


def test_equal_terms_are_one_object() -> None:
    terms = Terms()
    a, b = terms.input("a", (2, 3)), terms.input("b", (2, 3))
    assert terms.make("add", a, b) is terms.make("add", b, a)
    assert terms.make("subtract", a, b) is not terms.make("subtract", b, a)
    assert terms.make("sum", a, axes=(0,)) is not terms.make("sum", a, axes=(1,))


def test_numbers_fold_and_constants_cost_nothing() -> None:
    terms = Terms()
    a, w = terms.input("a", (2, 3)), terms.constant("w", (2, 3))
    assert terms.make("multiply", terms.scalar(3), terms.scalar(4)).value == 12
    scaled = terms.make("multiply", w, terms.scalar(2))
    assert scaled.is_constant
    assert cost([terms.make("add", a, scaled)]) == Cost(6, 6, 1)


def test_shapes_that_do_not_fit() -> None:
    terms = Terms()
    a = terms.input("a", (2, 3))
    for op, operands, attributes in (
        ("add", (a, terms.input("b", (4,))), {}),
        ("matmul", (a, a), {}),
        ("sum", (a,), {"axes": (2,)}),
        ("reshape", (a,), {"shape": (5,)}),
        ("transpose", (a,), {"perm": (0, 2, 1)}),
        ("concat", (a, terms.input("b", (3, 2))), {"axis": 0}),
        ("slice", (a,), {"part": (1, 2, 5)}),
    ):
        with pytest.raises(ShapeError):
            terms.make(op, *operands, **attributes)


def test_convolution_against_its_definition() -> None:
    rng = np.random.default_rng(0)
    data, weight = rng.normal(size=(1, 4, 5, 6)), rng.normal(size=(6, 2, 3, 2))
    window = ((2, 1), (1, 0, 1, 1), (1, 2), 2)
    found = OPERATORS["conv"].evaluate([data, weight], {"window": window})
    padded = np.pad(data, ((0, 0), (0, 0), (1, 1), (0, 1)))
    for o, y, x in np.ndindex(found.shape[1:]):
        group = o // 3
        expected = sum(
            padded[0, group * 2 + c, y * 2 + i, x + 2 * j] * weight[o, c, i, j] for c, i, j in np.ndindex(2, 3, 2)
        )
        np.testing.assert_allclose(found[0, o, y, x], expected)


@given(st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_lower_bounds_hold(seed: int) -> None:
    rng = np.random.default_rng(seed)
    terms = Terms()
    values = {"a": rng.uniform(0, 2, (3, 4)), "b": rng.uniform(-2, 2, (3, 4)), "c": rng.uniform(0.5, 2, (3, 4))}
    pool = [terms.input("a", (3, 4), 0.0), terms.input("b", (3, 4)), terms.input("c", (3, 4), 0.5)]
    simple = [op for op, row in OPERATORS.items() if not row.attributes]
    simple = [op for op in simple if op not in ("left_shift", "matmul", "column", "row", "filters")]
    for _ in range(6):
        op = simple[rng.integers(len(simple))]
        pool.append(terms.make(op, *(pool[rng.integers(len(pool))] for _ in range(OPERATORS[op].operands))))
    with np.errstate(all="ignore"):
        for term, value in zip(pool, evaluate(pool, values), strict=True):
            known = value[~np.isnan(value)]
            assert (known >= term.lower - 1e-12 * abs(term.lower)).all() if np.isfinite(term.lower) else True


@pytest.mark.parametrize("rows", [1, 65_536, 70_001])
def test_products_convert_their_second_operand(rows: int) -> None:
    """In pieces, and in the precision of the first one."""
    generator = np.random.default_rng(1)
    first, second = generator.normal(size=(2, rows)), generator.normal(size=(rows, 3)).astype("float32")
    found = OPERATORS["matmul"].evaluate([first, second], {})
    assert found.dtype == "float64"
    np.testing.assert_allclose(found, first @ second.astype("float64"), rtol=1e-9, atol=1e-9)
