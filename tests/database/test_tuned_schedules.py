"""What a compilation makes of a database: it is used, or said to be of no use; faults name its origin."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

import tvm_ext
from tests.database.test_folders import commit
from tests.fusion.relax.test_inverted_residuals import always, block  # noqa: F401 (a fixture)
from tests.modules import run
from tests.schedules.kernels import graph
from tests.tuners.metaschedule.kernels import matmul
from tvm_ext.backends.cpu.backend import CPU
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.backends.vta.codegen.tuned import write_tuned
from tvm_ext.database.folders import RECORDS, VERSION, WORKLOADS, begun_by, note_version, open_database
from tvm_ext.database.tuned_schedules import record_of
from tvm_ext.errors import CompileError, PerformanceWarning, TvmExtWarning
from tvm_ext.options import PipelineOptions
from tvm_ext.pipeline import phase_passes
from tvm_ext.schedules.rule import PREPARED_ATTRIBUTE, RULE_ATTRIBUTE, prepare_kernels, tunable_schedule
from tvm_ext.schedules.simd.loops import SIMD_ATTRIBUTE
from tvm_ext.tuning import kernels_to_tune
from tvm_ext.version import __version__

X = np.linspace(-1.0, 1.0, 7 * 33, dtype="float32").reshape(7, 33)
WEIGHT = np.linspace(-1.0, 2.0, 33 * 17, dtype="float32").reshape(33, 17)


def model() -> tvm.IRModule:
    return graph(lambda bb, x: tvm.relax.op.matmul(x, tvm.relax.const(WEIGHT)), [(X.shape, "float32")])


def record(folder: Path, mod: tvm.IRModule, schedule: Schedule, seconds: float = 1.0) -> None:
    """Note a schedule of a kernel."""
    database = open_database(folder)
    workload = database.commit_workload(mod)
    trace = tvm.s_tir.meta_schedule.database.TuningRecord(schedule.trace, workload, [seconds], native_target(), None)
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


def test_schedules_of_vta_are_said_to_be_of_no_use_to_others(tmp_path: Path) -> None:
    with open_database(tmp_path):
        pass
    write_tuned(tmp_path, {})
    with pytest.warns(PerformanceWarning, match="vta_schedules.json there is for another kind of target"):
        tvm_ext.compile(model(), work_dir=tmp_path)


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


def of_a_later_rule(mod: tvm.IRModule) -> dict[str, tuple[tvm.IRModule, Schedule]]:
    """Kernels whose own rule has no choices, in the space of a later rule, as they were tuned once."""
    with native_target(), tvm.transform.PassContext():
        for phase, phase_pass in phase_passes(native_target(), PipelineOptions()):
            if phase.name == "schedule":
                break
            mod = phase_pass(mod)
        mod = prepare_kernels(CPU.rules)(mod)
        found = {}
        for task in ms.relax_integration.extract_tasks(mod, native_target()):
            workload = task.dispatched[0]
            func = workload["main"]
            if (
                PREPARED_ATTRIBUTE in (func.attrs or {})
                or tunable_schedule(func, native_target(), CPU.rules) is not None
            ):
                continue
            made = (rule.apply(func, native_target(), tunable=True) for rule in CPU.rules)
            schedule = next((one for one in made if one is not None), None)
            if schedule is not None:
                schedule.enter_postproc()
                found[str(task.task_name)] = workload, schedule
    return found


def scheduled(mod: tvm.IRModule) -> tvm.IRModule:
    with native_target(), tvm.transform.PassContext():
        for phase, phase_pass in phase_passes(native_target(), PipelineOptions()):
            mod = phase_pass(mod)
            if phase.name == "schedule":
                return mod
    raise AssertionError("no phase schedule")


@pytest.mark.usefixtures("always")
def test_records_of_another_rules_space_are_left_out(tmp_path: Path) -> None:
    mod, _ = block(16, 96, 24, (14, 14))
    found = of_a_later_rule(mod)
    assert found
    note_version(tmp_path)
    for workload, schedule in found.values():
        record(tmp_path, workload, schedule, 1e-9)
    said = rf"has records for {min(found)}.* that were tuned in the space of another schedule rule"
    with pytest.warns(TvmExtWarning, match=said):
        tvm_ext.compile(mod, work_dir=tmp_path)
    with open_database(tmp_path), pytest.warns(TvmExtWarning, match="the database that was entered has records for"):
        entered = scheduled(mod)
    plain = scheduled(mod)
    for name in found:
        tvm.ir.assert_structural_equal(entered[name], plain[name])
        assert RULE_ATTRIBUTE in plain[name].attrs


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


def as_tuned_by_tvm(extents: str, database: ms.Database) -> tvm.IRModule:
    """Make a module of a kernel that the database knows as it stands there, and an operator behind it."""
    rows, columns = (tvm.tirx.IntImm(extents, number) for number in (7, 33))
    x, y = te.placeholder((rows, columns), name="x"), te.placeholder((rows, columns), name="y")
    twice = te.compute((rows, columns), lambda i, j: x[i, j] * y[i, j] + x[i, j], name="twice")
    kernel = te.create_prim_func([x, y, twice]).without_attr("global_symbol")

    def made(bb: tvm.relax.BlockBuilder, given: tvm.relax.Var) -> tvm.relax.Expr:
        called = tvm.relax.call_tir(bb.add_func(kernel, "twice"), [given, given], given.ty)
        return tvm.relax.op.nn.relu(bb.emit(called))

    mod = graph(made, [(X.shape, "float32")])
    # As MetaSchedule has it in a database.
    workload = tvm.IRModule({"main": mod["twice"].with_attr("global_symbol", "main").with_attr("tirx.noalias", True)})
    schedule = Schedule(workload)
    schedule.vectorize(schedule.get_loops(schedule.get_sblock("twice"))[1])
    known = database.commit_workload(workload)
    database.commit_tuning_record(ms.database.TuningRecord(schedule.trace, known, [1.0], native_target(), None))
    return mod


@pytest.mark.parametrize("extents", ["int32", "int64"])
def test_kernels_that_were_tuned_as_they_stand_in_a_module(extents: str) -> None:
    """As TVM's own ``tune_relax`` measures them: merged with what follows, or with other extents, they are unknown."""
    database = ms.database.MemoryDatabase()
    mod = as_tuned_by_tvm(extents, database)
    with database:
        executable = tvm.compile(mod, native_target(), relax_pipeline="tvm_ext")
        with native_target():
            lowered = tvm.relax.get_pipeline("tvm_ext")(mod)
        with native_target():
            untuned = tvm.relax.get_pipeline("tvm_ext", disable=("schedule",))(mod)
    assert record_of(lowered["twice"]) is not None
    assert not any(record_of(func) for _, func in untuned.functions_items() if isinstance(func, tvm.tirx.PrimFunc))
    np.testing.assert_allclose(run(executable, [X])[0], np.maximum(X * X + X, 0), rtol=1e-6)


def test_a_folder_of_records_of_tvm_is_a_work_dir(tmp_path: Path) -> None:
    mod = as_tuned_by_tvm("int64", open_database(tmp_path))
    with warnings.catch_warnings(), native_target():
        warnings.simplefilter("error")
        lowered = tvm.relax.get_pipeline("tvm_ext", work_dir=tmp_path)(mod)
        compiled = tvm_ext.compile(mod, work_dir=tmp_path)
    assert record_of(lowered["twice"]) is not None
    np.testing.assert_allclose(next(iter(compiled.run([X]).values())), np.maximum(X * X + X, 0), rtol=1e-6)
    said = "has none of the 1 kernels.*kernels that TVM's own tuners measured are found in the module that was tuned"
    with pytest.warns(PerformanceWarning, match=said):
        tvm_ext.compile(model(), work_dir=tmp_path)
    # `tvm-ext tune` measures kernels as the pipeline makes them, merged with their neighbours.
    (tmp_path / VERSION).write_text(json.dumps({"tvm": tvm.__version__}))
    with native_target(), pytest.warns(PerformanceWarning, match="has none of the 1 kernels"):
        lowered = tvm.relax.get_pipeline("tvm_ext", work_dir=tmp_path)(mod)
    assert not any(record_of(func) for _, func in lowered.functions_items() if isinstance(func, tvm.tirx.PrimFunc))


def test_records_of_another_kind_of_target_are_left_out(tmp_path: Path) -> None:
    """They name threads that a CPU does not have, and did not compile (``not implemented``)."""
    mod = as_tuned_by_tvm("int64", open_database(tmp_path))
    database = open_database(tmp_path)
    (row,) = database.get_all_tuning_records()
    schedule = Schedule(row.workload.mod)
    for loop, thread in zip(
        schedule.get_loops(schedule.get_sblock("twice")), ("blockIdx.x", "threadIdx.x"), strict=True
    ):
        schedule.bind(loop, thread)
    gpu = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    database.commit_tuning_record(ms.database.TuningRecord(schedule.trace, row.workload, [1e-6], gpu, None))
    said = "has records for twice that were tuned for targets of the kind cuda, and they are left out"
    with native_target():
        with database, pytest.warns(TvmExtWarning, match=said):
            entered = tvm.relax.get_pipeline("tvm_ext")(mod)
        with pytest.warns(TvmExtWarning, match=said):
            looked_up = tvm.relax.get_pipeline("tvm_ext", work_dir=tmp_path)(mod)
    for lowered in (entered, looked_up):
        assert record_of(lowered["twice"]) is not None, "the slower record of this kind"
        assert "threadIdx" not in lowered.script()


def test_an_entered_database_without_these_kernels_is_said_to_be_of_no_use() -> None:
    database = ms.database.MemoryDatabase()
    with database:
        tvm.compile(model(), native_target(), relax_pipeline="tvm_ext")  # nothing was tuned yet: nothing to say
    known = database.commit_workload(matmul(8))
    trace = Schedule(matmul(8)).trace
    database.commit_tuning_record(ms.database.TuningRecord(trace, known, [1.0], native_target(), None))
    with database, pytest.warns(PerformanceWarning, match="that was entered has none of the 1 kernels of this model"):
        executable = tvm.compile(model(), native_target(), relax_pipeline="tvm_ext")
    np.testing.assert_allclose(run(executable, [X])[0], X @ WEIGHT, rtol=1e-5, atol=1e-5)
