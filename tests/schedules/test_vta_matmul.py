"""Matrix products scheduled for VTA: the simulator computes what TVM computes on the CPU, whatever the knobs."""

from __future__ import annotations

import numpy as np
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedules.test_vta_conv2d import TARGETS, epilogues
from tests.vta.scheduled_functions import random_arguments, run_on_cpu, run_on_vta
from tvm_ext.backends.vta.codegen.compute import conv2d, matmul
from tvm_ext.backends.vta.codegen.rules import matmul_rule
from tvm_ext.backends.vta.config import config_of_target
from tvm_ext.schedules.vta.matmul import ORDERS, MatmulKnobs


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_any_product_with_any_knobs(data: st.DataObject) -> None:
    draw = data.draw
    target = tvm.target.Target(f"tvm-ext/{draw(st.sampled_from(TARGETS))}")
    config = config_of_target(target)
    func = matmul(config, *(draw(st.integers(1, 7)) for _ in range(3)), draw(epilogues()))
    knobs = MatmulKnobs(*(draw(st.integers(1, 4)) for _ in range(3)), draw(st.integers(1, 2)))
    schedule = matmul_rule(draw(st.sampled_from(list(ORDERS))), draw(st.none() | st.just(knobs))).apply(func, target)
    assert schedule is not None
    arguments = random_arguments(func, np.random.default_rng(draw(st.integers(0, 999))))
    found, _ = run_on_vta(schedule.mod["main"], arguments, config)
    np.testing.assert_array_equal(found, run_on_cpu(func, arguments))


def test_what_is_no_product_is_declined() -> None:
    target = tvm.target.Target("tvm-ext/vta-1x16x16")
    assert matmul_rule().apply(conv2d(config_of_target(target), (1, 1, 4, 4), (1, 3, 3)), target) is None
