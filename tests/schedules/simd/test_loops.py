"""Marked loops, against numpy: reductions, remainders, conditions, addresses that follow a pattern, refusals."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax, te, tirx
from tvm.s_tir import Schedule

import tvm_ext
from tests.schedules.kernels import AWKWARD, TARGETS
from tvm_ext.passes.float_arithmetic import propagate_nan
from tvm_ext.passes.vector_code import vector_code
from tvm_ext.schedules.cpu.elementwise import Elementwise
from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.simd.loops import mark_simd

GUARD = 64
"""Elements behind every result that must keep their value."""


def marked(func: tirx.PrimFunc, block: str, lanes: int) -> Schedule:
    """Mark the innermost loop of a block; a reduction is given its initial value before the loop."""
    schedule = new_schedule(func)
    found = schedule.get_sblock(block)
    if schedule.get(found).init is not None:
        schedule.decompose_reduction(found, schedule.get_loops(found)[-1])
    mark_simd(schedule, schedule.get_loops(found)[-1], lanes)
    return schedule


def lowered(schedule: Schedule, target: str = "native") -> tirx.PrimFunc:
    with TARGETS[target]:
        return vector_code()(schedule.mod)["main"]


def run(func: tirx.PrimFunc, inputs: Sequence[np.ndarray], shape: Sequence[int], dtype: str, target: str) -> np.ndarray:
    """Run a kernel; its result lies in front of a guard that it must not touch."""
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    library = tvm.compile(module, target=TARGETS[target])
    size = int(np.prod(shape))
    memory = tvm.runtime.tensor(np.full(size + GUARD, 77, dtype))
    out = memory._create_view(tuple(shape), dtype)
    library["main"](*(tvm.runtime.tensor(array) for array in inputs), out)
    whole = memory.numpy()
    np.testing.assert_array_equal(whole[size:], np.full(GUARD, 77, dtype))
    return whole[:size].reshape(shape)


def row_reduction(rows: int, columns: int, reducer: Callable, dtype: str) -> tirx.PrimFunc:
    source = te.placeholder((rows, columns), dtype, "source")
    k = te.reduce_axis((0, columns), "k")
    return te.create_prim_func([source, te.compute((rows,), lambda i: reducer(source[i, k], k), name="reduced")])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("columns", [*AWKWARD, 16, 64, 128, 1000])
def test_sums_of_awkward_lengths(columns: int, target: str) -> None:
    x = np.random.default_rng(columns).standard_normal((5, columns)).astype(np.float32)
    func = lowered(marked(row_reduction(5, columns, te.sum, "float32"), "reduced", 16), target)
    result = run(func, [x], (5,), "float32", target)
    np.testing.assert_allclose(result, x.astype(np.float64).sum(1), rtol=2e-6, atol=1e-5)


@given(
    columns=st.integers(1, 140),
    lanes=st.sampled_from([2, 4, 8, 16]),
    reducer=st.sampled_from(["sum", "max", "min"]),
    dtype=st.sampled_from(["float32", "float64", "int32", "int64"]),
)
@settings(max_examples=25, deadline=None)
def test_reductions_of_any_length(columns: int, lanes: int, reducer: str, dtype: str) -> None:
    x = np.random.default_rng(columns).integers(-50, 50, (3, columns)).astype(dtype)
    func = lowered(marked(row_reduction(3, columns, getattr(te, reducer), dtype), "reduced", lanes))
    np.testing.assert_array_equal(run(func, [x], (3,), dtype, "native"), getattr(np, reducer)(x, axis=1))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("reducer", ["max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_nan_anywhere_is_the_extreme(dtype: str, reducer: str, target: str) -> None:
    for columns in (1, 3, 17, 64, 127):
        x = np.random.default_rng(columns).standard_normal((columns + 1, columns)).astype(dtype)
        x[:, 0] = np.inf if reducer == "max" else -np.inf
        np.fill_diagonal(x, np.nan)
        func = row_reduction(columns + 1, columns, getattr(te, reducer), dtype)
        with TARGETS[target]:
            mod = propagate_nan()(tvm.IRModule({"main": lowered(marked(func, "reduced", 16), target)}))
        result = run(mod["main"], [x], (columns + 1,), dtype, target)
        np.testing.assert_array_equal(result, getattr(np, reducer)(x, axis=1))


def test_the_halves_of_a_vector_are_looked_at_once() -> None:
    """A maximum names each operand twice: through nested names, TVM would look at the first vector for seconds."""
    x = relax.Var("x", relax.TensorType((7, 9), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.nn.softmax(x, axis=1)))
    start = time.process_time()
    tvm_ext.compile(builder.get())
    assert time.process_time() - start < 3


@pytest.mark.parametrize("target", TARGETS)
def test_division_of_a_row_by_any_number(target: str) -> None:
    """Rows are multiplied by a reciprocal, also where that of the divisor is infinite, zero or has lost its bits."""
    sizes = [1.0, 3.0, 2.0**-126, 2.0**-125, 1e-39, 1e-45, 0.0, 2.0**126, 2.0**127, 3.4e38, np.inf, np.nan]
    divisors = np.array([*sizes, *(-size for size in sizes)], "float32")
    numbers = [1.0, -7.0, 2.0**-120, 1e38, 3.4e38, 2.0**-100, 0.0, -0.0, np.inf, -np.inf, np.nan, 0.1, 3e-20]
    x = np.broadcast_to(np.array(numbers * 3, "float32"), (len(divisors), 3 * len(numbers))).copy()
    source, divisor = (
        te.placeholder(x.shape, "float32", "source"),
        te.placeholder((len(divisors),), "float32", "divisor"),
    )
    func = te.create_prim_func(
        [source, divisor, te.compute(x.shape, lambda i, j: source[i, j] / divisor[i], name="quotient")]
    )
    result = run(lowered(marked(func, "quotient", 8), target), [x, divisors], x.shape, "float32", target)
    with np.errstate(all="ignore"):
        expected = x / divisors[:, None]
    np.testing.assert_allclose(result, expected, rtol=2e-7, atol=2.0**-148)


@given(columns=st.integers(1, 140), rows=st.integers(1, 4), dtype=st.sampled_from(["float32", "int8", "int64", "bool"]))
@settings(max_examples=25, deadline=None)
def test_remainders_are_neither_missed_nor_overrun(columns: int, rows: int, dtype: str) -> None:
    x = np.random.default_rng(columns).integers(0, 2, (rows, columns)).astype(dtype)
    source = te.placeholder(x.shape, dtype, "source")
    func = te.create_prim_func([source, te.compute(x.shape, lambda i, j: source[i, j], name="copy")])
    np.testing.assert_array_equal(run(lowered(marked(func, "copy", 16)), [x], x.shape, dtype, "native"), x)


@given(columns=st.integers(1, 100), before=st.integers(0, 20), after=st.integers(0, 20))
@settings(max_examples=20, deadline=None)
def test_conditions_become_masks(columns: int, before: int, after: int) -> None:
    x = np.random.default_rng(columns).standard_normal((3, columns)).astype(np.float32)
    source = te.placeholder(x.shape, "float32", "source")
    width = before + columns + after

    def element(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        inside = tirx.all(j >= before, j < before + columns)
        return tirx.if_then_else(inside, source[i, j - before], tirx.const(0.5, "float32"))

    func = te.create_prim_func([source, te.compute((3, width), element, name="padded")])
    expected = np.pad(x, [(0, 0), (before, after)], constant_values=0.5)
    result = run(lowered(marked(func, "padded", 16)), [x], (3, width), "float32", "native")
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("columns", [3, 16, 17])
def test_choices_of_what_is_joined_need_no_masks_of_their_own(columns: int, target: str) -> None:
    """What is loaded where tensors are joined lies inside by the conditions of the join; chained choices add none."""
    left, right = (te.placeholder((count,), "float32", name) for count, name in ((columns - 2, "left"), (2, "right")))

    def element(i: tirx.Var) -> tirx.PrimExpr:
        value = tirx.if_then_else(i < columns - 2, left[i], right[i - (columns - 2)])
        for slope in (0.5, 0.25, 0.125):
            value = tirx.Select(value < tirx.const(0, "float32"), value * tirx.const(slope, "float32") + 1, value)
        return value

    func = te.create_prim_func([left, right, te.compute((columns,), element, name="chosen")])
    made = lowered(marked(func, "chosen", min(16, columns)), target)
    assert len(made.script()) < 60_000
    generator = np.random.default_rng(0)
    inputs = [generator.standard_normal(count).astype("float32") for count in (columns - 2, 2)]
    expected = np.concatenate(inputs)
    for slope in (0.5, 0.25, 0.125):
        expected = np.where(expected < 0, expected * np.float32(slope) + 1, expected)
    np.testing.assert_allclose(run(made, inputs, (columns,), "float32", target), expected, rtol=1e-6)


def next_choice(value: te.Tensor, bounds: te.Tensor) -> Callable:
    def chosen(*axes: tirx.Var) -> tirx.Select:
        now, bound = value[axes], bounds[axes[-1]]
        between = tirx.And(now < bound, now > -bound)
        return tirx.Select(between, now * 2, tirx.Select(now >= 0, now, bound - 1))

    return chosen


@pytest.mark.parametrize("shape", [(11,), (5, 11)])
def test_choices_within_choices_of_open_extents_compile(shape: tuple[int, ...]) -> None:
    """A mask is written out in all that it masks, and so in the next mask: some of these took hours to compile."""
    extents = [tirx.Var(name, "int64") for name in ("rows", "columns")[-len(shape) :]]
    value = position = te.placeholder(extents, "float32", "position")
    bounds = te.placeholder(extents[-1:], "float32", "bounds")
    for link in range(3):
        value = te.compute(extents, next_choice(value, bounds), f"value_{link}")
    func = te.create_prim_func([position, bounds, value])
    with TARGETS["native"]:
        schedule = Elementwise().apply(func, TARGETS["native"])
        assert schedule is not None
        kernel = vector_code()(schedule.mod)["main"]
    text = kernel.script()
    assert len(text) < 100_000
    if len(shape) == 1:  # no iteration leaves its tensor: nothing to mask where the vectors are whole
        assert "masked" not in text.split("if columns %")[0]
    generator = np.random.default_rng(0)
    x, limits = generator.normal(0, 4, shape).astype("float32"), generator.uniform(0, 3, 11).astype("float32")
    expected = x
    for _ in range(3):
        between = (expected < limits) & (expected > -limits)
        expected = np.where(between, expected * 2, np.where(expected >= 0, expected, limits - 1))
    np.testing.assert_array_equal(run(kernel, [x, limits], shape, "float32", "native"), expected)


@pytest.mark.parametrize("number", ["int64", "float32"])
def test_truth_values_as_numbers_that_come_twice(number: str) -> None:
    """TVM names what comes twice, and asks for its bounds; those of converted truth values it cannot tell."""
    x = np.arange(3 * 33, dtype=np.float32).reshape(3, 33)
    source = te.placeholder(x.shape, "float32", "source")

    def element(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        inside = tirx.all(j % 9 >= 1, j % 9 < 4).astype(number)
        return tirx.if_then_else(inside > 0, -source[i, j], source[i, j] + inside.astype("float32") * 3 + 1)

    func = lowered(marked(te.create_prim_func([source, te.compute(x.shape, element, name="chosen")]), "chosen", 16))
    column = np.arange(33) % 9
    expected = np.where((column >= 1) & (column < 4), -x, x + 1)
    np.testing.assert_array_equal(run(func, [x], x.shape, "float32", "native"), expected)


PATTERNS: dict[str, tuple[Callable, Callable[[np.ndarray], np.ndarray]]] = {
    "every second": (lambda j: 2 * j, lambda x: x[:, ::2]),
    "backwards": (lambda j: 127 - j, lambda x: x[:, ::-1]),
    "each twice": (lambda j: j // 2, lambda x: np.repeat(x, 2, axis=1)[:, :128]),
    "two halves in turn": (
        lambda j: j % 2 * 64 + j // 2,
        lambda x: x.reshape(-1, 2, 64).transpose(0, 2, 1).reshape(-1, 128),
    ),
    "each five times": (lambda j: j // 5, lambda x: np.repeat(x, 5, axis=1)[:, :128]),
    "scattered": (lambda j: j * 37 % 128, lambda x: x[:, np.arange(128) * 37 % 128]),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("width", [64, 61, 17])
def test_addresses_that_follow_a_pattern(pattern: str, width: int, target: str) -> None:
    address, expected = PATTERNS[pattern]
    x = np.random.default_rng(0).standard_normal((3, 128)).astype(np.float32)
    source = te.placeholder(x.shape, "float32", "source")
    func = te.create_prim_func([source, te.compute((3, width), lambda i, j: source[i, address(j)], name="picked")])
    result = run(lowered(marked(func, "picked", 16), target), [x], (3, width), "float32", target)
    np.testing.assert_array_equal(result, expected(x)[:, :width])


def test_several_sums_in_one_loop() -> None:
    x = np.random.default_rng(0).standard_normal((4, 77)).astype(np.float32)
    source = te.placeholder(x.shape, "float32", "source")
    k = te.reduce_axis((0, 77), "k")
    both = te.comm_reducer(
        lambda a, b: (a[0] + b[0], a[1] + b[1]), lambda *types: tuple(tirx.const(0, dtype) for dtype in types), "both"
    )
    sums = te.compute((4,), lambda i: both((source[i, k], source[i, k] * source[i, k]), axis=k), name="sums")
    total = te.compute((4,), lambda i: sums[0][i] + sums[1][i], name="total")
    func = lowered(marked(te.create_prim_func([source, total]), "sums", 16))
    assert "partial" in str(func)
    np.testing.assert_allclose(run(func, [x], (4,), "float32", "native"), (x + x * x).sum(1), rtol=1e-5)


def test_a_recurrence_stays_a_loop() -> None:
    source = te.placeholder((64,), "float32", "source")

    def body(ins: list[tirx.Buffer], outs: list[tirx.Buffer]) -> tirx.Stmt:
        i = tvm.ir.Var("i", tvm.ir.PrimType("int32"))
        previous = tirx.if_then_else(i > 0, tirx.BufferLoad(outs[0], [tirx.max(i - 1, 0)]), tirx.const(0, "float32"))
        store = tirx.BufferStore(outs[0], previous + tirx.BufferLoad(ins[0], [i]), [i])
        return tirx.For(i, 0, 64, tirx.ForKind.SERIAL, store, annotations={"tvm_ext.simd": 16})

    running = te.extern((64,), [source], body, name="running", dtype="float32")
    func = te.create_prim_func([source, running])
    x = np.random.default_rng(0).integers(-9, 9, 64).astype(np.float32)
    with TARGETS["native"]:
        vectorised = vector_code()(tvm.IRModule({"main": func}))["main"]
    np.testing.assert_array_equal(run(vectorised, [x], (64,), "float32", "native"), np.cumsum(x))
