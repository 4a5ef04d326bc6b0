"""Strict rules keep values up to rounding: zeros, signs, infinities, NaN, large and small values, near cancellation."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from tests.algebra.strictness import fault
from tvm_ext.algebra.relax.rewrite import AlgebraReport, rewrite_algebra
from tvm_ext.algebra.rule import Rule
from tvm_ext.algebra.rules import RULES

STRICT = [rule for rule in RULES if rule.mode == "strict" and "shift" not in rule.before]


@pytest.mark.parametrize("rule", STRICT, ids=str)
def test_strict(rule: Rule) -> None:
    assert not fault(rule)


@pytest.mark.parametrize(
    ("before", "after", "needs", "found"),
    [
        ("a / c + b / c", "(a + b) / c", (), "finite"),
        ("matmul(a + v, w)", "matmul(a, w) + matmul(row(v), w)", ("v is a row",), "error"),
        ("(a + v) * k", "a * k + (v * k)", (), "error"),
        ("(a + v) + w", "a + (v + w)", (), "error"),
        ("mean(a / r)", "mean(a) / r", (), "finite"),
    ],
)
def test_finds_what_is_not_strict(before: str, after: str, needs: tuple[str, ...], found: str) -> None:
    assert found in fault(Rule("distributive", before, after, needs=needs))


@pytest.mark.parametrize(("scale", "taken_up"), [(2.0, 1), (1e-3, 1), (5e-4, 0)])
def test_constants_that_leave_the_range_are_not_made(scale: float, taken_up: int) -> None:
    """``matmul(a * k, w)``: the weights times ``k`` would be below the normal numbers, and lose their digits."""
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    weight = np.full((3, 4), 1.5e-35, "float32")
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            scaled = builder.emit(op.multiply(x, relax.const(np.float32(scale))))
            y = builder.emit_output(op.matmul(scaled, relax.const(weight)))
        builder.emit_func_output(y)
    report = AlgebraReport()
    rewrite_algebra("strict", report)(builder.get())
    assert report.scaled == taken_up
    assert not report.steps
