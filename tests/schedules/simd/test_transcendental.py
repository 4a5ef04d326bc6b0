"""Transcendental functions as arithmetic, against double precision."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.ir.prim import expr as prim

from tests.cpu import IS_X86
from tests.schedules.kernels import TARGETS, assembly, compile_graph
from tests.schedules.simd.test_loops import lowered, marked, run
from tvm_ext.schedules.cpu.elementwise import Elementwise
from tvm_ext.schedules.cpu.machine import machine_of
from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.simd.expansion import expand_all
from tvm_ext.schedules.simd.piecewise import ERF_WIDTHS
from tvm_ext.schedules.simd.polynomial import interpolate
from tvm_ext.schedules.simd.transcendental import expand, expands

COUNT = 1 << 16
SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-45, -1e-45, 88.6, 88.8, -87.4, -103.9, -104.5, 3.4e38, -3.4e38],
    np.float32,
)
# Name of the function, reference in double precision, bound of the relative error.
FUNCTIONS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "exp": (np.exp, 1.0e-7),
    "tanh": (np.tanh, 2.0e-7),
    "sigmoid": (lambda x: np.where(x < 0, np.exp(x) / (1 + np.exp(x)), 1 / (1 + np.exp(-x))), 2.0e-7),
    "log": (np.log, 1.2e-7),
    "log1p": (np.log1p, 1.5e-7),
    "erf": (np.vectorize(math.erf, otypes=[float]), 1.5e-7),
    "acos": (np.arccos, 2.0e-7),
    "acosh": (np.arccosh, 2.0e-7),
    "asin": (np.arcsin, 2.0e-7),
    "asinh": (np.arcsinh, 2.0e-7),
    "atan": (np.arctan, 2.0e-7),
    "atanh": (np.arctanh, 2.0e-7),
    "cosh": (np.cosh, 2.0e-7),
    "sinh": (np.sinh, 2.0e-7),
}
NAMED_AS_IN_C = frozenset("acos acosh asin asinh atan atanh cosh sinh".split())


def inputs() -> np.ndarray:
    """Every kind of float32: random bits, values of everyday size, special ones."""
    random = np.random.default_rng(0)
    bits = random.integers(0, 1 << 32, COUNT // 2, dtype=np.uint32).view(np.float32)
    moderate = random.normal(0, 8, COUNT // 4).astype(np.float32)
    small = random.uniform(-1.5, 1.5, COUNT // 4 - len(SPECIAL)).astype(np.float32)
    return np.concatenate([bits, moderate, small, SPECIAL])


def function(name: str) -> Callable[[tirx.Expr], tirx.Expr]:
    """Give the call of a function as kernels have it."""
    if name in NAMED_AS_IN_C:
        return lambda value: tirx.call_pure_extern("float32", f"{name}f", value)
    return getattr(tirx, name)


def evaluate(value: Callable[[tirx.Expr], tirx.Expr], x: np.ndarray, target: tvm.target.Target) -> np.ndarray:
    """Compute ``value(x)`` for every element in a vectorised loop."""
    dtype, lanes = str(x.dtype), 16
    source, result = (tirx.decl_buffer((x.size,), dtype, name) for name in ("source", "result"))
    block, lane = (tvm.ir.Var(name, tvm.ir.PrimType("int32")) for name in ("block", "lane"))
    index = block * lanes + lane
    store = tirx.BufferStore(result, value(tirx.BufferLoad(source, [index])), [index])
    inner = tirx.For(lane, 0, lanes, tirx.ForKind.VECTORIZED, store)
    body = tirx.For(block, 0, x.size // lanes, tirx.ForKind.SERIAL, inner)
    func = tirx.PrimFunc([source, result], body).with_attr("global_symbol", "main").with_attr("s_tir", True)
    expanded = expand_all(func)
    assert not expanded.same_as(func)
    library = tvm.compile(tvm.IRModule({"main": expanded}), target=target)
    out = tvm.runtime.tensor(np.zeros_like(x))
    library["main"](tvm.runtime.tensor(x), out)
    return out.numpy()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_accuracy(name: str, target: str) -> None:
    reference, bound = FUNCTIONS[name]
    x = inputs()
    result = evaluate(function(name), x, TARGETS[target])
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.float64))
        expected = exact.astype(np.float32)
        error = np.abs(result - exact) / np.abs(exact)
    normal = np.isfinite(expected) & (np.abs(expected) >= np.finfo(np.float32).tiny)
    assert error[normal].max() <= bound
    assert normal.sum() > COUNT // 8
    special = ~np.isfinite(expected)
    np.testing.assert_array_equal(result[special], expected[special])
    tiny = ~normal & ~special
    assert np.abs(result[tiny] - expected[tiny]).max(initial=0.0) < 1.2e-38


@pytest.mark.skipif(machine_of(TARGETS["native"]).isa != "avx512", reason="this machine has no AVX-512")
def test_exp_by_a_table_of_powers() -> None:
    _, result, exact, expected, normal = exponentials(16, "native", ("vpermi2var", "scalef"))
    assert relative_error(result, exact)[normal].max() <= 1.7e-7
    # Subnormal results are right to their last bit; infinities, zeros and NaN are what the C library gives.
    np.testing.assert_allclose(result[~normal], expected[~normal], rtol=0, atol=np.finfo(np.float32).smallest_subnormal)


@pytest.mark.skipif(not IS_X86, reason="instructions of AVX2")
def test_exp_by_a_permutation_of_powers() -> None:
    x, result, exact, expected, normal = exponentials(8, "avx2", ("permps",))
    assert relative_error(result, exact)[normal].max() <= 1.0e-7
    np.testing.assert_allclose(result[~normal], expected[~normal], rtol=0, atol=6.2e-39)
    assert (result[x < -88.03] == 0).all()  # a masked element has no weight at all
    finite = np.isfinite(x) & np.isfinite(result)
    ordered = result[finite][np.argsort(x[finite])]
    assert (np.diff(ordered) >= -2e-7 * ordered[1:]).all()  # never falls by more than the rounding


@pytest.mark.skipif(machine_of(TARGETS["native"]).isa != "avx512", reason="this machine has no AVX-512")
def test_sigmoid_without_division() -> None:
    x = np.concatenate([inputs(), np.linspace(-104.5, 104.5, COUNT, dtype=np.float32)])
    source = te.placeholder(x.shape, "float32", "source")
    func = te.create_prim_func([source, te.compute(x.shape, lambda i: tirx.sigmoid(source[i]), name="sigmoid")])
    kernel = lowered(marked(func, "sigmoid", 16))
    assert "rcp14" in str(kernel)
    result = run(kernel, [x], x.shape, "float32", "native")
    with np.errstate(invalid="ignore"):
        exact = FUNCTIONS["sigmoid"][0](x.astype(np.float64).clip(-700, 700))
    normal = exact >= np.finfo(np.float32).tiny
    assert relative_error(result, exact)[normal].max() <= 2.5e-7
    np.testing.assert_array_equal(np.isnan(result), np.isnan(x))
    small = ~normal & ~np.isnan(x)
    assert np.abs(result[small] - exact[small]).max() < 7e-39
    np.testing.assert_array_equal(result[np.isinf(x)], x[np.isinf(x)] > 0)


@pytest.mark.skipif(machine_of(TARGETS["native"]).isa != "avx512", reason="this machine has no AVX-512")
@pytest.mark.parametrize(("name", "part"), [("exp", "vpermi2var"), ("sigmoid", "rcp14"), ("erf", "permvar")])
def test_loops_left_to_tvms_vectoriser_use_tables_too(name: str, part: str) -> None:
    x = np.random.default_rng(0).normal(0, 3, (33, 16)).astype(np.float32)
    source = te.placeholder(x.shape, "float32", "source")
    func = te.create_prim_func([source, te.compute(x.shape, lambda i, j: getattr(tirx, name)(source[i, j]), name="f")])
    schedule = new_schedule(func)
    schedule.vectorize(schedule.get_loops(schedule.get_sblock("f"))[-1])
    kernel = lowered(schedule)
    assert part in str(kernel)
    result = run(kernel, [x], x.shape, "float32", "native")
    np.testing.assert_allclose(result, FUNCTIONS[name][0](x.astype(np.float64)), rtol=3e-7)


@pytest.mark.parametrize(
    ("lanes", "target", "part"),
    [
        pytest.param(
            16,
            "native",
            "permvar",
            marks=pytest.mark.skipif(
                machine_of(TARGETS["native"]).isa != "avx512", reason="this machine has no AVX-512"
            ),
        ),
        pytest.param(8, "avx2", "permps", marks=pytest.mark.skipif(not IS_X86, reason="instructions of AVX2")),
    ],
)
def test_erf_by_pieces(lanes: int, target: str, part: str) -> None:
    borders = (np.arange(lanes) + 0.5).astype(np.float32) * np.float32(ERF_WIDTHS[lanes])
    near = np.concatenate([np.nextafter(borders, np.float32(end)) for end in (-9, 9)])
    x = np.concatenate([inputs(), np.linspace(-4.5, 4.5, COUNT, dtype=np.float32), borders, near, -borders, -near])
    source = te.placeholder(x.shape, "float32", "source")
    func = te.create_prim_func([source, te.compute(x.shape, lambda i: tirx.erf(source[i]), name="erf")])
    kernel = lowered(marked(func, "erf", lanes), target)
    assert part in str(kernel)
    result = run(kernel, [x], x.shape, "float32", target)
    with np.errstate(invalid="ignore"):
        exact = np.vectorize(math.erf, otypes=[float])(x.astype(np.float64))
    normal = np.abs(exact) >= np.finfo(np.float32).tiny
    assert relative_error(result, exact)[normal].max() <= 1.9e-7
    np.testing.assert_array_equal(result[np.isnan(x)], np.float32("nan"))
    np.testing.assert_array_equal(np.signbit(result)[~np.isnan(x)], np.signbit(x)[~np.isnan(x)])
    assert np.abs(result[~np.isnan(x)]).max() == 1.0
    small = ~normal & ~np.isnan(x)
    assert np.abs(result[small] - exact[small]).max() < 1.2e-38


def exponentials(
    lanes: int, target: str, parts: tuple[str, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Compute ``exp`` of everything between its limits in vectors; arguments, results, exact and rounded values, and
    which of them are normal numbers."""
    edges = [88.3762, 88.376, 88.68, 88.7, 88.72, 88.7228, 88.72284, 88.7229, -87.3, -87.336, -87.34, -88.0, -88.03]
    x = np.concatenate([inputs(), np.linspace(-104.5, 89.5, COUNT, dtype=np.float32), np.array(edges, np.float32)])
    source = te.placeholder(x.shape, "float32", "source")
    func = te.create_prim_func([source, te.compute(x.shape, lambda i: tirx.exp(source[i]), name="power")])
    kernel = lowered(marked(func, "power", lanes), target)
    assert all(part in str(kernel) for part in parts)
    result = run(kernel, [x], x.shape, "float32", target)
    with np.errstate(all="ignore"):
        exact = np.exp(x.astype(np.float64))
        expected = exact.astype(np.float32)
    return x, result, exact, expected, np.isfinite(expected) & (expected >= np.finfo(np.float32).tiny)


def relative_error(result: np.ndarray, exact: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.abs(result - exact) / np.abs(exact)


@pytest.mark.parametrize(
    "exponent", [-4.0, -2.0, -1.5, -1.0, -0.75, -0.5, -0.25, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_powers_with_small_constant_exponents(exponent: float, dtype: str) -> None:
    x = np.concatenate([np.random.default_rng(0).normal(0, 3, 1020), [np.inf, -np.inf, 0.0, np.nan]]).astype(dtype)
    result = evaluate(lambda value: tirx.pow(value, tirx.const(exponent, dtype)), x, TARGETS["native"])
    with np.errstate(all="ignore"):
        expected = np.power(x, np.full_like(x, exponent))  # as the C library has it, not as sqrt
    np.testing.assert_allclose(result, expected, rtol=8 * np.finfo(dtype).eps)


@pytest.mark.parametrize("exponent", [-33.0, -5.0, -2.5, -0.3, 0.1, 1 / 2.2, 2.4, 5.0, 7.0, 10.0, 101.5])
@pytest.mark.parametrize("as_in_c", [False, True])
def test_powers_with_other_constant_exponents(exponent: float, as_in_c: bool) -> None:
    exponent = float(np.float32(exponent))
    x = inputs()
    constant = tirx.const(exponent, "float32")

    def power(value: tirx.Expr) -> tirx.Expr:
        return tirx.call_pure_extern("float32", "powf", value, constant) if as_in_c else tirx.pow(value, constant)

    assert_powers(evaluate(power, x, TARGETS["native"]), x, np.full_like(x, exponent))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lanes", [8, 1])
@pytest.mark.parametrize("kind", ["everyday", "any"])
def test_powers(kind: str, lanes: int, target: str) -> None:
    random = np.random.default_rng(0)
    if kind == "everyday":
        x, y = random.uniform(0, 9, COUNT).astype(np.float32), random.uniform(-3, 12, COUNT).astype(np.float32)
        x[::7] = 0.0
    else:
        x, y = inputs(), random.permutation(inputs())
        x[::3], y[1::3] = np.abs(x[::3]), random.integers(-9, 9, len(y[1::3]))
    sources = [te.placeholder(x.shape, "float32", name) for name in ("base", "exponent")]
    result = te.compute(x.shape, lambda i: tirx.pow(sources[0][i], sources[1][i]), name="power")
    func = te.create_prim_func([*sources, result])
    kernel = lowered(marked(func, "power", lanes) if lanes > 1 else new_schedule(func), target)
    assert_powers(run(kernel, [x, y], x.shape, "float32", target), x, y)


def assert_powers(result: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
        expected = exact.astype(np.float32)
    normal = np.isfinite(expected) & (np.abs(expected) >= np.finfo(np.float32).tiny)
    assert relative_error(result, exact)[normal].max() <= 1.5e-7
    special = ~np.isfinite(expected)
    np.testing.assert_array_equal(result[special], expected[special])
    zeros = expected == 0
    np.testing.assert_array_equal(np.signbit(result[zeros]), np.signbit(expected[zeros]))
    tiny = ~normal & ~special
    assert np.abs(result[tiny] - expected[tiny]).max(initial=0.0) < 1.2e-38


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lanes", [8, 1])
@pytest.mark.parametrize("kind", ["everyday", "any"])
@pytest.mark.parametrize("as_in_c", [False, True])
def test_remainders(as_in_c: bool, kind: str, lanes: int, target: str) -> None:
    random = np.random.default_rng(0)
    if kind == "everyday":
        y = random.uniform(-5, 5, COUNT).astype(np.float32)
        x = random.normal(0, 100, COUNT).astype(np.float32)
        wholes = random.integers(-999, 999, COUNT)[::3]
        x[::3] = wholes * y[::3]
        x[1::9] = np.nextafter(x[1::9], np.float32(0))
        y[2::5] = 1.0
    else:
        x, y = inputs(), random.permutation(inputs())
    sources = [te.placeholder(x.shape, "float32", name) for name in ("dividend", "divisor")]

    def rest(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
        return tirx.call_pure_extern("float32", "fmodf", a, b) if as_in_c else prim.Mod(a, b)

    result = te.compute(x.shape, lambda i: rest(sources[0][i], sources[1][i]), name="rest")
    func = te.create_prim_func([*sources, result])
    kernel = lowered(marked(func, "rest", lanes) if lanes > 1 else new_schedule(func), target)
    result = run(kernel, [x, y], x.shape, "float32", target)
    with np.errstate(all="ignore"):
        expected = np.fmod(x, y)
    np.testing.assert_array_equal(result, expected)
    ordinary = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(result[ordinary]), np.signbit(expected[ordinary]))


def test_half_precision_goes_through_single_precision() -> None:
    x = np.random.default_rng(0).normal(0, 3, 1024).astype(np.float16)
    result = evaluate(tirx.tanh, x, TARGETS["native"])
    np.testing.assert_array_equal(result, np.tanh(x.astype(np.float64)).astype(np.float16))


def test_what_is_not_rewritten() -> None:
    single, double = (tvm.ir.Var("x", tvm.ir.PrimType(dtype)) for dtype in ("float32", "float64"))
    for call in (
        tirx.sqrt(single),
        tirx.exp(double),
        tirx.pow(double, double),
        tirx.pow(single, tirx.const(0.0, "float32")),
        tirx.call_pure_extern("float64", "atan", double),
        tirx.call_pure_extern("float32", "fmaf", single, single, single),
    ):
        assert not expands(call)
        assert expand(call).same_as(call)


def test_no_function_is_called() -> None:
    """A vectorised erf calls ``erff`` for every lane unless it is expanded."""
    x = np.zeros((4, 64), np.float32)
    compiled = compile_graph(lambda _, v: relax.op.nn.gelu(v), [x], [Elementwise()])
    (kernel,) = compiled.kernels.values()
    assert "erff" not in assembly(kernel)
    unexpanded = tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
    assert "erff" in str(tvm.compile(unexpanded, TARGETS["native"]).mod.inspect_source("asm"))


def test_interpolation_meets_the_function() -> None:
    coefficients = interpolate(math.cos, -1.0, 1.0, 8)
    x = np.linspace(-1, 1, 101)
    assert len(coefficients) == 9
    np.testing.assert_allclose(np.polynomial.Polynomial(coefficients)(x), np.cos(x), atol=1e-7)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["sin", "cos"])
@pytest.mark.parametrize("lanes", [8, 1])
def test_sine_and_cosine(lanes: int, name: str, target: str) -> None:
    """Of everyday values, next to multiples of pi / 2, of large ones and of those that the library computes."""
    random = np.random.default_rng(0)
    quarters = (np.arange(-4096, 4096) * (np.pi / 2)).astype(np.float32)
    near = np.concatenate([np.nextafter(quarters, np.float32(end)) for end in (-np.inf, np.inf)])
    moderate = random.normal(0, 8, COUNT // 4).astype(np.float32)
    large = np.float32(2) ** random.uniform(3, 27.5, COUNT // 4).astype(np.float32)
    x = np.concatenate([moderate, quarters, near, large, inputs()])
    reference = getattr(np, name)
    source = te.placeholder(x.shape, "float32", "source")
    func = te.create_prim_func([source, te.compute(x.shape, lambda i: getattr(tirx, name)(source[i]), name=name)])
    kernel = lowered(marked(func, name, lanes) if lanes > 1 else new_schedule(func), target)
    result = run(kernel, [x], x.shape, "float32", target)
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.float64))
        expected = exact.astype(np.float32)
    finite = np.isfinite(x)
    ordinary = finite & (np.abs(expected) >= np.finfo(np.float32).tiny)
    assert relative_error(result, exact)[ordinary].max() <= 1.5e-7
    np.testing.assert_array_equal(np.isnan(result), ~finite)
    np.testing.assert_allclose(result[finite & ~ordinary], expected[finite & ~ordinary], rtol=0, atol=1.2e-38)
    zeros = x == 0
    np.testing.assert_array_equal(np.signbit(result[zeros]), np.signbit(expected[zeros]))


@pytest.mark.skipif(not IS_X86, reason="instructions of AVX2")
def test_sines_are_computed_in_vectors() -> None:
    x = np.zeros((4, 64), np.float32)
    compiled = compile_graph(lambda _, v: relax.op.sin(v), [x], [Elementwise()], TARGETS["avx2"])
    (kernel,) = compiled.kernels.values()
    text = assembly(kernel, TARGETS["avx2"])
    assert "vcvtps2pd" in text
    assert "vfmadd231ps" in text or "vfmadd213ps" in text
