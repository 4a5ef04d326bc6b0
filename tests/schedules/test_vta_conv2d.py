"""Convolutions scheduled for VTA: the simulator computes what TVM computes on the CPU, whatever the knobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vta.scheduled_functions import findings, random_arguments, run_on_cpu, run_on_vta
from tvm_ext.backends.vta.codegen.compute import Epilogue, conv2d, convolution, matmul
from tvm_ext.backends.vta.codegen.geometry import Conv2d as Conv2dGeometry
from tvm_ext.backends.vta.codegen.rules import conv2d_rule
from tvm_ext.backends.vta.config import config_of_target
from tvm_ext.backends.vta.isa.instructions import Alu, Gemm
from tvm_ext.schedules.vta.conv2d import ORDERS, ConvKnobs

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
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    blocks = draw(st.integers(1, 4)) if groups == 1 else groups * draw(st.integers(1, 2))
    outputs = draw(st.integers(1, 4)) if groups == 1 else groups * draw(st.integers(1, 2))
    size = [draw(st.integers(extent, 9)) for extent in kernel]
    config = config_of_target(target)
    is_transposed = draw(st.booleans()) and all(a >= b for a, b in zip(kernel, stride, strict=True))
    extra = min(draw(st.integers(0, 1)), *padding) if is_transposed else 0
    (rows, columns), (down, across), (above, before) = kernel, stride, padding
    geometry = Conv2dGeometry(
        draw(st.integers(1, 2)), blocks, outputs, *size, rows, down, above, groups, (columns, across, before),
        is_transposed, extra,
    )  # fmt: skip
    func = convolution(config, geometry, draw(epilogues()))
    virtual = (draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, groups)))
    knobs = ConvKnobs(*(draw(st.integers(1, 4)) for _ in range(5)), *virtual)
    rule = conv2d_rule(draw(st.sampled_from(list(ORDERS))), draw(st.none() | st.just(knobs)))
    schedule = rule.apply(func, target)
    assert schedule is not None
    arguments = random_arguments(func, np.random.default_rng(draw(st.integers(0, 999))))
    found, program = run_on_vta(schedule.mod["main"], arguments, config)
    np.testing.assert_array_equal(found, run_on_cpu(func, arguments))
    assert findings(program) == []


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
    schedule = conv2d_rule(knobs=knobs).apply(func, target)
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
        schedule = conv2d_rule().apply(func, target)
        assert schedule is not None
        _, program = run_on_vta(schedule.mod["main"], random_arguments(func, np.random.default_rng(0)), config)
        products = [x for x in program.instructions if isinstance(x, Gemm)]
        counts = [(x.uop_end - x.uop_bgn) * x.iter_in * x.iter_out for x in products]
        resets = sum(count for x, count in zip(products, counts, strict=True) if x.reset_reg)
        assert resets == 72
        assert all(x.use_imm for x in program.instructions if isinstance(x, Alu))
        steps.append(sum(counts) - resets)
    products = 2 * 2 * (3 * 6 - 2) ** 2  # those on padding are left out
    assert steps == [products, products + 72 * 2, products + 72 * 3]


@pytest.mark.parametrize(
    ("image", "kernel", "stride", "padding"), [((32, 32), 3, 4, 1), ((19, 37), 1, 3, 0), ((29, 31), 5, 1, 2)]
)
def test_tiles_are_chosen_for_the_stride(image: tuple[int, int], kernel: int, stride: int, padding: int) -> None:
    target = tvm.target.Target("tvm-ext/vta-1x16x16")
    config = config_of_target(target)
    func = conv2d(config, (1, 4, *image), (4, kernel, kernel), stride, padding, Epilogue(9, 0, 127, "weights"))
    schedule = conv2d_rule().apply(func, target)
    assert schedule is not None
    arguments = random_arguments(func, np.random.default_rng(0))
    found, _ = run_on_vta(schedule.mod["main"], arguments, config)
    np.testing.assert_array_equal(found, run_on_cpu(func, arguments))


def test_what_is_no_convolution_is_declined() -> None:
    target = tvm.target.Target("tvm-ext/vta-1x16x16")
    assert conv2d_rule().apply(matmul(config_of_target(target), 2, 2, 2), target) is None
