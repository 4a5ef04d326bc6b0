"""Cycles counted without a program are those of the program."""

from __future__ import annotations

import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedules.test_vta_conv2d import epilogues
from tests.vta.scheduled_functions import compile_program
from tvm_ext.backends.vta.codegen.compute import conv2d, matmul
from tvm_ext.backends.vta.codegen.estimate import count_cycles
from tvm_ext.backends.vta.codegen.rules import conv2d_rule, matmul_rule
from tvm_ext.backends.vta.codegen.unrolling import plan_program
from tvm_ext.backends.vta.config import config_of_target
from tvm_ext.backends.vta.measurer import CycleMeasurer
from tvm_ext.backends.vta.timing.costs import COSTS, costs_named
from tvm_ext.backends.vta.timing.cycles import time_program
from tvm_ext.errors import VTAProgramError
from tvm_ext.schedules.vta.conv2d import ORDERS, ConvKnobs
from tvm_ext.schedules.vta.matmul import MatmulKnobs

TARGET = tvm.target.Target("tvm-ext/vta-1x16x16")
CONFIG = config_of_target(TARGET)


def compare(scheduled: tvm.tirx.PrimFunc, costs: str) -> None:
    program = compile_program(scheduled, CONFIG, [None] * len(scheduled.params))
    expected = time_program(program.instructions, CONFIG, costs_named(costs)).cycles
    assert count_cycles(plan_program(scheduled, CONFIG), CONFIG, costs_named(costs)) == expected


def check_convolution(data: st.DataObject) -> None:
    draw = data.draw
    kernel, stride = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    shape = (1, draw(st.sampled_from([2, 4])), *(draw(st.sampled_from([8, 14])) for _ in range(2)))
    func = conv2d(CONFIG, shape, (draw(st.sampled_from([2, 4, 8])), kernel, kernel), stride, kernel // 2,
                  draw(epilogues()))  # fmt: skip
    knobs = ConvKnobs(1, *(draw(st.sampled_from([1, 2, 4, 7, 8])) for _ in range(4)), draw(st.integers(1, 2)),
                      draw(st.integers(1, 2)))  # fmt: skip
    schedule = conv2d_rule(draw(st.sampled_from(list(ORDERS))), knobs).apply(func, TARGET)
    assert schedule is not None
    scheduled, costs = schedule.mod["main"], draw(st.sampled_from(list(COSTS)))
    if CycleMeasurer(TARGET, costs_named(costs)).count(scheduled)[0] is None:
        with pytest.raises(VTAProgramError, match="do not fit"):
            plan_program(scheduled, CONFIG)
    else:
        compare(scheduled, costs)


@settings(max_examples=5, deadline=None)
@given(st.data())
def test_convolutions(data: st.DataObject) -> None:
    check_convolution(data)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.data())
def test_many_convolutions(data: st.DataObject) -> None:
    check_convolution(data)


def test_products() -> None:
    for knobs in (None, MatmulKnobs(3, 2, 2, 2)):
        schedule = matmul_rule(knobs=knobs).apply(matmul(CONFIG, 9, 8, 8), TARGET)
        assert schedule is not None
        compare(schedule.mod["main"], "chisel")


def test_micro_ops_that_do_not_fit_together() -> None:
    """Many kernels take turns in the memory for micro-ops, as the builder lets them."""
    func = conv2d(CONFIG, (1, 8, 14, 14), (8, 3, 3), 1, 1)
    schedule = conv2d_rule("n y x co", ConvKnobs(1, 1, 14, 14, 8)).apply(func, TARGET)
    assert schedule is not None
    compare(schedule.mod["main"], "de10nano")


def test_tiles_cut_off_at_the_end() -> None:
    """The last tile uses a part of its place, and waits for the store of that part alone."""
    func = conv2d(CONFIG, (1, 2, 8, 8), (8, 1, 1))
    for knobs in (ConvKnobs(1, 7, 2, 1, 1, 1, 2), ConvKnobs(1, 3, 3, 5, 2, 2, 1)):
        schedule = conv2d_rule(knobs=knobs).apply(func, TARGET)
        assert schedule is not None
        compare(schedule.mod["main"], "chisel")
