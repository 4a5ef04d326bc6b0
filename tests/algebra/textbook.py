"""Rules that no network in the zoo makes use of, but that show what the searches can do; some are the source's.

Rows marked (T) are those of Niu et al., PLDI 2021, table 5, corrected where the print is wrong: its first row lacks
parentheses, its second one needs ``b >= 0``.
"""

from __future__ import annotations

from functools import partial

from tvm_ext.algebra.rule import Rule

_associative = partial(Rule, "associative")
_distributive = partial(Rule, "distributive")
_commutative = partial(Rule, "commutative")

TEXTBOOK: tuple[Rule, ...] = (
    _associative("recip(a) * (recip(a) * b)", "square(recip(a)) * b", mode="fast", enables=True),  # (T)
    _associative("(a * sqrt(b)) * (sqrt(b) * c)", "(a * b) * c", assumes=("b>=0",)),  # (T)
    _associative("(abs(a) * b) * abs(c)", "abs(a * c) * b"),  # (T)
    _associative("(a * sum(b)) * (sum(b) * c)", "(a * square(sum(b))) * c"),  # (T)
    _associative("(a * k) / m", "a * (k / m)", needs=("m!=0",)),
    _associative("(a + k) + m", "a + (k + m)", mode="fast"),
    _associative("(a + k) - m", "a + (k - m)", mode="fast"),
    _associative("a - (-b)", "a + b", integers=True),
    _associative("abs(a) * abs(b)", "abs(a * b)"),
    _associative("sqrt(a) * sqrt(a)", "a", assumes=("a>=0",)),
    _associative("exp(a) * exp(b)", "exp(a + b)", mode="fast"),
    _associative("(a + b) - b", "a", mode="fast"),
    _distributive("square(a + b) - (a + b) * c", "(a + b) * ((a + b) - c)"),  # (T)
    _distributive("square(a) - square(b)", "(a + b) * (a - b)", mode="fast", enables=True),
    _distributive("(a + b) * (a - b)", "square(a) - square(b)", mode="fast", enables=True),
    _distributive("a - a * b", "a * (1 - b)", enables=True),
    _distributive("a + a", "2 * a", enables=True),
    _distributive("matmul(a, w) * k", "matmul(a, w * k)"),
    _commutative("sum(shift(a, k))", "shift(sum(a), k)", integers=True),  # (T)
    _commutative("prod(exp(a))", "exp(sum(a))", mode="fast"),  # (T)
    _commutative("sum(a * k)", "sum(a) * k", mode="fast"),
    _commutative("mean(a + r)", "mean(a) + r", mode="fast"),
    _commutative("max(exp(a))", "exp(max(a))"),
    _commutative("max(a + r)", "max(a) + r"),
)
