"""Every rule, proved on random shapes and values: both sides are equal, and the right one costs no more."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from tests.algebra.examples import Example
from tests.algebra.textbook import TEXTBOOK
from tvm_ext.algebra.operators import ShapeError
from tvm_ext.algebra.rule import Match, Rule, build, operand_kinds
from tvm_ext.algebra.rules import RULES
from tvm_ext.algebra.term import Term, Terms, cost, evaluate

WANTED = 6  # examples of each rule


def proofs(rule: Rule, integers: bool = False) -> list[tuple[object, object]]:
    """Costs of both sides of each example, after their values were compared."""
    rng = np.random.default_rng(zlib.crc32(str(rule).encode()))
    found: list[tuple[object, object]] = []
    for _ in range(600):
        example = Example(rule, rng, integers)
        try:
            before = example.term()
        except ShapeError:
            continue
        for after in rule.rewrites(before, example.terms, "fast"):
            assert rule.operand_kinds <= operand_kinds(before)  # the search looks at rules of which this holds
            with np.errstate(all="ignore"):
                first, second = evaluate([before, after], example.values)
            both = ~(np.isnan(first) & np.isnan(second))
            np.testing.assert_allclose(second[both], first[both], rtol=1e-7, atol=1e-9, err_msg=f"{rule}: {before}")
            assert np.shape(first) == np.shape(second)
            if both.any():
                found.append((cost([before]), cost([after])))
        if len(found) >= WANTED:
            return found
    return found


KNOWN = (*RULES, *TEXTBOOK)
FLOATS = [rule for rule in KNOWN if "shift" not in rule.before]


@pytest.mark.parametrize("rule", FLOATS, ids=str)
def test_both_sides_are_equal(rule: Rule) -> None:
    found = proofs(rule)
    assert len(found) >= WANTED, "too few examples match"
    if not rule.enables:
        # Where an operand is broadcast a rule may not pay; the search compares costs.
        assert any(after < before for before, after in found)  # type: ignore[operator]


@pytest.mark.parametrize("rule", [rule for rule in KNOWN if rule.integers], ids=str)
def test_rules_for_integers(rule: Rule) -> None:
    assert proofs(rule, integers=True)


def test_rules_differ() -> None:
    assert len({(rule.before, rule.after, rule.needs) for rule in KNOWN}) == len(KNOWN)


# Operations of both sides for operands of m x n, as the source counts them (nothing is shared); reductions along n.
TABLE = [
    ("recip(a) * (recip(a) * b)", "4mn", "3mn"),
    ("(a * sqrt(b)) * (sqrt(b) * c)", "5mn", "2mn"),
    ("(abs(a) * b) * abs(c)", "4mn", "3mn"),
    ("(a * sum(b)) * (sum(b) * c)", "5mn", "3mn + m"),
    ("a * c + a * b", "3mn", "2mn"),
    ("a + a * b", "2mn", "2mn"),
    ("square(a + b) - (a + b) * c", "5mn", "3mn"),
    ("sum(shift(a, k))", "2mn", "mn + m"),
    ("prod(exp(a))", "2mn", "mn + m"),
]


def tree_flops(term: Term) -> int:
    return term.flops + sum(tree_flops(operand) for operand in term.operands)


@pytest.mark.parametrize(("before", "operations", "fewer"), TABLE)
def test_counts_of_the_source(before: str, operations: str, fewer: str) -> None:
    m, n = 5, 7
    rule = next(rule for rule in KNOWN if rule.before == before)
    terms = Terms()
    match = Match({name: terms.input(name, (m, n), 0.5) for name in "abc"}, {"axes": (1,)}, 2, n)
    match.terms["k"] = terms.scalar(2.0)
    left = build(rule.pattern, match, terms)
    (right, *_) = rule.rewrites(left, terms, "fast")

    def counted(formula: str) -> int:
        return sum(
            int(part.replace("mn", "").replace("m", "") or 1) * (m * n if "n" in part else m)
            for part in formula.split(" + ")
        )

    # the sum a + b is one term in the row that squares it, and the source counts it once on the right
    shared = {"square(a + b) - (a + b) * c": (m * n)}.get(before, 0)
    assert tree_flops(left) == counted(operations)
    assert tree_flops(right) - shared == counted(fewer)
