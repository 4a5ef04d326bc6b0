"""Strict rules, compiled and run on zeros, denormals, the largest numbers, infinities and NaN mixed: what they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.algebra.extreme_values import Case, add_left_side, cases, fault
from tests.algebra.strictness import broken, constants_are_normal
from tvm_ext.algebra.relax.rewrite import AlgebraReport, rewrite_algebra
from tvm_ext.algebra.rule import Rule
from tvm_ext.algebra.rules import RULES
from tvm_ext.relax_utils import static_shape

STRICT = [rule for rule in RULES if rule.mode == "strict"]


@pytest.mark.parametrize("rule", STRICT, ids=str)
def test_strict(rule: Rule) -> None:
    assert not fault(rule)


@pytest.mark.parametrize(
    ("before", "after", "needs"),
    [
        ("a * c + a * b", "a * (b + c)", ()),
        ("a / c + b / c", "(a + b) / c", ()),
        ("softmax(a + r)", "softmax(a)", ()),
        ("mean(a / r)", "mean(a) / r", ()),
        ("(a + v) + w", "a + (v + w)", ()),
        ("(a + b) - b", "a", ()),
        ("matmul(a + v, w)", "matmul(a, w) + matmul(row(v), w)", ("v is a row",)),
        ("relu(a) * b", "relu(a * b)", ()),
    ],
)
def test_finds_what_is_not_strict(before: str, after: str, needs: tuple[str, ...]) -> None:
    assert fault(Rule("distributive", before, after, needs=needs))


def lefts(rng: np.random.Generator, dtype: str) -> tuple[tvm.IRModule, list[tuple[Case, dict[str, Any], list[str]]]]:
    """Make a module of the left sides of all strict rules, with what each was made of."""
    builder, made = relax.BlockBuilder(), []
    for rule in STRICT:
        for case in cases(rule, rng)[:1]:
            values = case.values(rng, len(made))
            with np.errstate(all="ignore"):
                if not all(constants_are_normal(term, values) for term in case.sides):
                    continue
            names = add_left_side(builder, f"f{len(made)}", case, values, dtype)
            made.append((case, values, names))
    return builder.get(), made


def test_the_pass_holds_it_too() -> None:
    """The same by way of the pass, which may apply several rules and computes the constants."""
    rng = np.random.default_rng(11)
    mod, made = lefts(rng, "float32")
    report = AlgebraReport()
    after = rewrite_algebra("strict", report)(mod)
    assert len({step.rule for step in report.steps}) >= len(STRICT) // 3
    assert report.scaled  # what rules of constant factors do is done for the whole function before
    target = tvm.target.Target("llvm")
    machines = [relax.VirtualMachine(tvm.compile(each, target), tvm.cpu()) for each in (mod, after)]
    for index, (case, values, names) in enumerate(made):
        for draw in range(10):
            drawn = {**values, **{name: value for name, value in case.values(rng, draw).items() if name in names}}
            given = [tvm.runtime.tensor(drawn[name].astype(np.float32)) for name in names]
            left, right = (machine[f"f{index}"](*given).numpy() for machine in machines)
            with np.errstate(all="ignore"):
                told = broken(case.sides[0], drawn, left, right, rng)
            assert not told, f"{told}: {case.example.rule}"


@pytest.mark.parametrize("dtype", ["float16", "int32", "int64"])
def test_other_types_are_left_alone(dtype: str) -> None:
    """Integers wrap around and their quotients are rounded; half precision leaves its range too soon."""
    builder = relax.BlockBuilder()
    a, b = (relax.Var(name, relax.TensorType((3, 4), dtype)) for name in "ab")
    k, m = (relax.const(np.asarray(number).astype(dtype), dtype) for number in (6, 4))
    with builder.function("main", [a, b]):
        with builder.dataflow():
            factored = builder.emit(relax.op.add(builder.emit(a * b), builder.emit(a * k)))
            result = builder.emit_output(builder.emit(builder.emit(factored / k) * m))
        builder.emit_func_output(result)
    mod = relax.transform.CanonicalizeBindings()(builder.get())
    tvm.ir.assert_structural_equal(rewrite_algebra("fast")(mod), mod)


def test_tensors_without_elements() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((0, 3), "float32"))
    number = relax.const(np.float32(3))
    with builder.function("main", [x]):
        with builder.dataflow():
            flat = builder.emit(relax.op.reshape(builder.emit(x * number), (0,)))
            result = builder.emit_output(builder.emit(flat * number) + relax.const(np.zeros(0, np.float32)))
        builder.emit_func_output(result)
    after = rewrite_algebra("fast")(builder.get())
    assert static_shape(after["main"].ret_ty) == (0,)
