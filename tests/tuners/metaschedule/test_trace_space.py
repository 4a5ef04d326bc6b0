from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.s_tir import Schedule

from tests.tuners.metaschedule.kernels import matmul, ruled, tiled
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.errors import TuningError
from tvm_ext.schedules.cpu import RULES
from tvm_ext.schedules.rule import tunable_schedule
from tvm_ext.tuners.factorization import factorizations
from tvm_ext.tuners.metaschedule.trace_space import COMPUTE_LOCATIONS, TraceSpace


def _space() -> TraceSpace:
    mod = matmul()
    return TraceSpace.of(tiled(Schedule(mod, seed=7)), mod)


def test_every_sampling_instruction_is_a_knob() -> None:
    space = _space().space
    names = [knob.name.partition(".")[2] for knob in space.knobs]
    assert names == ["SamplePerfectTile", "SamplePerfectTile", "SampleCategorical", "SampleComputeLocation"]
    rows = {factors for factors in space.knobs[0].choices if factors[-1] <= 8}
    assert rows == set(space.knobs[0].choices)
    assert len(rows) < len(factorizations(32, 3))
    assert space.radices.tolist()[2:] == [3, len(COMPUTE_LOCATIONS)]


def test_the_default_gives_the_schedule_back() -> None:
    mod = matmul()
    schedule = tiled(Schedule(mod, seed=7))
    space = TraceSpace.of(schedule, mod)
    assert space.space.default is not None
    again = space.schedule(space.space.default)
    assert again is not None
    tvm.ir.assert_structural_equal(again.mod, schedule.mod)
    assert space.vector(again.trace) == space.space.default


def test_configurations_become_kernels_that_compute_the_same_and_are_read_back() -> None:
    space, rng = _space(), np.random.default_rng(0)
    arrays = [rng.standard_normal((32, 32)).astype("float32") for _ in range(2)]
    scheduled = 0
    for vector in space.space.random(rng, 12).tolist():
        schedule = space.schedule(vector)
        if schedule is None:
            continue
        scheduled += 1
        tensors = [tvm.runtime.tensor(array) for array in (*arrays, np.zeros((32, 32), "float32"))]
        tvm.compile(schedule.mod, native_target())["main"](*tensors)
        np.testing.assert_allclose(tensors[2].numpy(), arrays[0] @ arrays[1], rtol=1e-4, atol=1e-4)
        read = space.vector(schedule.trace)
        assert read is not None
        again = space.schedule(read)  # a location that is not there is read back as the one that was taken
        assert again is not None
        tvm.ir.assert_structural_equal(again.mod, schedule.mod)
    assert scheduled >= 6


def test_our_rules_are_spaces() -> None:
    mod, _ = ruled()
    schedule = tunable_schedule(mod["main"], native_target(), RULES)
    assert schedule is not None
    space = TraceSpace.of(schedule, mod)
    assert space.space.size > 1
    assert space.space.default is not None
    again = space.schedule(space.space.default)
    assert again is not None
    tvm.ir.assert_structural_equal(again.mod["main"], schedule.mod["main"])


def test_traces_of_other_spaces_are_not_read() -> None:
    space = _space()
    mod, _ = ruled()
    other = tunable_schedule(mod["main"], native_target(), RULES)
    assert other is not None
    assert space.vector(other.trace) is None


def test_nothing_sampled_is_nothing_to_tune() -> None:
    mod = matmul()
    with pytest.raises(TuningError, match="samples nothing"):
        TraceSpace.of(Schedule(mod), mod)
