"""``tvm_ext.tuning.tune``: search for schedules of a model's kernels that are faster than the rules' own choices.

The kernels are those of the pipeline ``tvm_ext`` just before its phase ``schedule``; what is found is kept in
MetaSchedule's JSON database, which that phase reads.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.measure_callback import PyMeasureCallback

from tvm_ext.database.files import announced
from tvm_ext.database.folders import best_seconds, note_version, open_database, open_earlier, record_count
from tvm_ext.database.store import SharedDatabase
from tvm_ext.errors import OutputError, TuningError
from tvm_ext.options import PipelineOptions
from tvm_ext.schedules import cpu
from tvm_ext.schedules.rule import tunable_schedule
from tvm_ext.system.compile_lock import one_compilation
from tvm_ext.tuners.measure.measurer import Measurer, arguments_of
from tvm_ext.tuners.measure.remote import RemoteMeasurer
from tvm_ext.tuners.metaschedule.builder import builder_and_runner
from tvm_ext.tuners.metaschedule.intrinsics import only_tensor_intrinsics
from tvm_ext.tuners.metaschedule.strategy import Budget, TunerStrategy
from tvm_ext.tuners.recipes import Recipe
from tvm_ext.tuning.confirmation import Confirmation
from tvm_ext.tuning.result import KernelResult, TuningResult
from tvm_ext.tuning.tasks import DEFAULT_OPTIONS, Task, earlier_kernels, kernels_to_tune

__all__ = [
    "KernelResult",
    "Task",
    "TuningResult",
    "kernels_to_tune",
    "open_database",
    "tune",
]


def tune(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    work_dir: str | Path,
    trials: int,
    recipe: Recipe,
    *,
    seed: int = 0,
    batch: int = 16,
    options: PipelineOptions = DEFAULT_OPTIONS,
    measurer: Measurer | None = None,
    compare: str | Path | None = None,
    store_features: bool = False,
    progress: Callable[[TuningResult], None] = lambda result: None,
) -> TuningResult:
    """Tune the kernels of a Relax module.

    The rule's own choice of each kernel is measured first; the other trials go where most time can be saved. At the end
    the fastest candidates are timed in turns with the rule's choice, unless other machines measured, and these times
    take the place of the first ones.

    Parameters
    ----------
    mod : IRModule
        As :func:`tvm_ext.import_model` gives it.
    work_dir : path
        Folder of the database. One that holds records is gone on with: its trials count, and what a killed run did not
        come to compare is compared. Several runs may use one folder at a time, and keep one another's records.
    trials : int
        Measurements, over all kernels and runs.
    options : PipelineOptions
        Those the model will be compiled with: they decide which kernels there are.
    measurer : Measurer, optional
        A :class:`~tvm_ext.tuners.measure.remote.RemoteMeasurer` measures on other machines; one for this by default.
    compare : path, optional
        Folder of the database of an earlier run, whose best times are noted in the result.
    store_features : bool
        See :class:`~tvm_ext.tuners.metaschedule.strategy.TunerStrategy`.
    progress : callable
        Called after every batch.

    Raises
    ------
    TuningError
        If there is nothing to tune, a database cannot be read, the one to compare with has none of the kernels, or no
        candidate could be measured.
    RemoteError
        If no server is left of those that measure.
    OutputError
        If the folder cannot be written.
    """
    start = time.perf_counter()
    tasks = kernels_to_tune(mod, target, here=not isinstance(measurer, RemoteMeasurer), options=options)
    if not tasks:
        raise TuningError(
            "none of the model's kernels has a schedule with something to choose: there is nothing to tune"
        )
    results = [KernelResult(task.name, task.calls, task.space.space.size) for task in tasks]
    if compare is not None:
        _note_earlier(tasks, results, Path(compare))
    folder = Path(work_dir)
    database = open_database(folder)
    note_version(folder)
    with announced(folder) as beside:
        total = len(database.get_all_tuning_records())
        known = sum(record_count(database, task.mod) for task in tasks)
        outcome = TuningResult(results, resumed=known, others=total - known, beside=beside)
        for task, result in zip(tasks, results, strict=True):
            result.best = best_seconds(database, task.mod)
        # A run that was killed may have left fast records that nobody compared with the rule's choice.
        here = not isinstance(measurer, RemoteMeasurer)
        is_due = here and Confirmation([task.space for task in tasks], database, folder).is_due
        if trials > known or is_due:
            own = measurer or Measurer()
            try:
                budget = (trials - known, trials, batch)
                seconds = {}
                if trials > known:
                    strategies = _strategies(recipe, seed, store_features, budget, tasks, database, target)
                    _search(tasks, target, folder, budget, strategies, own, database, outcome, progress)
                    model = sum(strategy.model_seconds for strategy in strategies)
                    searched = sum(strategy.search_seconds for strategy in strategies) - model
                    seconds = {"search": searched, "model": model}
                confirming = time.perf_counter()
                if here:
                    _confirm(tasks, target, folder, database, own, outcome)
                    outcome.note_latency(time.perf_counter() - start)
                own.check_noise([("cpu", arguments_of(task.mod)) for task in tasks])
                confirmed = time.perf_counter() - confirming
                counts = own.counts
                outcome.noise = list(counts.noise)
                outcome.seconds = seconds | {
                    "build": counts.build_seconds,
                    "run": counts.run_seconds,
                    "confirm": confirmed,
                }
            finally:
                if measurer is None:
                    own.close()
    outcome.seconds["total"] = time.perf_counter() - start
    if all(result.best is None for result in results):
        reasons = {result.error for result in results if result.error}
        raise TuningError(f"no candidate could be measured: {next(iter(reasons), 'nothing was tried')}")
    return outcome


def _strategies(
    recipe: Recipe,
    seed: int,
    store_features: bool,
    budget: tuple[int, int, int],
    tasks: Sequence[Task],
    database: ms.Database,
    target: tvm.target.Target,
) -> list[TunerStrategy]:
    left = Budget(budget[0])
    peers = earlier_kernels(database, [task.mod for task in tasks], target) if recipe.shares else None
    return [
        TunerStrategy(recipe, seed + number, store_features=store_features, first_batch=1, budget=left, peers=peers)
        for number in range(len(tasks))
    ]


def _confirm(
    tasks: Sequence[Task],
    target: tvm.target.Target,
    folder: Path,
    database: ms.Database,
    measurer: Measurer,
    outcome: TuningResult,
) -> None:
    """Let only those candidates take the place of a rule's choice that are faster than it side by side."""
    confirmation = Confirmation([task.space for task in tasks], database, folder)
    if confirmation.is_due:
        for result, seconds in zip(outcome.kernels, confirmation.run(target, measurer), strict=True):
            result.before = result.before if seconds is None else seconds
    database = open_database(folder)
    for task, result in zip(tasks, outcome.kernels, strict=True):
        result.best = best_seconds(database, task.mod)


def _note_earlier(tasks: Sequence[Task], results: Sequence[KernelResult], folder: Path) -> None:
    database = open_earlier(folder)
    for task, result in zip(tasks, results, strict=True):
        result.earlier = best_seconds(database, task.mod)
    if all(result.earlier is None for result in results):
        raise TuningError(
            f"the database in {folder} holds none of this model's {len(tasks)} kernels: it is of another model, input "
            "shape, target or release; compare with a run of this one"
        )


def _search(
    tasks: Sequence[Task],
    target: tvm.target.Target,
    folder: Path,
    budget: tuple[int, int, int],
    strategies: Sequence[TunerStrategy],
    measurer: Measurer,
    database: SharedDatabase,
    outcome: TuningResult,
    progress: Callable[[TuningResult], None],
) -> None:
    logger = logging.getLogger("tvm_ext.tuning")
    logger.setLevel(logging.ERROR)
    builder, runner = builder_and_runner(measurer)
    new_trials, trials, batch = budget

    def design_space(schedule: Schedule) -> Schedule:
        with one_compilation():
            return tunable_schedule(schedule.mod["main"], target, cpu.RULES)

    nothing: dict[str, Any] = {"sch_rules": [], "postprocs": [], "mutator_probs": {}}

    with one_compilation(), only_tensor_intrinsics():
        contexts = [
            ms.TuneContext(
                task.mod,
                target=target,
                space_generator=ms.space_generator.ScheduleFn(design_space, **nothing),
                search_strategy=strategies[number],
                task_name=task.name,
                rand_state=strategies[number].seed + 1,
                num_threads=1,
                logger=logger,
            )
            for number, task in enumerate(tasks)
        ]
    callbacks = [
        ms.measure_callback.AddToDatabase(),
        ms.measure_callback.RemoveBuildArtifact(),
        _Reporter(outcome, progress, time.perf_counter()),
    ]
    try:
        ms.tune.tune_tasks(
            tasks=contexts,
            task_weights=[float(task.calls) for task in tasks],
            work_dir=str(folder),
            max_trials_global=new_trials,
            max_trials_per_task=trials,
            num_trials_per_iter=batch,
            builder=builder,
            runner=runner,
            database=database,
            cost_model=ms.cost_model.RandomModel(),
            measure_callbacks=callbacks,
        )
    except Exception as error:
        broken = measurer.broken or database.broken
        if broken is not None:
            raise broken from None
        if not isinstance(error, OSError | RuntimeError):
            raise
        # From TVM's side: its log in the folder cannot be opened or written.
        text = " ".join(str(error).split())[:200]
        raise OutputError(
            f"cannot write the database in {folder}: {text}; free some space or use another folder"
        ) from None


@derived_object
class _Reporter(PyMeasureCallback):
    """Notes what was measured."""

    def __init__(self, outcome: TuningResult, progress: Callable[[TuningResult], None], start: float) -> None:
        super().__init__()
        self.outcome, self.progress, self.start = outcome, progress, start

    def apply(
        self,
        task_scheduler: Any,
        task_id: int,
        measure_candidates: Sequence[Any],
        builder_results: Sequence[Any],
        runner_results: Sequence[Any],
    ) -> None:
        kernel = self.outcome.kernels[task_id]
        for built, ran in zip(builder_results, runner_results, strict=True):
            kernel.trials += 1
            if ran.run_secs is None:
                kernel.failed += 1
                kernel.error = str(ran.error_msg or built.error_msg)
                continue
            seconds = sorted(map(float, ran.run_secs))[len(ran.run_secs) // 2]
            if kernel.before is None and kernel.best is None:
                kernel.before = seconds  # the rule's own choice is measured first
            kernel.best = seconds if kernel.best is None else min(kernel.best, seconds)
        self.outcome.note_latency(time.perf_counter() - self.start)
        self.progress(self.outcome)
