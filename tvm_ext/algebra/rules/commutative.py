"""Rules that change the order of data movement and arithmetic."""

from __future__ import annotations

from functools import partial

from tvm_ext.algebra.rule import Rule

_row = partial(Rule, "commutative")

COMMUTATIVE: tuple[Rule, ...] = (
    _row("transpose(a) / k", "transpose(a / k)", enables=True),
    _row("reshape(a) / k", "reshape(a / k)", enables=True),
)
