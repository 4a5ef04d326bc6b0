"""What linear arithmetic proves of addresses, against trying every value."""

from __future__ import annotations

import itertools

import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import tirx
from tvm.ir.prim import expr as prim

from tvm_ext.schedules.simd.linear import KnownInequalities

NAMES = ("i", "j", "k")
FACTORS = st.integers(-6, 6)
SUMS = st.tuples(st.tuples(FACTORS, FACTORS, FACTORS), st.integers(-12, 12))
COMPARISONS = {"<": prim.LT, "<=": prim.LE, ">": prim.GT, ">=": prim.GE, "==": prim.EQ}


def _known(extents: tuple[int, ...]) -> tuple[KnownInequalities, list[tirx.Var]]:
    analyzer = tvm.sym.Analyzer()
    variables = [tirx.Var(name, "int64") for name in NAMES]
    for variable, extent in zip(variables, extents, strict=True):
        analyzer.bind(variable, tvm.ir.Range(0, tirx.const(extent, "int64")))
    return KnownInequalities(analyzer), variables


def _expression(variables: list[tirx.Var], factors: tuple[int, ...], constant: int) -> prim.PrimExpr:
    total = tirx.const(constant, "int64")
    for variable, factor in zip(variables, factors, strict=True):
        total = total + variable * tirx.const(factor, "int64")
    return total


def _value(point: tuple[int, ...], factors: tuple[int, ...], constant: int) -> int:
    return sum(x * factor for x, factor in zip(point, factors, strict=True)) + constant


@given(
    st.tuples(*[st.integers(1, 4)] * 3),
    SUMS,
    st.integers(0, 40),
    st.lists(st.tuples(SUMS, st.sampled_from(sorted(COMPARISONS)), st.integers(1, 3)), max_size=3),
)
def test_nothing_false_is_proved(extents, index, size, conditions) -> None:  # type: ignore[no-untyped-def]
    known, variables = _known(extents)
    condition: prim.PrimExpr = tirx.const(True, "bool")
    for (factors, constant), comparison, divisor in conditions:
        right = tirx.floordiv(variables[0] * 2 + 5, tirx.const(divisor, "int64"))
        one = COMPARISONS[comparison](_expression(variables, factors, constant), right)
        condition = prim.And(condition, one)
    with known.given(condition):
        proved = known.prove_inside(_expression(variables, *index), tirx.const(size, "int64"))
    if proved:
        for point in itertools.product(*map(range, extents)):
            rights = [(2 * point[0] + 5) // divisor for *_, divisor in conditions]
            holds = all(
                eval(f"{_value(point, *left)} {comparison} {right}")
                for (left, comparison, _), right in zip(conditions, rights, strict=True)
            )
            assert not holds or 0 <= _value(point, *index) < size


@pytest.mark.parametrize("reach", [0, 1])
def test_window_that_reaches_into_padding(reach: int) -> None:
    """A row of 7 values of 4 lanes, read at ``2 * y + r - 1`` where that is inside; one more is not proved."""
    known, (y, r, _) = _known((4, 3, 1))
    row = y * 2 + r - 1
    with known.given(prim.And(row >= 0, row < 7)):
        assert known.prove_inside(row * 4 + 3 + reach, tirx.const(28, "int64")) is (reach == 0)
    assert not known.prove_inside(row * 4 + 3, tirx.const(28, "int64"))  # the condition is left


def test_open_extent() -> None:
    known, (i, *_) = _known((1 << 40, 1, 1))
    n = tirx.Var("n", "int64")
    with known.given(i < n * 3 // 16):
        assert known.prove_inside(i * 16 + 15, n * 3)
        assert not known.prove_inside(i * 16 + 16, n * 3)
    with known.given(prim.Not(i >= n)):
        assert known.prove_inside(tirx.Cast("int64", i) * 4 + 3, n * 4)
        assert not known.prove_inside(i * i, n)  # no sum
