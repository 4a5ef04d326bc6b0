"""All rewriting rules, one file for each mathematical property."""

from __future__ import annotations

from tvm_ext.algebra.rule import Rule
from tvm_ext.algebra.rules.associative import ASSOCIATIVE
from tvm_ext.algebra.rules.distributive import DISTRIBUTIVE

RULES: tuple[Rule, ...] = (*ASSOCIATIVE, *DISTRIBUTIVE)
