"""Factors that constants take up, in Relax functions: the same values, and no constant that leaves its range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from tests.algebra.extreme_values import EVERY, FINITE
from tests.modules import run
from tvm_ext.algebra.relax.rewrite import AlgebraReport, rewrite_algebra
from tvm_ext.graph import from_relax

TARGET = tvm.target.Target("llvm")
GENERATOR = np.random.default_rng(3)
EPS = float(np.finfo(np.float32).eps)


def const(value: Any) -> relax.Expr:
    return relax.const(np.asarray(value, np.float32))


def weight(*shape: int) -> relax.Expr:
    return const(GENERATOR.standard_normal(shape))


def build(make: Callable[..., Any], *shapes: tuple[int, ...]) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    parameters = [relax.Var(f"x{index}", relax.TensorType(shape, "float32")) for index, shape in enumerate(shapes)]
    with builder.function("main", parameters):
        with builder.dataflow():
            result = builder.emit_output(make(builder.emit, *parameters))
        builder.emit_func_output(result)
    return builder.get()


def rotary(emit: Any, x: Any, k: Any) -> Any:
    """Scores of attention with turned queries."""
    q = emit(op.reshape(emit(op.matmul(x, weight(7, 6))), (3, 2, 3)))
    q = emit(op.permute_dims(q, [1, 0, 2]))
    first, second = (emit(op.strided_slice(q, [2], [begin], [begin + 1])) for begin in (0, 1))
    joined = emit(op.concat([emit(op.negative(second)), first, first], 2))
    total = emit(op.add(emit(op.multiply(q, weight(3, 3))), emit(op.multiply(joined, weight(3, 3)))))
    return emit(op.matmul(emit(op.divide(total, const(8))), k))


def gated(emit: Any, x: Any) -> Any:
    """Two products that read one scaled tensor."""
    h = emit(op.multiply(x, weight(7)))
    gate = emit(op.nn.silu(emit(op.matmul(h, weight(7, 5)))))
    return emit(op.multiply(gate, emit(op.matmul(h, weight(7, 5)))))


def boxes(emit: Any, x: Any) -> Any:
    """Corners of boxes over the size of the picture: the factor goes to three constants, through a concatenation."""
    centre = emit(op.add(emit(op.multiply(x, weight(17, 2))), weight(17, 2)))
    half = emit(op.divide(emit(op.multiply(emit(op.sigmoid(x)), weight(17, 2))), const(2)))
    corners = emit(op.concat([emit(op.subtract(centre, half)), emit(op.add(centre, half))], 1))
    return emit(op.divide(corners, const(64)))


def picture(emit: Any, x: Any) -> Any:
    """Channels scaled before a convolution."""
    scaled = emit(op.divide(x, const(np.reshape([0.5, 2, 0.25], (3, 1, 1)))))
    return emit(op.nn.conv2d(scaled, weight(5, 3, 3, 3), padding=1))


def bounded(emit: Any, x: Any) -> Any:
    """A positive number goes back through what is monotone."""
    hidden = emit(op.nn.relu(emit(op.add(emit(op.matmul(x, weight(7, 3))), weight(3)))))
    return emit(op.multiply(hidden, const(0.1)))


CASES = {
    "rotary": (rotary, ((3, 7), (2, 3, 5)), 1),
    "gated": (gated, ((1, 7),), 1),
    "boxes": (boxes, ((17, 2),), 2),
    "picture": (picture, ((1, 3, 7, 1),), 1),
    "bounded": (bounded, ((17, 7),), 1),
}


def rewritten(mod: tvm.IRModule) -> tuple[tvm.IRModule, AlgebraReport]:
    report = AlgebraReport()
    after = rewrite_algebra("strict", report)(mod)
    relax.analysis.well_formed(after)
    return after, report


@pytest.mark.parametrize("name", CASES)
def test_factors_vanish(name: str) -> None:
    make, shapes, factors = CASES[name]
    mod = build(make, *shapes)
    after, report = rewritten(mod)
    assert report.scaled == factors
    assert len(from_relax(after).nodes) <= len(from_relax(mod).nodes) - factors
    values = [GENERATOR.standard_normal(shape).astype(np.float32) for shape in shapes]
    (expected,), (got,) = (run(tvm.compile(each, TARGET), values) for each in (mod, after))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.std(expected))


@pytest.mark.parametrize("name", CASES)
def test_extreme_values(name: str) -> None:
    """What is finite stays finite and as near, NaN that reaches a result still does."""
    make, shapes, _ = CASES[name]
    mod = build(make, *shapes)
    after, _ = rewritten(mod)
    machines = [relax.VirtualMachine(tvm.compile(each, TARGET), tvm.cpu()) for each in (mod, after)]
    judged = 0
    for draw in range(60):
        kinds = np.array(EVERY if draw % 3 == 0 else FINITE)
        kinds = kinds if draw % 4 == 0 else kinds[~(np.abs(kinds) > 1e20) | np.isinf(kinds)]
        values = [
            np.where(GENERATOR.random(shape) < 0.2, GENERATOR.choice(kinds, shape), GENERATOR.standard_normal(shape))
            for shape in shapes
        ]
        given = [tvm.runtime.tensor(value.astype(np.float32)) for value in values]
        left, right = (machine["main"](*given).numpy().astype(float) for machine in machines)
        largest = max(np.abs(value[np.isfinite(value)]).max() for value in values)
        finite = np.isfinite(left)
        if largest < 1e20:  # else a sum may overflow in another order
            assert np.isfinite(right[finite]).all()
            judged += int(finite.sum())
            assert (np.abs(right - left)[finite] <= 640 * EPS * (largest + 1) ** max(2, len(shapes))).all()
        clean = [tvm.runtime.tensor(np.where(np.isnan(value), value, 0.5).astype(np.float32)) for value in values]
        passed_on = np.isnan(machines[0]["main"](*clean).numpy())
        assert np.isnan(right[passed_on]).all()
    assert judged > 100


def test_a_weight_that_would_leave_its_range_takes_nothing_up() -> None:
    """The weight over 8 would be below the normal numbers; the second factor vanishes still."""

    def make(emit: Any, x: Any) -> Any:
        small = emit(op.divide(emit(op.matmul(x, const(np.full((3, 2), 2e-38)))), const(8)))
        return emit(op.concat([small, emit(op.divide(emit(op.matmul(x, weight(3, 2))), const(4)))], 1))

    after, report = rewritten(build(make, (5, 3)))
    assert report.scaled == 1
    assert [node.op for node in from_relax(after).nodes].count("divide") == 1


def test_the_source_is_not_changed() -> None:
    mod = build(gated, (1, 7))
    before = mod.script()
    rewritten(mod)
    assert mod.script() == before


@pytest.mark.parametrize("dtype", ["float16", "int32"])
def test_other_types_keep_their_factors(dtype: str) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3, 4), dtype))
    number, table = (relax.const(np.asarray(value).astype(dtype), dtype) for value in (2, np.ones((4, 4))))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(op.matmul(x, table)) / number)
        builder.emit_func_output(result)
    _, report = rewritten(builder.get())
    assert report.scaled == 0


def test_constants_that_are_reshaped_first() -> None:
    """Importers reshape the bias of a convolution: factors go to the constant itself, not to what stands for it."""

    def make(emit: Any, x: Any) -> Any:
        bias = emit(op.reshape(weight(5), (1, 5, 1, 1)))
        scaled = emit(op.multiply(x, emit(op.reshape(weight(3), (1, 3, 1, 1)))))
        sums = emit(op.add(emit(op.nn.conv2d(scaled, weight(5, 3, 3, 3), padding=1)), bias))
        return emit(op.multiply(sums, const(0.25)))

    def stream(emit: Any, x: Any) -> Any:
        rows = emit(op.add(emit(op.matmul(x, weight(3, 7))), emit(op.reshape(weight(7), (1, 7)))))
        return emit(op.subtract(rows, emit(op.mean(rows, [-1], keepdims=True))))

    for case, shape, scaled in ((make, (1, 3, 9, 7), 1), (stream, (4, 3), 0)):
        mod = build(case, shape)
        values = [np.random.default_rng(0).standard_normal(shape).astype("float32")]
        report = AlgebraReport()
        after = rewrite_algebra("strict", report)(mod)
        assert (report.scaled, report.centred) == (scaled, 0)
        for got, wanted in zip(*(run(tvm.compile(each, TARGET), values) for each in (after, mod)), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
