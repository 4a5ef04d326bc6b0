"""Maxima over windows scheduled for VTA: the simulator computes what TVM computes on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vta.scheduled_functions import findings, random_arguments, run_on_cpu, run_on_vta
from tvm_ext.backends.vta.codegen.compute import conv2d, max_pool2d
from tvm_ext.backends.vta.codegen.geometry import Conv2d
from tvm_ext.backends.vta.codegen.rules import max_pool2d_rule
from tvm_ext.backends.vta.config import config_of_target
from tvm_ext.schedules.vta.pooling import PoolingKnobs

TARGET = "tvm-ext/vta-1x16x16"


def check(pool: Conv2d, knobs: PoolingKnobs | None, tag: str = TARGET) -> None:
    target = tvm.target.Target(tag)
    config = config_of_target(target)
    func = max_pool2d(config, pool)
    schedule = max_pool2d_rule(knobs).apply(func, target)
    assert schedule is not None
    data, _ = random_arguments(func, np.random.default_rng(0))
    arguments = [data, np.eye(config.block, dtype=np.int8)]
    found, program = run_on_vta(schedule.mod["main"], arguments, config)
    np.testing.assert_array_equal(found, run_on_cpu(func, arguments))
    assert findings(program) == []


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_any_window_with_any_tile(data: st.DataObject) -> None:
    draw = data.draw
    kernel, stride = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    size = [draw(st.integers(kernel, 11)) for _ in range(2)]
    blocks = draw(st.integers(1, 3))
    pool = Conv2d(
        draw(st.integers(1, 2)), blocks, blocks, *size, kernel, stride, draw(st.integers(0, kernel - 1)), blocks
    )
    knobs = draw(st.none() | st.builds(PoolingKnobs, st.integers(1, 4), st.integers(1, 4)))
    check(pool, knobs, draw(st.sampled_from([TARGET, "tvm-ext/vta-2x16x16", "tvm-ext/vta-8x8x8"])))


@pytest.mark.parametrize("pool", [Conv2d(1, 1, 1, 13, 13, 13, 1, 0), Conv2d(1, 1, 1, 9, 5, 3, 2, 1, 1, (2, 1, 0))])
def test_large_and_uneven_windows(pool: Conv2d) -> None:
    check(pool, None)


def test_other_functions_are_declined() -> None:
    target = tvm.target.Target(TARGET)
    config = config_of_target(target)
    assert max_pool2d_rule().apply(conv2d(config, (1, 1, 4, 4), (1, 3, 3)), target) is None
    assert max_pool2d_rule().apply(max_pool2d(config, Conv2d(1, 1, 1, 60, 60, 60)), target) is None
