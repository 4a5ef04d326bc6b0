"""Rules that regroup products and sums, and name functions that are spelt out."""

from __future__ import annotations

from functools import partial

from tvm_ext.algebra.rule import Rule

_row = partial(Rule, "associative")
_fast = partial(Rule, "associative", mode="fast")

ASSOCIATIVE: tuple[Rule, ...] = (
    # numbers that meet
    _row("(a * k) * m", "a * (k * m)"),
    _row("(a * k) * b", "(a * b) * k", assumes=("k is moderate",), enables=True),
    _row("(a / k) * m", "a * (m / k)", needs=("k!=0",)),
    # tensors known when the function is compiled that meet; sums of them may cancel what they are added to
    _fast("(a + v) + w", "a + (v + w)"),
    _fast("(a + v) + k", "a + (v + k)"),
    # functions spelt out
    _row("a * sigmoid(a)", "silu(a)", enables=True),
    # data movement twice
    _row("reshape(reshape(a, 'x'), 'shape')", "reshape(a, 'shape')"),
)
