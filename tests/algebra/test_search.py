"""The searches: equal values, lower costs, and an end; each finds what it is there for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.algebra.textbook import TEXTBOOK
from tvm_ext.algebra.operators import OPERATORS, ShapeError
from tvm_ext.algebra.rule import Match, build, parse
from tvm_ext.algebra.rules import RULES
from tvm_ext.algebra.search import SearchOptions, best_first, greedy, simplify
from tvm_ext.algebra.term import Term, Terms, cost, evaluate
from tvm_ext.errors import GraphError, OptionError

SHAPES = {"a": (3, 4), "b": (3, 4), "c": (3, 4), "d": (3, 4), "r": (3, 1), "v": (4,), "w": (4, 5)}
KNOWN = (*RULES, *TEXTBOOK)
STRICT, FAST = SearchOptions(rules=KNOWN), SearchOptions(mode="fast", rules=KNOWN)


def expression(text: str, terms: Terms, lower: float = -np.inf, axes: tuple[int, ...] = (1,)) -> Term:
    match = Match({}, {"axes": axes, "perm": (1, 0), "shape": (12,)}, 2, 4)
    for name, shape in SHAPES.items():
        make = terms.constant if name in "vw" else terms.input
        match.terms[name] = make(name, shape, lower)
    return build(parse(text), match, terms)


def values(rng: np.random.Generator, low: float = -2.0) -> dict[str, np.ndarray]:
    return {name: rng.uniform(low, 2.0, shape) for name, shape in SHAPES.items()}


@pytest.mark.parametrize(
    ("text", "operations", "operators"),
    [
        ("a * c + a * b", 24, 2),
        ("(abs(a) * b) * abs(c)", 36, 3),
        ("square(a + b) - (a + b) * c", 36, 3),
        # a chain of numbers
        ("((a * 2) * 3) / 4", 12, 1),
        ("(a * 2 + 1) * 3", 24, 2),
        # a scale that goes through a sum into the number before it
        ("sum(a * 2)", 12 + 3, 2),
        ("mean(a + r)", 12 + 3 + 3, 2),
        # scales and shifts around a product with known weights
        ("matmul(a * v, w)", 2 * 3 * 4 * 5, 1),
        ("matmul(a, w) * 0.125", 2 * 3 * 4 * 5, 1),
        ("a - (-b)", 12, 1),
    ],
)
def test_known_gains(text: str, operations: int, operators: int) -> None:
    terms = Terms()
    root = expression(text, terms)
    found = simplify([root], terms, FAST)
    assert (found.after.flops, found.after.operators) == (operations, operators), found.roots[0]
    drawn = values(np.random.default_rng(0))
    np.testing.assert_allclose(*evaluate([root, found.roots[0]], drawn), rtol=1e-9)
    assert found.steps


def test_best_first_goes_through_dearer_terms() -> None:
    """(a + 1) * 2 must be multiplied out, which gains nothing, before the numbers meet those of the other summand."""
    terms = Terms()
    root = expression("((a + 1) * 2 - 2) + b", terms)
    alone = greedy([root], terms, FAST)
    both = simplify([root], terms, FAST)
    assert both.after < alone.after
    drawn = values(np.random.default_rng(1))
    np.testing.assert_allclose(*evaluate([root, both.roots[0]], drawn), rtol=1e-9)


@pytest.mark.parametrize(
    ("text", "gains"),
    [
        ("exp(a) * exp(b)", "fast"),  # may overflow
        ("(a + b) - b", "fast"),  # may lose digits
        ("sqrt(a) * sqrt(a)", "fast"),  # is not a number where a is negative
        ("abs(a) * abs(b)", "strict"),
    ],
)
def test_modes(text: str, gains: str) -> None:
    terms = Terms()
    root = expression(text, terms)
    before = cost([root])
    assert simplify([root], terms, FAST).after < before
    assert (simplify([root], terms, STRICT).after < before) == (gains == "strict")


def test_what_is_proven_of_operands_counts() -> None:
    """Strict mode takes a root twice where the operand is a sum of squares."""
    terms = Terms()
    known = expression("sqrt(square(a) + square(b)) * sqrt(square(a) + square(b))", terms)
    assert simplify([known], terms, STRICT).roots[0] is expression("square(a) + square(b)", terms)


def test_shared_terms_cost_once() -> None:
    terms = Terms()
    first = expression("exp(a) + b", terms)
    second = expression("exp(a) * b", terms)
    assert cost([first, second]).operators == 3
    assert simplify([first, second], terms, STRICT).roots == (first, second)


def test_unknown_mode() -> None:
    with pytest.raises(OptionError, match="candidates are 'strict', 'fast'"):
        SearchOptions(mode="careless")  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["a +", "nothing(a)", "exp(a, b)", "a @ b"])
def test_rows_that_cannot_be_read(text: str) -> None:
    with pytest.raises(GraphError, match="rule side"):
        parse(text)


_UNARY = [op for op, row in OPERATORS.items() if row.operands == 1 and not row.attributes]
_UNARY = [op for op in _UNARY if op not in ("column", "row", "filters", "floor", "ceil", "round", "sign")]


@st.composite
def random_terms(draw: st.DrawFn) -> tuple[Terms, list[Term]]:
    terms = Terms()
    pool = [terms.input(name, shape) for name, shape in SHAPES.items() if name not in "vw"]
    pool += [terms.constant("v", SHAPES["v"]), terms.scalar(2.0), terms.scalar(-0.5)]
    for _ in range(draw(st.integers(2, 9))):
        op = draw(st.sampled_from(["add", "subtract", "multiply", "divide", "maximum", *_UNARY, "sum", "mean", "max"]))
        operands = [draw(st.sampled_from(pool)) for _ in range(OPERATORS[op].operands)]
        attributes = {"axes": (0,)} if op in ("sum", "mean", "max") else {}
        try:
            made = terms.make(op, *operands, **attributes)
        except ShapeError:
            continue
        if made.value is None:
            pool.append(made)
    computed = [term for term in pool if term.operands and not term.is_constant]
    return terms, computed[-2:]


@given(random_terms(), st.integers(0, 1000), st.sampled_from(["strict", "fast"]))
@settings(max_examples=120, deadline=None)
def test_random_terms(drawn: tuple[Terms, list[Term]], seed: int, mode: str) -> None:
    terms, roots = drawn
    if not roots:
        return
    options = SearchOptions(mode=mode, expansions=6, rules=KNOWN)  # type: ignore[arg-type]
    found = simplify(roots, terms, options)
    assert found.after <= found.before == cost(roots)
    assert [root.shape for root in found.roots] == [root.shape for root in roots]
    data = values(np.random.default_rng(seed), low=0.5)
    with np.errstate(all="ignore"):
        expected, got = evaluate(roots, data), evaluate(found.roots, data)
        # what rounding does to the original: the same terms on operands that are a little off
        nudged = evaluate(roots, {name: array * (1 + 1e-12) for name, array in data.items()})
    for before, after, near in zip(expected, got, nudged, strict=True):
        # beyond single precision strict and fast differ on purpose
        usable = np.isfinite(before) & (np.abs(before) < 1e30) & np.isfinite(near)
        usable &= np.isfinite(after) if mode == "fast" else True
        slack = 1e-6 * np.abs(before[usable]) + 1e3 * np.abs(near - before)[usable] + 1e-7
        assert (np.abs(after[usable] - before[usable]) <= slack).all()


def test_searches_end_on_all_rules_at_once() -> None:
    """A term that many enabling rules keep turning round and round."""
    terms = Terms()
    root = expression("((a + b) * (a - b)) / sqrt(a + a) + (a - a * b) * 2", terms)
    for mode in ("strict", "fast"):
        options = SearchOptions(mode=mode, expansions=40, rules=KNOWN)  # type: ignore[arg-type]
        assert best_first([root], terms, options).after <= cost([root])
