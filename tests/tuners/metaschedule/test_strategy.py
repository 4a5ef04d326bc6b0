"""Our tuners inside TVM's own functions."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

import tvm_ext.tuners
from tests.schedules.kernels import graph
from tests.tuners.metaschedule.kernels import matmul, ruled, tiled
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.errors import OptionError, TvmExtWarning
from tvm_ext.system.tensor_intrinsics import only_tensor_intrinsics
from tvm_ext.tuners.measure.measurer import Measurer
from tvm_ext.tuners.measure.worker import Timing
from tvm_ext.tuners.measurement import ErrorKind
from tvm_ext.tuners.metaschedule.builder import builder_and_runner
from tvm_ext.tuners.metaschedule.results import error_kind
from tvm_ext.tuners.metaschedule.strategy import Budget, TunerStrategy
from tvm_ext.tuners.metaschedule.trace_space import TraceSpace
from tvm_ext.tuners.recipes import recipe


@pytest.fixture(scope="module")
def measurer() -> Iterator[Measurer]:
    with Measurer(workers=2, threads=1, timing=Timing(repeats=1, seconds=0.001)) as made:
        yield made


def _tune(
    mod: tvm.IRModule, folder: Path, trials: int, measurer: Measurer, space: object, strategy: object
) -> ms.Database:
    builder, runner = builder_and_runner(measurer)
    with only_tensor_intrinsics():
        return ms.tune_tir(
            mod,
            native_target(),
            str(folder),
            trials,
            num_trials_per_iter=8,
            builder=builder,
            runner=runner,
            space=space,
            strategy=strategy,
            cost_model=ms.cost_model.RandomModel(),
            num_tuning_cores=1,
            seed=1,
        )


@pytest.mark.parametrize("name", ["evolution", "sa_as", "random"])
def test_tune_tir(name: str, measurer: Measurer, tmp_path: Path) -> None:
    mod = matmul()
    space = ms.space_generator.ScheduleFn(tiled, sch_rules=[], postprocs=[], mutator_probs={})
    strategy = tvm_ext.tuners.strategy(name, batch=8, initial=8)
    database = _tune(mod, tmp_path, 24, measurer, space, strategy)
    records = database.get_all_tuning_records()
    assert len(records) == 24
    hashes = {tvm.ir.save_json(_replayed(mod, record)) for record in records}
    assert len(hashes) == len(records)  # no kernel is measured twice
    schedule = database.query_schedule(mod, native_target(), "main")
    assert schedule is not None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tuner": "no such tuner"}, "unknown tuner 'no such tuner'"),
        ({"batch": 0}, "batch of tuner 'chameleon' is 0; expected 1 or more"),
        ({"initial": -1}, "initial of tuner 'chameleon' is -1; expected 1 or more"),
        ({"seed": -1}, "seed is -1; expected 0 or more"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        tvm_ext.tuners.strategy(**options)


def test_what_a_tuner_has_to_say_is_a_warning_where_nobody_else_tells_it() -> None:
    mod, space = ruled()
    ((schedule,),) = [space.generate_design_space(mod)]
    for budget, expected in ((None, 1), (Budget(4), 0)):
        made = TunerStrategy(recipe("glimpse"), 0, budget=budget)._inst
        made.mod = mod
        made.pre_tuning(4, 4, [schedule])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made.post_tuning()
        assert [row.category for row in caught] == [TvmExtWarning] * expected
        assert ["the target says nothing of the kernel" in note for note in made.notes] == [True]


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("compiling took longer than 30 s and was stopped", ErrorKind.TIMEOUT),
        ("running took longer than 10 s and was stopped", ErrorKind.TIMEOUT),
        ("LocalRunner: Timeout, killed after 30 seconds", ErrorKind.TIMEOUT),
        ("LocalBuilder: An exception occurred\nTraceback", ErrorKind.BUILD),
        ("compiling took the worker process down: a crash, or more memory than it may have", ErrorKind.BUILD),
        ("running CUDA: too many resources requested for launch", None),
        ("", None),
    ],
)
def test_why_a_candidate_has_no_time(message: str, kind: ErrorKind | None) -> None:
    assert error_kind(message) == kind


def test_candidates_that_are_stopped_do_not_contradict_an_oracle() -> None:
    for message, valid in (("running took longer than 1 s and was stopped", 0), ("running failed", 6)):
        mod, space = ruled()
        (schedule,) = space.generate_design_space(mod)
        made = TunerStrategy(recipe("validity", 8, 8), 0)._inst
        made.mod = mod
        made.pre_tuning(24, 6, [schedule])
        candidates = made.generate_measure_candidates()
        made.notify_runner_results(candidates, [ms.runner.RunnerResult(None, message) for _ in candidates])
        ((_, tuner),) = made.sketches
        assert len(tuner.measurements) == len(candidates) == 6
        assert len(tuner.validity.measured) == valid


def _replayed(mod: tvm.IRModule, record: ms.database.TuningRecord) -> tvm.IRModule:
    schedule = Schedule(mod)
    record.trace.apply_to_schedule(schedule, remove_postproc=False)
    return schedule.mod


def test_a_run_goes_on_where_it_was(measurer: Measurer, tmp_path: Path) -> None:
    mod, space = ruled()
    strategy = tvm_ext.tuners.evolution(batch=4, initial=4)
    first = _tune(mod, tmp_path, 4, measurer, space, strategy).get_all_tuning_records()
    assert len(first) == 4
    database = _tune(mod, tmp_path, 8, measurer, space, strategy)
    assert len(database.get_all_tuning_records()) == 8
    assert len({tvm.ir.save_json(_replayed(mod, record)) for record in database.get_all_tuning_records()}) == 8


def test_stock_strategies_run_on_warm_workers(measurer: Measurer, tmp_path: Path) -> None:
    mod = matmul()
    space = ms.space_generator.ScheduleFn(tiled, sch_rules=[], postprocs=[], mutator_probs={})
    database = _tune(mod, tmp_path, 8, measurer, space, "replay-trace")
    assert any(float(record.run_secs[0]) < 1 for record in database.get_all_tuning_records())


def test_a_small_space_ends_the_run(measurer: Measurer, tmp_path: Path) -> None:
    def two(schedule: Schedule) -> Schedule:
        block = schedule.get_sblock("c")
        step = schedule.sample_categorical([0, 16], [0.5, 0.5])
        schedule.annotate(schedule.get_loops(block)[0], "pragma_auto_unroll_max_step", step)
        return schedule

    space = ms.space_generator.ScheduleFn(two, sch_rules=[], postprocs=[], mutator_probs={})
    database = _tune(matmul(16), tmp_path, 100, measurer, space, tvm_ext.tuners.evolution())
    assert len(database.get_all_tuning_records()) == 2


@pytest.mark.slow
def test_tune_relax_with_the_stock_design_space(measurer: Measurer, tmp_path: Path) -> None:
    """Sketches of ``post-order-apply`` with their postprocessors; TVM imports its tensor intrinsics, which is slow."""
    mod = graph(lambda bb, x, y: relax.op.nn.relu(bb.normalize(relax.op.matmul(x, y))), [((64, 64), "float32")] * 2)
    builder, runner = builder_and_runner(measurer)
    target = tvm.target.Target({**native_target().export(), "num-cores": 2})
    database = ms.relax_integration.tune_relax(
        relax.get_pipeline("zero")(mod),
        {},
        target,
        str(tmp_path),
        24,
        num_trials_per_iter=8,
        builder=builder,
        runner=runner,
        strategy=tvm_ext.tuners.evolution(batch=8, initial=8),
        seed=1,
    )
    times = [float(record.run_secs[0]) for record in database.get_all_tuning_records()]
    assert len(times) == 24
    assert sum(time < 1 for time in times) >= 12
    executable = ms.relax_integration.compile_relax(database, mod, target, {})
    arrays = np.random.default_rng(0).standard_normal((2, 64, 64)).astype("float32")
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*tensors).numpy()
    np.testing.assert_allclose(result, np.maximum(arrays[0] @ arrays[1], 0), rtol=1e-4, atol=1e-4)


def test_what_failed_is_not_tried_again(tmp_path: Path) -> None:
    """A database's query for the best records leaves out those that failed."""
    mod, target = matmul(), native_target()
    schedule = Schedule(mod, seed=1)
    tiled(schedule)
    space = TraceSpace.of(schedule, mod)
    database = ms.database.MemoryDatabase()
    workload = database.commit_workload(mod)
    arguments = ms.arg_info.ArgInfo.from_entry_func(mod, remove_preproc=True)
    first = _strategy(mod, schedule, ms.database.MemoryDatabase())
    measured = first.generate_measure_candidates()
    assert measured is not None
    for candidate in measured:
        trace = candidate.sch.trace
        database.commit_tuning_record(ms.database.TuningRecord(trace, workload, [1e10], target, arguments))
    again = _strategy(mod, schedule, database)
    assert again.trials == len(measured), "what failed counts, too"
    tried = {space.vector(candidate.sch.trace) for candidate in measured}
    for _ in range(4):
        candidates = again.generate_measure_candidates() or []
        assert candidates
        assert not tried & {space.vector(candidate.sch.trace) for candidate in candidates}
        again.notify_runner_results(candidates, [ms.runner.RunnerResult(None, "fails") for _ in candidates])


def _strategy(mod: tvm.IRModule, schedule: Schedule, database: ms.Database) -> Any:
    made = TunerStrategy(recipe("random"), 0)._inst  # the object itself, without TVM between
    made.mod = mod
    made.pre_tuning(64, 8, [schedule], database)
    return made
