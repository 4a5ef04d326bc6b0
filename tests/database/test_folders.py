"""Databases in folders: what is counted, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import tvm
from tvm.s_tir import meta_schedule as ms

from tests.tuners.metaschedule.kernels import matmul
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.database.folders import (
    VERSION,
    WORKLOADS,
    best_seconds,
    check_database,
    note_version,
    open_database,
    record_count,
)
from tvm_ext.errors import OutputError, TuningError


def commit(folder: Path, mod: tvm.IRModule, *seconds: float) -> None:
    """Add a measurement to a database."""
    database = open_database(folder)
    schedule = tvm.s_tir.Schedule(mod)
    schedule.parallel(schedule.get_loops(schedule.get_sblock("c"))[0])
    schedule.enter_postproc()
    arguments = ms.arg_info.ArgInfo.from_entry_func(mod, remove_preproc=True)
    target = native_target()
    workload = database.commit_workload(mod)
    database.commit_tuning_record(ms.database.TuningRecord(schedule.trace, workload, seconds, target, arguments))


@pytest.mark.parametrize("seconds", [float("nan"), float("inf")])
def test_times_that_are_none_are_failures_that_tvm_can_read(seconds: float, tmp_path: Path) -> None:
    """As a caller's own runner may give them: TVM refuses a folder with such a number."""
    commit(tmp_path, matmul(8), 1.0, seconds)
    commit(tmp_path, matmul(8), 2.0)
    stock = ms.database.JSONDatabase(work_dir=str(tmp_path))
    for database in (stock, open_database(tmp_path)):
        assert len(database) == 2
        (best,) = database.get_top_k(database.commit_workload(matmul(8)), 2)
        assert [float(second) for second in best.run_secs] == [2.0]


def test_databases_are_counted_by_kernel(tmp_path: Path) -> None:
    first, second = matmul(8), matmul(16)
    commit(tmp_path, first, 3.0, 1.0, 2.0)
    commit(tmp_path, second, 1e10)
    commit(tmp_path, first, 1e10)
    commit(tmp_path, first, 5.0)
    database = open_database(tmp_path)
    assert [record_count(database, mod) for mod in (first, second, matmul(24))] == [3, 1, 0]
    assert [best_seconds(database, mod) for mod in (first, second, matmul(24))] == [2.0, None, None]
    assert (tmp_path / WORKLOADS).read_text().count("\n") == 2, "looking leaves no trace"


def test_a_database_of_another_tvm(tmp_path: Path) -> None:
    note_version(tmp_path)
    open_database(tmp_path)
    (tmp_path / VERSION).write_text('{"tvm": "0.26.0"}')
    with pytest.raises(
        TuningError, match=rf"written by TVM 0\.26\.0, this is TVM {tvm.__version__}.*use another folder"
    ):
        open_database(tmp_path)
    for damaged in ("", "[]", "{}", "3"):
        (tmp_path / VERSION).write_text(damaged)
        with pytest.raises(TuningError, match=r"database_version\.json is damaged; remove it if TVM"):
            open_database(tmp_path)
    old = tmp_path / "begun by others"
    commit(old, matmul(8), 1.0)
    note_version(old)
    assert not (old / VERSION).exists()


def test_places_that_cannot_be_written_name_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for refused in (check_database, open_database):
        with pytest.raises(OutputError, match=r"cannot write the database in .*file/w: .*; choose another path"):
            refused(tmp_path / "file" / "w")
