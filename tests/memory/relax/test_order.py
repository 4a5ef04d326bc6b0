"""Order, in-place kernels and joined concatenations: the same results, in less memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from tests.memory.relax.modules import lowered, phases, random_net, results
from tests.modules import MODULES, arguments, run
from tvm_ext.compiler import lower
from tvm_ext.errors import GraphError, OptionError
from tvm_ext.memory.relax.limit import memory_decisions
from tvm_ext.memory.relax.order import apply_plan, plan_memory
from tvm_ext.options import PipelineOptions
from tvm_ext.statistics import module_statistics
from tvm_ext.target import resolve_target


def scheduled(mod: tvm.IRModule, **options: Any) -> tvm.IRModule:
    """Run the pipeline up to the phase before memory planning."""
    return phases(mod, **options)["schedule"]


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 10**6))
def test_random_nets_compute_the_same(seed: int) -> None:
    mod = random_net(seed)
    values = arguments(mod, seed)
    expected = results(mod, values, winograd=False)
    # Rewriting changes the order of sums; everything else leaves every bit as it is.
    for memory in ("arena", "optimal"):
        for left, right in zip(
            results(mod, values, memory=memory, memory_rewriting=False, winograd=False), expected, strict=True
        ):
            np.testing.assert_array_equal(left, right)


@pytest.mark.slow
@settings(max_examples=3, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["1KB", "8KB", "64KB"]))
def test_order_for_an_on_chip_memory(seed: int, size: str) -> None:
    mod = random_net(seed)
    values = arguments(mod, seed)
    options = {"memory": "optimal", "memory_rewriting": False, "on_chip_memory": size}
    expected = results(mod, values, winograd=False)
    for left, right in zip(results(mod, values, winograd=False, **options), expected, strict=True):
        np.testing.assert_array_equal(left, right)
    after = lower(mod, resolve_target(None), PipelineOptions(**options))[0]
    decision = memory_decisions(after)["main"]
    assert decision["traffic"] <= decision["given_traffic"]
    assert decision["lower_bound"] <= decision["peak"]


def test_on_chip_memory_wants_an_order() -> None:
    with pytest.raises(OptionError, match="on_chip_memory needs memory='optimal'"):
        PipelineOptions(memory="arena", on_chip_memory="256KB")
    assert PipelineOptions(on_chip_memory="256KB").memory == "optimal"
    assert PipelineOptions(memory_limit="256KB").memory == "optimal"
    assert PipelineOptions().memory == "arena"
    with pytest.raises(OptionError, match="on-chip memory 'little' is no size"):
        PipelineOptions(memory="optimal", on_chip_memory="little")


@pytest.mark.parametrize("name", MODULES)
def test_modules_compute_the_same(name: str) -> None:
    mod = MODULES[name]
    values = arguments(mod)
    target = resolve_target(None)
    expected = run(tvm.compile(mod, target, relax_pipeline=relax.get_pipeline("tvm_ext", winograd=False)), values)
    for memory in ("arena", "optimal"):
        pipeline = relax.get_pipeline("tvm_ext", memory=memory, winograd=False)
        for left, right in zip(run(tvm.compile(mod, target, relax_pipeline=pipeline), values), expected, strict=True):
            np.testing.assert_array_equal(left, right, memory)


def wide_net() -> tvm.IRModule:
    """Four branches, listed level by level: in that order all four large tensors live together."""
    generator = np.random.default_rng(0)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 16, 12, 12), "float32"))

    def convolution(value: relax.Expr, out: int) -> relax.Expr:
        shape = (out, int(value.ty.shape[1]), 3, 3)
        weight = relax.const(generator.standard_normal(shape).astype("float32") / 20)
        return builder.emit(relax.op.nn.conv2d(value, weight, padding=1))

    with builder.function("main", [x]):
        with builder.dataflow():
            stem = convolution(x, 16)
            wide = [convolution(stem, 64) for _ in range(4)]
            narrow = [convolution(value, 16) for value in wide]
            total = narrow[0]
            for value in narrow[1:]:
                total = builder.emit(relax.op.add(total, value))
            result = builder.emit_output(relax.op.mean(total, axis=[2, 3]))
        builder.emit_func_output(result)
    return builder.get()


def test_order_lowers_the_peak_of_branches_listed_level_by_level() -> None:
    plan = plan_memory(scheduled(wide_net(), memory="optimal"))
    tensor = 16 * 12 * 12 * 4
    assert plan is not None
    assert plan.optimal
    assert plan.stock_peak >= 4 * 4 * tensor
    # The stem, one wide tensor, and the sum so far, over which the next convolution writes.
    assert plan.peak == 6 * tensor
    assert plan.in_place


def test_planned_bytes_follow_the_peak() -> None:
    stock, arena, best = (
        module_statistics(_planned(wide_net(), memory)).planned_bytes for memory in ("stock", "arena", "optimal")
    )
    assert best == arena < stock  # a short search finds it


def _planned(mod: tvm.IRModule, memory: str) -> tvm.IRModule:
    found: dict[str, tvm.IRModule] = {}
    options = PipelineOptions(memory=memory, winograd=False)  # type: ignore[arg-type]
    lower(mod, resolve_target(None), options, after_phase=lambda phase, module: found.update({phase.name: module}))
    return found["memory"]


def test_a_plan_of_another_function_is_refused() -> None:
    mod = scheduled(wide_net(), memory="optimal")
    other = plan_memory(scheduled(random_net(1), memory="optimal"))
    assert other is not None
    with pytest.raises(GraphError, match="plan the function as it is"):
        apply_plan(mod, mod.get_global_var("main"), other)


def test_effects_keep_their_order(tmp_path: Path) -> None:
    """A function outside a dataflow block prints between kernels; nothing moves across blocks."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x], pure=False):
        a = builder.emit(relax.op.exp(x))
        builder.emit(relax.op.print(a, format="{}"))
        b = builder.emit(relax.op.tanh(a))
        builder.emit(relax.op.print(b, format="{}"))
        builder.emit_func_output(builder.emit(relax.op.add(a, b)))
    mod = lowered(builder.get(), memory="optimal", dump_dir=str(tmp_path))
    text = mod["main"].script()
    assert text.index("exp") < text.index("print") < text.index("tanh") < text.rindex("print")


@pytest.mark.parametrize("shape", [(7, 9), (16, 16), (17, 33), (48, 31), (64, 96)])
def test_in_place_beside_an_operand_that_is_walked_over_in_another_order(shape: tuple[int, int]) -> None:
    """Kernels that transpose go tile by tile; a tile must have read all it overwrites."""
    builder = relax.BlockBuilder()
    x, y = relax.Var("x", relax.TensorType(shape, "float32")), relax.Var("y", relax.TensorType(shape[::-1], "float32"))
    with builder.function("main", [x, y]):
        with builder.dataflow():
            a = builder.emit(relax.op.nn.softmax(x, axis=1))
            b = builder.emit(relax.op.nn.softmax(y, axis=0))
            total = builder.emit(relax.op.add(a, relax.op.permute_dims(b)))
            result = builder.emit_output(relax.op.nn.softmax(total, axis=0))
        builder.emit_func_output(result)
    mod = relax.transform.Normalize()(builder.get())
    plan = plan_memory(scheduled(mod, memory="optimal"))
    assert plan is not None
    assert plan.in_place
    values = arguments(mod)
    for left, right in zip(results(mod, values, memory="optimal"), results(mod, values), strict=True):
        # Where a product meets a sum depends on what LLVM knows of overlaps: it fuses them in one of the two kernels.
        np.testing.assert_allclose(left, right, rtol=3e-7)


def test_a_kernel_is_not_in_place_of_a_tensor_that_it_reads_a_part_of() -> None:
    """The part lies where the tensor does, so it would be written over before it is read."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 8, 6, 16), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            whole = builder.emit(relax.op.cumsum(x, axis=3))
            parts = builder.emit(relax.op.split(whole, 2, axis=1))
            front, back = builder.emit(parts[0]), builder.emit(parts[1])
            below = builder.emit(relax.op.cumsum(back, axis=2))
            joined = builder.emit(relax.op.concat([below, front], axis=1))
            result = builder.emit_output(relax.op.cumsum(relax.op.add(whole, joined), axis=3))
        builder.emit_func_output(result)
    mod = relax.transform.Normalize()(builder.get())
    values = arguments(mod, 0)
    for options in ({}, {"memory": "optimal"}, {"fuse": "mapping-type"}):
        for found, expected in zip(results(mod, values, **options), results(mod, values, memory="stock"), strict=True):
            np.testing.assert_array_equal(found, expected)
