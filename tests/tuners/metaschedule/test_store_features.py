from __future__ import annotations

from pathlib import Path

import numpy as np
import tvm_ffi
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

import tvm_ext
from tests.tuners.metaschedule.kernels import matmul, tiled
from tests.tuners.metaschedule.test_strategy import _tune, measurer
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.system.tensor_intrinsics import only_tensor_intrinsics
from tvm_ext.tuners.measure.measurer import Measurer
from tvm_ext.tuners.metaschedule.store_features import StoreFeatures
from tvm_ext.tuners.metaschedule.trace_space import TraceSpace

__all__ = ["measurer"]  # a fixture

SPACE = ms.space_generator.ScheduleFn


def test_features_are_of_the_code_that_is_scheduled() -> None:
    mod = matmul()
    space = TraceSpace.of(tiled(Schedule(mod, seed=1)), mod)
    with only_tensor_intrinsics():
        context = ms.TuneContext(
            mod,
            target=native_target(),
            space_generator=SPACE(tiled, sch_rules=[], postprocs=[], mutator_probs={}),
            rand_state=1,
        )
    features = StoreFeatures(space.schedule, context)
    vectors = [tuple(row) for row in space.space.random(np.random.default_rng(0), 20).tolist()]
    rows: dict[int, list[np.ndarray]] = {}
    for vector in vectors:
        schedule = space.schedule(vector)
        row = features(vector)
        assert (schedule is None) == (row is None)
        if schedule is not None and row is not None:
            assert row.shape == (2 * 164,)
            assert np.isfinite(row).all()
            rows.setdefault(tvm_ffi.structural_hash(schedule.mod), []).append(row)
    assert len(rows) > 5
    for same in rows.values():
        assert all(np.array_equal(same[0], other) for other in same)
    assert len({row[0].tobytes() for row in rows.values()}) > 5, "other code has other features"
    assert StoreFeatures(lambda vector: None, context)(vectors[0]) is None


def test_tuning_with_a_second_look(measurer: Measurer, tmp_path: Path) -> None:
    space = SPACE(tiled, sch_rules=[], postprocs=[], mutator_probs={})
    strategy = tvm_ext.tuners.strategy("evolution", batch=8, initial=8, store_features=True)
    database = _tune(matmul(64, 64, 64), tmp_path, 16, measurer, space, strategy)
    assert len(database.get_all_tuning_records()) == 16
    assert any(float(record.run_secs[0]) < 1 for record in database.get_all_tuning_records())
