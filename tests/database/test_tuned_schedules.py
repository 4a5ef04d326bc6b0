"""What a compilation makes of a database: it is used, or said to be of no use; faults name its origin."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm.s_tir import Schedule

import tvm_ext
from tests.database.test_folders import commit
from tests.schedules.kernels import graph
from tests.tuners.metaschedule.kernels import matmul
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.database.folders import RECORDS, VERSION, WORKLOADS, begun_by, note_version, open_database
from tvm_ext.errors import CompileError, PerformanceWarning, TvmExtWarning
from tvm_ext.schedules.simd.loops import SIMD_ATTRIBUTE
from tvm_ext.tuning import kernels_to_tune
from tvm_ext.version import __version__

X = np.linspace(-1.0, 1.0, 7 * 33, dtype="float32").reshape(7, 33)
WEIGHT = np.linspace(-1.0, 2.0, 33 * 17, dtype="float32").reshape(33, 17)


def model() -> tvm.IRModule:
    return graph(lambda bb, x: tvm.relax.op.matmul(x, tvm.relax.const(WEIGHT)), [(X.shape, "float32")])


def record(folder: Path, mod: tvm.IRModule, schedule: Schedule) -> None:
    """Note a schedule of a kernel, of one second."""
    database = open_database(folder)
    workload = database.commit_workload(mod)
    trace = tvm.s_tir.meta_schedule.database.TuningRecord(schedule.trace, workload, [1.0], native_target(), None)
    database.commit_tuning_record(trace)


def test_a_database_without_these_kernels_is_said_to_be_of_no_use(tmp_path: Path) -> None:
    note_version(tmp_path)
    with open_database(tmp_path):
        pass
    tvm_ext.compile(model(), work_dir=tmp_path)  # nothing was tuned yet: nothing to say
    commit(tmp_path, matmul(8), 1.0)
    with pytest.warns(
        PerformanceWarning,
        match=rf"begun by tvm-ext {__version__} with TVM {tvm.__version__}\) has none of the 1 kernels",
    ):
        compiled = tvm_ext.compile(model(), work_dir=tmp_path)
    np.testing.assert_allclose(next(iter(compiled.run([X]).values())), X @ WEIGHT, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [RECORDS, WORKLOADS])
def test_damaged_lines_are_counted_and_left_where_they_are(name: str, tmp_path: Path) -> None:
    note_version(tmp_path)
    for size in (8, 16):
        commit(tmp_path, matmul(size), 1.0)
    content = (tmp_path / name).read_text()
    (tmp_path / name).write_text(content + "[0, [1")  # a run that was killed, or is writing
    with pytest.warns(TvmExtWarning) as warned:
        tvm_ext.compile(model(), work_dir=tmp_path)
    assert all("could not be read" not in str(one.message) for one in warned)
    damaged = content.replace("\n", "\n{\n", 1)
    (tmp_path / name).write_text(damaged)
    said = rf"1 line of the database in .*begun by tvm-ext {__version__} .*could not be read and were passed over"
    with pytest.warns(TvmExtWarning, match=said), pytest.warns(TvmExtWarning, match="none of the 1 kernels"):
        tvm_ext.compile(model(), work_dir=tmp_path)
    assert (tmp_path / name).read_text() == damaged


def test_what_began_a_database(tmp_path: Path) -> None:
    assert begun_by(tmp_path) == "begun by a version that did not note itself"
    (tmp_path / VERSION).write_text(json.dumps({"tvm": "0.27.0"}))
    assert begun_by(tmp_path) == "begun by tvm-ext 0.1.0 or before with TVM 0.27.0"
    for damaged in ("", "[]", "3", '{"tvm-ext": "1.0.0"}'):
        (tmp_path / VERSION).write_text(damaged)
        assert begun_by(tmp_path) == "begun by a version that did not note itself"


def test_a_schedule_that_means_nothing_any_more_is_named(tmp_path: Path) -> None:
    """Annotations of another release may be none that this one knows what to do with."""
    kernels = kernels_to_tune(model(), native_target())
    assert kernels
    for task in kernels:
        schedule = Schedule(task.mod)
        block = schedule.get_child_blocks(schedule.get_sblock("root"))[0]
        schedule.annotate(schedule.get_loops(block)[-1], SIMD_ATTRIBUTE, "wide")
        schedule.enter_postproc()
        record(tmp_path, task.mod, schedule)
    with pytest.raises(CompileError, match=r"kernels may have schedules of .*: try without this database"):
        tvm_ext.compile(model(), work_dir=tmp_path)
