"""Convolutions scheduled for VTA: the simulator computes what TVM computes on the CPU, whatever the knobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vta.scheduled_functions import findings, random_arguments, run_on_cpu, run_on_vta
from tvm_ext.schedules.vta_conv2d import ORDERS, Conv2d, ConvKnobs
from tvm_ext.vta.compute import Epilogue, conv2d, matmul
from tvm_ext.vta.config import config_of_target
from tvm_ext.vta.isa import Alu, Gemm

TARGETS = ["vta-1x16x16", "vta-2x16x16"]


@st.composite
def epilogues(draw: st.DrawFn) -> Epilogue:
    shift = draw(st.integers(0, 20))
    return Epilogue(
        shift=shift,
        first_shift=draw(st.integers(0, shift)),
        residual_repeats=draw(st.integers(1, 2)),
        low=draw(st.sampled_from([-128, 0])),
        high=draw(st.integers(1, 127)),
        bias=draw(st.sampled_from(["none", "accumulators", "weights"])),
        residual=draw(st.booleans()),
        rounding=draw(st.sampled_from([0, 128])),
    )


def check_convolution(data: st.DataObject, targets: list[str]) -> None:
    draw = data.draw
    target = tvm.target.Target(f"tvm-ext/{draw(st.sampled_from(targets))}")
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    stride = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    padding = tuple(draw(st.integers(0, extent - 1)) for extent in kernel)
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 4)), *(draw(st.integers(extent, 9)) for extent in kernel))
    outputs = draw(st.integers(1, 4))
    config = config_of_target(target)
    func = conv2d(config, shape, (outputs, *kernel), stride, padding, draw(epilogues()))
    knobs = ConvKnobs(*(draw(st.integers(1, 4)) for _ in range(5)), draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    rule = Conv2d(draw(st.sampled_from(list(ORDERS))), draw(st.none() | st.just(knobs)))
    schedule = rule.apply(func, target)
    assert schedule is not None
    arguments = random_arguments(func, np.random.default_rng(draw(st.integers(0, 999))))
    found, _ = run_on_vta(schedule.mod["main"], arguments, config)
    np.testing.assert_array_equal(found, run_on_cpu(func, arguments))


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_any_convolution_with_any_knobs(data: st.DataObject) -> None:
    check_convolution(data, TARGETS)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_many_convolutions_with_any_knobs(data: st.DataObject) -> None:
    check_convolution(data, [*TARGETS, "vta-4x8x8"])


@pytest.mark.parametrize("knobs", [None, ConvKnobs(1, 1, 7, 7, 2, 2, 2), ConvKnobs(1, 4, 2, 14, 1)])
def test_programs_stay_in_the_portable_subset(knobs: ConvKnobs | None) -> None:
    target = tvm.target.Target("tvm-ext/vta-1x16x16")
    config = config_of_target(target)
    func = conv2d(config, (1, 4, 14, 14), (4, 3, 3), 1, 1, Epilogue(17, 0, 127, "weights", residual=True))
    schedule = Conv2d(knobs=knobs).apply(func, target)
    assert schedule is not None
    arguments = random_arguments(func, np.random.default_rng(0))
    found, program = run_on_vta(schedule.mod["main"], arguments, config)
    np.testing.assert_array_equal(found, run_on_cpu(func, arguments))
    assert findings(program) == []


def test_sums_of_products_need_no_operation() -> None:
    """Bias and residual are accumulated on top of the convolution, each in a step an output; none is added by ALU."""
    target = tvm.target.Target("tvm-ext/vta-1x16x16")
    config = config_of_target(target)
    steps = []
    whole = Epilogue(8, 0, 127, "weights", residual=True)
    for epilogue in (Epilogue(8, 0, 127), whole, replace(whole, first_shift=3, residual_repeats=2)):
        func = conv2d(config, (1, 2, 6, 6), (2, 3, 3), 1, 1, epilogue)
        schedule = Conv2d().apply(func, target)
        assert schedule is not None
        _, program = run_on_vta(schedule.mod["main"], random_arguments(func, np.random.default_rng(0)), config)
        products = [x for x in program.instructions if isinstance(x, Gemm)]
        counts = [(x.uop_end - x.uop_bgn) * x.iter_in * x.iter_out for x in products]
        resets = sum(count for x, count in zip(products, counts, strict=True) if x.reset_reg)
        assert resets == 72
        assert all(x.use_imm for x in program.instructions if isinstance(x, Alu))
        steps.append(sum(counts) - resets)
    assert steps == [72 * 18, 72 * 20, 72 * 21]


@pytest.mark.parametrize(
    ("image", "kernel", "stride", "padding"), [((32, 32), 3, 4, 1), ((19, 37), 1, 3, 0), ((29, 31), 5, 1, 2)]
)
def test_tiles_are_chosen_for_the_stride(image: tuple[int, int], kernel: int, stride: int, padding: int) -> None:
    target = tvm.target.Target("tvm-ext/vta-1x16x16")
    config = config_of_target(target)
    func = conv2d(config, (1, 4, *image), (4, kernel, kernel), stride, padding, Epilogue(9, 0, 127, "weights"))
    schedule = Conv2d().apply(func, target)
    assert schedule is not None
    arguments = random_arguments(func, np.random.default_rng(0))
    found, _ = run_on_vta(schedule.mod["main"], arguments, config)
    np.testing.assert_array_equal(found, run_on_cpu(func, arguments))


def test_what_is_no_convolution_is_declined() -> None:
    target = tvm.target.Target("tvm-ext/vta-1x16x16")
    assert Conv2d().apply(matmul(config_of_target(target), 2, 2, 2), target) is None
