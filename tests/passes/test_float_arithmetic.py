"""Floats that are not finite go through kernels as IEEE 754 says, whatever TVM's simplifier takes for granted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op
from tvm.script import ir as I
from tvm.script import tirx as T

import tvm_ext
from tests.fusion.relax.test_fuse import build
from tests.modules import run
from tvm_ext.passes.float_arithmetic import propagate_nan, protect_cancellations

NAN, INF = np.float32("nan"), np.float32("inf")
LEFT = np.array([NAN, 1, 2, -3, INF, -INF, 0, NAN, 5, -1, 2.5, INF, 0.25, -0.5, -0.0, NAN, 4], "float32")
RIGHT = np.array([2, NAN, 1, -5, INF, 1, NAN, NAN, -5, 1, 2.5, -INF, -0.25, 0.5, NAN, 3, 4], "float32")


@I.ir_module
class Extremes:
    """Maxima and minima with constants and variables, simple and compound, in scalar and in vector code."""

    @T.prim_func
    def main(x: T.Buffer((16,), "float32"), y: T.Buffer((16,), "float32"), z: T.Buffer((6, 16), "float32")) -> None:
        for i in T.serial(16):
            z[0, i] = T.max(x[i], T.float32(0))
            z[1, i] = T.min(x[i], y[i])
            z[2, i] = T.max(x[i] * T.float32(2), y[i] + T.float32(1))
            z[3, i] = T.max(T.max(x[i] + T.float32(1), y[i]), T.min(y[i] * x[i], T.float32(3)))
        for i in T.vectorized(16):
            z[4, i] = T.max(x[i], y[i])
        z[5, 0:16] = T.min(x[T.ramp(0, 1, 16)], T.broadcast(T.float32(1), 16))


@pytest.mark.parametrize("cpu", ["x86-64-v2", "haswell", "skylake-avx512"])
def test_extremes_are_nan_where_an_operand_is(cpu: str) -> None:
    if cpu == "skylake-avx512" and "avx512f" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this machine has no AVX-512")
    mod = propagate_nan()(Extremes)
    function = tvm.compile(mod, tvm.target.Target({"kind": "llvm", "mcpu": cpu}))
    x, y = LEFT[:16], RIGHT[:16]
    result = tvm.runtime.tensor(np.zeros((6, 16), "float32"))
    function(tvm.runtime.tensor(x), tvm.runtime.tensor(y), result)
    with np.errstate(invalid="ignore"):
        expected = [
            np.maximum(x, 0),
            np.minimum(x, y),
            np.maximum(x * 2, y + 1),
            np.maximum(np.maximum(x + 1, y), np.minimum(y * x, 3)),
            np.maximum(x, y),
            np.minimum(x, 1),
        ]
    np.testing.assert_array_equal(result.numpy(), np.stack(expected))


def test_a_maximum_with_a_constant_costs_nothing() -> None:
    """The operands change places; no second comparison is made."""
    script = propagate_nan()(Extremes).script()
    assert "z[0, i] = T.max(T.float32(0.0), x[i])" in script


@I.ir_module
class Differences:
    """What the simplifier would cancel."""

    @T.prim_func
    def main(x: T.Buffer((17,), "float32"), y: T.Buffer((17,), "float32"), z: T.Buffer((4, 17), "float32")) -> None:
        for i in T.serial(17):
            z[0, i] = x[i] * y[i] - x[i] * y[i]
            z[1, i] = (x[i] + y[i]) - y[i]
            z[2, i] = T.Select(x[i] == x[i], T.float32(1), T.float32(2))
            z[3, i] = T.Select(x[i] != x[i], T.float32(1), T.float32(2))


def test_differences_are_not_cancelled() -> None:
    function = tvm.compile(protect_cancellations()(Differences), tvm.target.Target("llvm"))
    x, y = LEFT, RIGHT.copy()
    y[2] = 1e9  # 2 + 1e9 - 1e9 is 0 in float32
    result = tvm.runtime.tensor(np.zeros((4, 17), "float32"))
    function(tvm.runtime.tensor(x), tvm.runtime.tensor(y), result)
    with np.errstate(invalid="ignore"):
        product, added = x * y - x * y, (x + y) - y
    assert added[2] == 0
    expected = np.stack([product, added, np.where(np.isnan(x), 2, 1), np.where(np.isnan(x), 1, 2)])
    np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("columns", [5, 33])
def test_a_difference_of_equal_products_is_nothing(columns: int) -> None:
    """A fused multiply-add would leave what one of the products loses by being rounded."""

    def make(emit: Any, x: relax.Var) -> relax.Var:
        angle = emit(op.asinh(x))
        product = emit(op.multiply(emit(op.log(angle)), angle))
        return emit(op.subtract(product, product))

    x = np.random.default_rng(0).uniform(1, 9, (7, columns)).astype("float32")
    x[0, :5] = NAN, INF, -INF, 0, 3e38
    (found,) = run(tvm_ext.compile(build(make, x.shape), fuse="mapping-type", rewrite="strict").executable, [x])
    expected = np.zeros_like(x)
    expected[0, :4] = NAN
    np.testing.assert_array_equal(found, expected)
    assert not np.signbit(found[1:]).any()


@pytest.mark.parametrize("level", ["x86-64-v2", "haswell"])
def test_divisors_that_are_zero_in_a_part_of_the_loop(level: str) -> None:
    """TVM makes that part a loop of its own, and refuses to divide by the literal."""

    def make(emit: Any, x: relax.Var) -> relax.Var:
        padded = emit(op.nn.pad(x, [1, 0, 3, 1, 4, 3]))
        is_less = emit(op.astype(emit(op.less(padded, padded)), "float32"))
        return emit(op.add(is_less, emit(op.divide(relax.const(1.0), padded))))

    x = np.random.default_rng(0).standard_normal((3, 5, 16)).astype("float32")
    target = tvm.target.Target({"kind": "llvm", "mcpu": level})
    (found,) = run(tvm_ext.compile(build(make, x.shape), target, fuse="mapping-type").executable, [x])
    with np.errstate(divide="ignore"):
        expected = 1 / np.pad(x, [(1, 0), (3, 1), (4, 3)])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_other_kernels_stay_as_they_are() -> None:
    @I.ir_module
    class Plain:
        @T.prim_func
        def main(x: T.Buffer((16,), "float32"), y: T.Buffer((16,), "int32")) -> None:
            for i in T.serial(16):
                x[i] = x[i] - T.float32(1)
                y[i] = T.max(y[i] - y[i], 3)

    for made in (protect_cancellations(), propagate_nan()):
        tvm.ir.assert_structural_equal(made(Plain), Plain)


OPERATORS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "relu": (lambda x, y: op.nn.relu(x), lambda x, y: np.maximum(x, 0)),
    "leaky_relu": (lambda x, y: op.nn.leakyrelu(x, 0.5), lambda x, y: np.where(x > 0, x, x / 2)),
    "leaky_relu_of_slope_zero": (lambda x, y: op.nn.leakyrelu(x, 0.0), lambda x, y: np.maximum(x, 0)),
    "clip": (lambda x, y: op.clip(x, -1, 2), lambda x, y: np.clip(x, -1, 2)),
    "maximum": (lambda x, y: op.maximum(x, y), np.maximum),
    "minimum": (lambda x, y: op.minimum(y, x), np.minimum),
    "sign": (lambda x, y: op.sign(x), lambda x, y: np.sign(x)),
    "inverse_of_sign": (
        lambda x, y: op.divide(relax.const(np.float32(1)), op.sign(x)),
        lambda x, y: np.divide(1, np.sign(x)),
    ),
    "quotient_by_zero": (lambda x, y: op.divide(x, relax.const(np.float32(0))), lambda x, y: x / np.float32(0)),
    "quotient_by_minus_zero": (lambda x, y: op.divide(x, relax.const(np.float32(-0.0))), lambda x, y: x / -0.0),
    "max": (lambda x, y: op.max(x, axis=[1]), lambda x, y: x.max(1)),
    "min": (lambda x, y: op.min(x, axis=[0]), lambda x, y: x.min(0)),
    "truth": (lambda x, y: op.astype(x, "bool"), lambda x, y: x != 0),
    "not_equal": (lambda x, y: op.not_equal(x, y), np.not_equal),
    "equal": (lambda x, y: op.equal(x, y), np.equal),
    "not_less": (lambda x, y: op.logical_not(op.less(x, y)), lambda x, y: ~(x < y)),
    "not_greater_equal": (lambda x, y: op.logical_not(op.greater_equal(x, y)), lambda x, y: ~(x >= y)),
    "neither": (
        lambda x, y: op.logical_not(op.logical_or(op.less(x, y), op.equal(x, relax.const(1.5)))),
        lambda x, y: ~((x < y) | (x == 1.5)),
    ),
    "not_both": (
        lambda x, y: op.where(op.logical_not(op.logical_and(op.greater(x, y), op.less_equal(x, y))), x, y),
        lambda x, y: x,
    ),
    "less_or_not": (
        lambda x, y: op.logical_or(op.less(x, y), op.less_equal(y, x)),
        lambda x, y: (x < y) | (y <= x),
    ),
    "comparable": (
        lambda x, y: op.logical_or(op.logical_or(op.greater(x, y), op.less(x, y)), op.equal(y, x)),
        lambda x, y: (x > y) | (x < y) | (x == y),
    ),
    "at_most": (
        lambda x, y: op.logical_or(op.equal(y, x), op.greater(y, x)),
        lambda x, y: x <= y,
    ),
    "unless_equal": (
        lambda x, y: op.where(op.logical_not(op.equal(x, y)), x, -y),
        lambda x, y: np.where(x == y, -y, x),
    ),
    "difference_of_maximum": (lambda x, y: op.subtract(op.maximum(x, x), x), lambda x, y: x - x),
    "difference": (lambda x, y: op.subtract(x, x), lambda x, y: x - x),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_hand_nan_on(name: str) -> None:
    operator, expected = OPERATORS[name]
    shape = (33, 17)

    def make(emit: Any, x: relax.Var, y: relax.Var) -> relax.Var:
        return emit(operator(emit(op.multiply(x, relax.const(1.5))), y))

    generator = np.random.default_rng(0)
    x, y = (generator.choice(values, shape).astype("float32") for values in (LEFT, RIGHT))
    x[3] = y[5] = x[:, 4] = 1.25  # a row and a column without
    (found,) = run(tvm_ext.compile(build(make, shape, shape)).executable, [x, y])
    with np.errstate(invalid="ignore", divide="ignore"):
        np.testing.assert_array_equal(found, expected(x * np.float32(1.5), y))


@pytest.mark.parametrize("columns", [3, 16, 17])
def test_the_sign_of_a_product_of_what_is_no_number(columns: int) -> None:
    """A kernel whose last vector is masked computes the sign of its product by choices within choices."""

    def make(emit: Any, x: relax.Var, y: relax.Var) -> relax.Var:
        return emit(op.sign(emit(op.matmul(x, y))))

    generator = np.random.default_rng(0)
    x = generator.standard_normal((35, 5)).astype("float32")
    x[2, 1], x[3, 0], x[3, 2], x[4] = NAN, INF, -INF, 0
    y = np.abs(generator.standard_normal((5, columns))).astype("float32")
    (found,) = run(tvm_ext.compile(build(make, x.shape, y.shape)).executable, [x, y])
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found, np.sign(x @ y))


@pytest.mark.parametrize("name", ["acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_functions_of_the_c_library_in_every_precision(name: str, dtype: str) -> None:
    def make(emit: Any, x: relax.Var) -> relax.Var:
        return emit(getattr(op, name)(emit(op.astype(x, dtype))))

    x = (np.linspace(0.01, 0.99, 33) + (1 if name == "acosh" else 0)).astype("float32")
    if name not in ("acos", "acosh", "cosh"):
        x[:5] = 1e-3, -1e-5, 3e-4, 0, -0.25
    (found,) = run(tvm_ext.compile(build(make, x.shape)).executable, [x])
    reference = getattr(np, name.replace("a", "arc", 1) if name.startswith("a") else name)
    expected = reference(x.astype(dtype).astype("float64"))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol={"float16": 2e-3, "float32": 2e-6, "float64": 1e-14}[dtype])


@pytest.mark.parametrize("name", ["acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh"])
def test_functions_of_the_c_library_behind_a_product(name: str) -> None:
    """In a kernel whose loops are vectors."""

    def make(emit: Any, x: relax.Var, y: relax.Var) -> relax.Var:
        return emit(getattr(op, name)(emit(op.matmul(x, y))))

    generator = np.random.default_rng(0)
    x, y = (generator.uniform(0.1, 0.5, shape).astype("float32") for shape in ((6, 5), (5, 64)))
    (found,) = run(tvm_ext.compile(build(make, x.shape, y.shape)).executable, [x, y])
    with np.errstate(invalid="ignore"):
        expected = getattr(np, name.replace("a", "arc", 1) if name.startswith("a") else name)(x @ y)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("exponent", [3.0, 4.0, 5.0, 7.5])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("rows", [7, "rows"])
def test_large_constant_powers(capfd: pytest.CaptureFixture[str], exponent: float, dtype: str, rows: int | str) -> None:
    """TVM writes a line for each that it makes or simplifies."""
    mod = relax_power(rows, exponent, dtype)
    x = np.linspace(-2, 2, 7 * 5).reshape(7, 5).astype(dtype)
    x[0] = 0, -0.0, INF, -INF, NAN
    (found,) = run(tvm_ext.compile(mod).executable, [x])
    with np.errstate(invalid="ignore"):
        expected = np.power(x.astype("float64"), exponent)
    tolerance = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-14}[dtype]
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=1e-4 * tolerance)
    assert capfd.readouterr().err == ""


def relax_power(rows: int | str, exponent: float, dtype: str) -> tvm.IRModule:
    """``main``: the power of a matrix with five columns."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([tvm.tirx.Var(rows, "int64") if isinstance(rows, str) else rows, 5], dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(op.power(x, relax.const(exponent, dtype)))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize("dtype", ["uint8", "uint64"])
def test_unsigned_sums_that_share_a_term(dtype: str) -> None:
    values = np.array([0, 1, 7, np.iinfo(dtype).max] * 9, dtype)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([values.size], dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            more = builder.emit(op.add(x, relax.const(1, dtype)))
            results = [
                op.greater(more, x), op.less(more, x), op.less_equal(x, more), op.greater_equal(x, more),
                op.subtract(x, more),
            ]  # fmt: skip
            outputs = [builder.emit_output(builder.emit(result)) for result in results]
        builder.emit_func_output(relax.Tuple(outputs))
    more = values + values.dtype.type(1)  # wraps around
    expected = [more > values, more < values, values <= more, values >= more, values - more]
    for found, wanted in zip(tvm_ext.compile(builder.get()).run([values]).values(), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
