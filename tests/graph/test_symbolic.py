from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_ext.errors import GraphError
from tvm_ext.graph.symbolic import (
    Symbolic,
    apply_function,
    evaluate,
    maximum,
    minimum,
    product,
    sort_value,
    substitute,
    symbol,
    symbols_of,
    total_of,
)

n, m = symbol("n"), symbol("m")
VALUES = st.fixed_dictionaries({"n": st.integers(1, 9), "m": st.integers(1, 9)})


@st.composite
def expressions(draw: st.DrawFn, depth: int = 4):
    """A function of a mapping of values that works on numbers and on symbols alike, as (with symbols, with numbers)."""
    if depth == 0 or draw(st.booleans()):
        leaf = draw(st.one_of(st.integers(0, 5), st.sampled_from(["n", "m"])))
        return (symbol(leaf), lambda v: v[leaf]) if isinstance(leaf, str) else (leaf, lambda v: leaf)
    kind = draw(st.sampled_from(["add", "sub", "mul", "min", "max", "floordiv", "floormod"]))
    left, left_value = draw(expressions(depth=depth - 1))
    if kind in ("floordiv", "floormod"):
        divisor = draw(st.integers(1, 4))
        value = {"floordiv": lambda v: left_value(v) // divisor, "floormod": lambda v: left_value(v) % divisor}[kind]
        return apply_function(kind, left, divisor), value
    right, right_value = draw(expressions(depth=depth - 1))
    if kind == "add":
        return left + right, lambda v: left_value(v) + right_value(v)
    if kind == "sub":
        return left - right, lambda v: left_value(v) - right_value(v)
    if kind == "mul":
        return left * right, lambda v: left_value(v) * right_value(v)
    if kind == "min":
        return minimum(left, right), lambda v: min(left_value(v), right_value(v))
    return maximum(left, right), lambda v: max(left_value(v), right_value(v))


@settings(deadline=None)
@given(expressions(), VALUES)
def test_arithmetic_on_symbols_is_arithmetic_on_their_values(expression, values):
    symbolic, value = expression
    assert evaluate(symbolic, values) == value(values)


@settings(deadline=None)
@given(expressions(), VALUES)
def test_substituting_one_symbol_after_the_other_is_the_same(expression, values):
    symbolic, value = expression
    half = substitute(symbolic, {"n": values["n"]})
    assert "n" not in symbols_of(half)
    assert substitute(half, {"m": values["m"]}) == value(values)


@settings(deadline=None)
@given(expressions(), expressions())
def test_sums_and_products_commute(left, right):
    assert left[0] + right[0] == right[0] + left[0]
    assert left[0] * right[0] == right[0] * left[0]


def test_a_size_without_symbols_is_an_int():
    assert n - n == 0
    assert isinstance((n + 3) - n, int)
    assert (4 * n) // 4 == n
    assert n // n == 1
    assert (6 * n) % 3 == 0
    assert n // 1 == n
    assert 0 * n == 0


def test_text_is_canonical():
    assert str(2 + n * 4 * m + n) == "4 * m * n + n + 2"
    assert str(-n) == "-n"
    assert str(n * n - 3) == "n * n - 3"
    assert str((n + 1) // 2 * 3) == "3 * ((n + 1) // 2)"
    assert str(7 % (n + 1)) == "(7 % (n + 1))"
    assert str(maximum(n, 3)) == "max(n, 3)"


def test_equal_polynomials_are_equal_and_hash_alike():
    assert (n + m) * (n - m) == n * n - m * m
    assert hash((n + m) * 2) == hash(2 * m + 2 * n)


def test_substitute_takes_symbols_too():
    assert substitute(n * 4 + 1, {"n": m * 2}) == 8 * m + 1
    assert substitute(7, {"n": 3}) == 7
    assert symbols_of(minimum(n, m + 1) // 2) == {"n", "m"}


def test_product_of_nothing_is_one():
    assert product(()) == 1
    assert product((2, n, 3)) == 6 * n


def test_a_missing_value_is_named():
    assert isinstance(n, Symbolic)
    with pytest.raises(GraphError, match=r"tensor 'x' is 4 \* m \* n, which is no number until m has a value"):
        evaluate(4 * n * m, {"n": 2}, "tensor 'x'")


def test_a_total_with_an_unknown_size_is_unknown():
    n = symbol("n")
    assert total_of([n, 3, n]) == 2 * n + 3
    assert total_of([]) == 0
    assert total_of([n, None, 3]) is None


def test_symbolic_sizes_sort_above_numbers_and_unknown_ones_below():
    assert sorted([symbol("n"), 5, None, 0], key=sort_value) == [None, 0, 5, symbol("n")]
