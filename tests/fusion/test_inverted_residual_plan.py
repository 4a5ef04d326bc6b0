"""Divisions of inverted residuals: random shapes and machines, what is worth one kernel, and plans that are wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.errors import GraphError
from tvm_ext.fusion.inverted_residual_plan import ResidualPlan, ResidualShape, plan_residual, verify_residual
from tvm_ext.schedules.compute.inverted_residual import Window
from tvm_ext.schedules.cpu.machine import Machine

MACHINE = Machine("avx512", 512, 32, l2=1 << 20, cores=2)
FAST = replace(MACHINE, flops=256e9, l2_bandwidth=216e9)
EARLY = ResidualShape(1, 16, 6, 16, 32, Window((3, 3), (2, 2), (1, 1), (1, 1), (112, 112), (56, 56)))


@st.composite
def shapes(draw: st.DrawFn) -> ResidualShape:
    axes = []
    for _ in range(2):
        kernel, stride, dilation = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
        before, extent = draw(st.integers(0, kernel - 1)), draw(st.integers(1, 40))
        reach = dilation * (kernel - 1) + 1
        padded = max(extent + 2 * before, reach)
        axes.append((kernel, stride, dilation, before, extent, (padded - reach) // stride + 1))
    window = Window(*zip(*axes, strict=True))
    inputs, outputs = draw(st.sampled_from([(16, 32), (0, 16), (48, 0)]))
    return ResidualShape(draw(st.integers(1, 3)), inputs, draw(st.integers(1, 24)), 16, outputs, window)


@given(shapes(), st.sampled_from([1, 2, 8]))
def test_plans_are_right(shape: ResidualShape, cores: int) -> None:
    machine = replace(MACHINE, cores=cores)
    plan = plan_residual(shape, machine, float("inf"))
    assert plan is not None
    verify_residual(plan, shape)
    assert plan.stored > 0
    assert plan_residual(shape, machine, 0.0) is None


def test_the_first_block_of_a_network_is_one_kernel() -> None:
    """Its hidden tensor is larger than any cache of a core; that of the last one is not, and its halo is large."""
    plan = plan_residual(EARLY, FAST)
    assert plan is not None
    assert plan.scratch <= FAST.l2
    late = ResidualShape(1, 160, 60, 16, 160, Window((3, 3), (1, 1), (1, 1), (1, 1), (7, 7), (7, 7)))
    assert plan_residual(late, FAST) is None


def test_short_kernels_stay_apart() -> None:
    """Kernels that one core computes cost no fork, which one kernel in bands would; on one core none do."""
    short = ResidualShape(1, 8, 2, 16, 8, Window((3, 3), (1, 1), (1, 1), (1, 1), (6, 96), (6, 96)))
    assert plan_residual(short, FAST) is None
    assert plan_residual(short, replace(FAST, cores=1, call_seconds=0.1e-6)) is None
    divided = replace(short, window=Window((3, 3), (1, 1), (1, 1), (1, 1), (24, 96), (24, 96)), chunks=6)
    assert plan_residual(divided, replace(FAST, fork_seconds=0.1e-6)) is None
    assert plan_residual(divided, FAST) is not None


@pytest.mark.parametrize(("bands", "parts", "word"), [(3, 1, "bands"), (2, 4, "parts")])
def test_wrong_plans_are_refused(bands: int, parts: int, word: str) -> None:
    with pytest.raises(GraphError, match=word):
        verify_residual(ResidualPlan(bands, parts, 0.0, 1.0, 0, 1), EARLY)


def test_a_band_that_expands_too_few_rows_is_refused() -> None:
    class Short(Window):
        def input_rows(self, rows: int) -> int:
            return super().input_rows(rows) - 1

    window = EARLY.window
    short = Short(
        window.kernel, window.strides, window.dilation, window.before, window.extents, window.results
    )  # fmt: skip
    with pytest.raises(GraphError, match="does not expand"):
        verify_residual(ResidualPlan(2, 1, 0.0, 1.0, 0, 1), replace(EARLY, window=short))
