"""Rewritings are made where they lower the peak, and only there."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from tests.memory.relax.modules import phases, random_net, results, results_of
from tests.memory.relax.test_order import scheduled
from tests.modules import arguments
from tvm_ext.graph import liveness
from tvm_ext.memory.relax.graph import LIVENESS
from tvm_ext.memory.relax.order import plan_memory

GENERATOR = np.random.default_rng(0)


def fan_in(branches: int, alike: bool) -> tvm.IRModule:
    """Wide branches from a narrow stem, concatenated for a convolution; or one wide tensor and a narrow one."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 16, 10, 10), "float32"))

    def convolution(value: Any, out: int) -> Any:
        shape = (out, int(value.ty.shape[1]), 1, 1)
        return builder.emit(relax.op.nn.conv2d(value, relax.const(GENERATOR.standard_normal(shape).astype("float32"))))

    with builder.function("main", [x]):
        with builder.dataflow():
            stem = convolution(x, 16)
            widths = [64] * branches if alike else [16] * branches
            made = [convolution(stem, width) for width in widths]
            joined = builder.emit(relax.op.concat(made, axis=1))
            result = builder.emit_output(convolution(joined, 32 if alike else 256))
        builder.emit_func_output(result)
    return builder.get()


def peaks(mod: tvm.IRModule) -> tuple[int, int]:
    """Peak of the best order without rewriting, and with."""
    without, rewritten = (scheduled(mod, memory="optimal", memory_rewriting=rewriting) for rewriting in (False, True))
    return peak(without), peak(rewritten)


def peak(mod: tvm.IRModule) -> int:
    """Peak of the best order of kernels; never more than in the order given."""
    plan = plan_memory(mod)
    assert plan is not None
    assert plan.lower_bound <= plan.peak <= plan.stock_peak
    assert plan.peak == liveness(plan.graph, plan.order, LIVENESS).peak
    return plan.peak


def test_wide_branches_are_taken_apart() -> None:
    without, with_rewriting = peaks(fan_in(4, alike=True))
    tensor = 16 * 10 * 10 * 4
    assert with_rewriting == (1 + 4 + 2) * tensor  # stem, one branch, the sum
    assert with_rewriting < without


def test_nothing_is_rewritten_where_it_does_not_help() -> None:
    mod = fan_in(2, alike=False)
    without, with_rewriting = peaks(mod)
    assert with_rewriting == without
    text = scheduled(mod, memory="optimal")["main"].script()
    assert text.count("conv") == scheduled(mod, memory="optimal", memory_rewriting=False)["main"].script().count("conv")


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 10**6))
def test_random_nets_never_need_more_with_rewriting(seed: int) -> None:
    mod = random_net(seed)
    rewritten = phases(mod, memory="optimal")
    assert peak(rewritten["schedule"]) <= peak(scheduled(mod, memory="optimal", memory_rewriting=False))
    values = arguments(mod, seed)
    for left, right in zip(results_of(rewritten["finalize"], values), results(mod, values), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-3, atol=1e-3)
