"""Rules as spaces of schedules: configurations that are drawn compute what numpy does, and records bring them back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.s_tir import Schedule
from tvm.script import relax as R

from scripts.cuda.emulate import compare
from scripts.cuda.kernels import Kernel, kernels_of, target_of
from tvm_ext.backends.cuda.keep_nan import keep_nan
from tvm_ext.backends.cuda.narrow_vectors import narrow_vectors
from tvm_ext.backends.cuda.validity import kernel_fault
from tvm_ext.schedules.cuda import RULES, TF32_RULES
from tvm_ext.schedules.cuda.finish import STEPS, finished
from tvm_ext.schedules.rule import ScheduleRule, tunable_cost, tunable_schedule, tunable_with
from tvm_ext.tuners.metaschedule.trace_space import TraceSpace

TARGET = target_of("sm_90")
Build = Callable[..., relax.Expr]


def module(shapes: list[tuple[int, ...]], build: Build, dtype: str = "float32") -> tvm.IRModule:
    builder = relax.BlockBuilder()
    variables = [relax.Var(f"x{i}", R.Tensor(shape, dtype)) for i, shape in enumerate(shapes)]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(build(*variables))
        builder.emit_func_output(result)
    return builder.get()


def space_of(kernel: Kernel, rules: tuple[ScheduleRule, ...] = RULES) -> TraceSpace:
    func = kernel.before
    schedule = tunable_schedule(func, TARGET, rules)
    assert schedule is not None
    remake = partial(tunable_with, func, TARGET, rules)
    return TraceSpace.of(schedule, tvm.IRModule({"main": func}), tunable_cost(func, TARGET, rules), remake)


def of_halves(x: relax.Expr, y: relax.Expr) -> relax.Expr:
    return R.nn.relu(R.matmul(x, y, out_dtype="float32"))


CASES: dict[str, tuple[list[tuple[int, ...]], Build, str, str]] = {
    "product": ([(33, 65), (65, 17)], lambda x, y: R.nn.gelu(R.matmul(x, y)), "float32", "cuda.matmul"),
    "convolution": (
        [(1, 7, 9, 9), (17, 7, 3, 3)],
        lambda x, w: R.nn.relu(R.nn.conv2d(x, w, padding=1)),
        "float32",
        "cuda.matmul",
    ),
    "halves": ([(33, 70), (70, 40)], of_halves, "float16", "cuda.tensor_matmul"),
    "softmax": ([(24, 127)], lambda x: R.nn.softmax(x, -1), "float32", "cuda.row_reduction"),
    "softmax of columns": ([(127, 24)], lambda x: R.nn.softmax(x, 0), "float32", "cuda.row_reduction"),
    "layer norm": (
        [(17, 96), (96,), (96,)],
        lambda x, g, b: R.nn.layer_norm(x, g, b, -1),
        "float32",
        "cuda.row_reduction",
    ),
    "pooling": (
        [(1, 3, 17, 9)],
        lambda x: R.nn.max_pool2d(x, (3, 3), strides=(2, 2), padding=(1, 1)),
        "float32",
        "cuda.window",
    ),
    "transpose": ([(64, 3, 48)], lambda x: R.permute_dims(x, [2, 1, 0]), "float32", "cuda.transpose"),
}


@pytest.mark.parametrize("name", CASES)
def test_drawn_configurations_are_right(name: str) -> None:
    """What the oracle lets pass computes what the unscheduled kernel does, without races or faults."""
    shapes, build, dtype, rule = CASES[name]
    kernels = kernels_of(name, module(shapes, build, dtype), TARGET)
    (kernel,) = (item for item in kernels if (item.scheduled.attrs or {}).get("tvm_ext.schedule_rule") == rule)
    space = space_of(kernel)
    assert space.space.size > 2
    tried = 0
    drawn = space.space.random(np.random.default_rng(1), 40).tolist()
    for vector in dict.fromkeys([tuple(space.space.default), *map(tuple, drawn)]):
        schedule = space.schedule(vector)
        if schedule is None or kernel_fault(schedule.mod["main"], TARGET):
            continue
        assert space.vector(schedule.trace) == vector
        func = finished(schedule.mod["main"])
        assert compare(Kernel(name, str(vector), kernel.before, func), TARGET)[0] == "", vector
        tried += 1
        if tried == 6:
            break
    assert tried > 2


@pytest.mark.parametrize("name", ["product", "halves", "softmax"])
def test_the_default_is_the_rules_choice(name: str) -> None:
    shapes, build, dtype, rule = CASES[name]
    kernels = kernels_of(name, module(shapes, build, dtype), TARGET)
    (kernel,) = (item for item in kernels if (item.scheduled.attrs or {}).get("tvm_ext.schedule_rule") == rule)
    space = space_of(kernel)
    schedule = space.schedule(space.space.default)
    assert schedule is not None
    made = finished(schedule.mod["main"])
    left = [name for name in made.body.block.annotations if name in STEPS]
    assert not left
    # The phase makes maxima hand NaN on, and vectors what CUDA has, when all kernels have their schedules.
    made = narrow_vectors()(keep_nan()(tvm.IRModule({"main": made.with_attr("global_symbol", "main")})))["main"]
    plain = tvm.tirx.PrimFunc(made.params, made.body, made.ret_type)
    expected = kernel.scheduled
    tvm.ir.assert_structural_equal(
        plain, tvm.tirx.PrimFunc(expected.params, expected.body, expected.ret_type), map_free_vars=True
    )


def test_a_recorded_trace_brings_the_kernel_back() -> None:
    shapes, build, dtype, _ = CASES["halves"]
    kernels = kernels_of("halves", module(shapes, build, dtype), TARGET)
    space = space_of(next(item for item in kernels if "matmul" in item.name))
    vectors = [tuple(row) for row in space.space.random(np.random.default_rng(2), 30).tolist()]
    made = [(vector, schedule) for vector in vectors if (schedule := space.schedule(vector)) is not None]
    assert made
    for vector, schedule in made[:3]:
        again = Schedule(space.mod)
        tvm.s_tir.schedule.Trace.apply_json_to_schedule(schedule.trace.as_json(), again)
        tvm.ir.assert_structural_equal(again.mod, schedule.mod)
        assert space.vector(again.trace) == vector


def test_tf32_is_rounded_also_when_tuned() -> None:
    kernels = kernels_of("tf32", module([(32, 64), (64, 32)], R.matmul), TARGET, precision="tf32")
    space = space_of(kernels[0], TF32_RULES)
    schedule = space.schedule(space.space.default)
    assert schedule is not None
    assert "reinterpret" in str(finished(schedule.mod["main"]))
    assert "reinterpret" not in str(schedule.mod["main"])


def test_the_cost_ranks_what_the_rule_chose_first() -> None:
    """Infinite where the numbers are no tile; the rule's own tile is among the cheapest of many."""
    shapes, build, dtype, _ = CASES["product"]
    space = space_of(kernels_of("product", module(shapes, build, dtype), TARGET)[0])
    assert space.space.cost is not None
    drawn = space.space.random(np.random.default_rng(0), 300)
    costs = space.space.cost(drawn)
    own = float(space.space.cost(np.array([space.space.default]))[0])
    assert np.isinf(costs).any()
    assert own <= np.quantile(costs[np.isfinite(costs)], 0.25)
    for vector, cost in zip(drawn[:40].tolist(), costs[:40], strict=True):
        if np.isinf(cost):
            assert space.schedule(vector) is None or kernel_fault(space.schedule(vector).mod["main"], TARGET)
