"""Search with a clock: MetaSchedule builds and runs candidates, here or on other machines; tuners choose them.

What is found is kept in MetaSchedule's JSON database, which the phase ``schedule`` reads. At the end the fastest
candidates are timed in turns with the rule's own choice, and the whole network in turns with the untuned one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.measure_callback import PyMeasureCallback

from tvm_ext.backends.registry import backend_of
from tvm_ext.database.folders import best_seconds, open_database, open_earlier, record_count, records_of
from tvm_ext.database.marks import Identity, identity, left_alone
from tvm_ext.database.store import SharedDatabase
from tvm_ext.errors import OutputError, TuningError
from tvm_ext.frontend import import_model
from tvm_ext.frontend.imported import ImportedModel
from tvm_ext.options import PipelineOptions
from tvm_ext.schedules.rule import tunable_schedule
from tvm_ext.system.compile_lock import one_compilation
from tvm_ext.system.tensor_intrinsics import only_tensor_intrinsics
from tvm_ext.system.threads import threads
from tvm_ext.tuners.measure.measurer import Measurer, arguments_of, device_of
from tvm_ext.tuners.metaschedule.builder import builder_and_runner
from tvm_ext.tuners.metaschedule.results import median_seconds
from tvm_ext.tuners.metaschedule.strategy import Budget, TunerStrategy
from tvm_ext.tuning.confirmation import Confirmation
from tvm_ext.tuning.harmful_records import NetworkTimes
from tvm_ext.tuning.network_confirmation import NetworkConfirmation
from tvm_ext.tuning.result import KernelResult, TuningResult
from tvm_ext.tuning.search import Course, Request, Search
from tvm_ext.tuning.sizes import sizes_to_tune
from tvm_ext.tuning.tasks import Task, earlier_kernels, kernels_to_tune

ELSEWHERE = (
    "the kernels were timed on other machines, and the whole network was not compared with the untuned one; `tvm-ext "
    "bench` there does so"
)


class TimedSearch(Search):
    """Measures the rule's own choice of each kernel first; other trials go where most time can be saved.

    Parameters
    ----------
    model : IRModule or ImportedModel
        As :func:`tvm_ext.import_model` gives it.
    target : Target
    options : PipelineOptions
        Those the model will be compiled with: they decide which kernels there are.
    measurer : Measurer, optional
        One for this machine by default.
    store_features : bool
        See :class:`~tvm_ext.tuners.metaschedule.strategy.TunerStrategy`.
    confirms : bool
        Whether the whole network is compared with the untuned one at the end.
    sizes : sequence of mapping from str to int
        That kernels of open extents are tuned for; see :func:`tvm_ext.tuning.sizes.sizes_to_tune`.

    Raises
    ------
    TuningError
        If the model has nothing to tune.
    """

    def __init__(
        self,
        model: tvm.IRModule | ImportedModel,
        target: tvm.target.Target,
        options: PipelineOptions,
        measurer: Measurer | None = None,
        store_features: bool = False,
        confirms: bool = True,
        sizes: Sequence[Mapping[str, int]] = (),
    ) -> None:
        self._target, self._measurer, self._store_features = target, measurer, store_features
        self._model = model if isinstance(model, ImportedModel) else import_model(model)
        self._options, self._confirms = options, confirms
        self._sizes = sizes_to_tune(self._model, sizes)
        mod = model.mod if isinstance(model, ImportedModel) else model
        self._here = measurer is None or measurer.is_here
        self._tasks = kernels_to_tune(mod, target, here=self._here, options=options, sizes=self._sizes)
        if not self._tasks:
            raise TuningError(
                "none of the model's kernels has a schedule with something to choose: there is nothing to tune"
            )
        self.kernels = [KernelResult(task.name, task.calls, task.space.space.size) for task in self._tasks]

    def earlier(self, folder: Path) -> list[float | None]:
        """Look up what the database of another run has."""
        database, marked = open_earlier(folder), self._left_alone(folder)
        return [_taken_seconds(task, database, marked)[0] for task in self._tasks]

    def resume(self, folder: Path, database: SharedDatabase) -> tuple[int, int]:
        """Count the records of these kernels, and of others."""
        self._folder, self._database = folder, database
        self._note_best(database)
        for task, result in zip(self._tasks, self.kernels, strict=True):
            result.before = _default_seconds(task, database)
        self._known = sum(record_count(database, task.mod) for task in self._tasks)
        return self._known, len(database.get_all_tuning_records()) - self._known

    def _note_best(self, database: SharedDatabase) -> None:
        marked = self._left_alone(self._folder)
        for task, result in zip(self._tasks, self.kernels, strict=True):
            result.best, result.left_alone = _taken_seconds(task, database, marked)

    def _left_alone(self, folder: Path) -> set[Identity]:
        """Look up what a compilation leaves alone that is run in as many threads as the kernels are."""
        return left_alone(folder, self._tasks[0].network, self._count(self._measurer))

    def _count(self, measurer: Measurer | None) -> int:
        return measurer.threads if measurer is not None and self._here else threads()

    def is_pending(self, trials: int) -> bool:
        """Whether trials are left, or a killed run left records that nobody compared with what there is without."""
        return trials > self._known or (self._here and (self._confirmation().is_due or self._network_is_due()))

    def _mods(self) -> list[tvm.IRModule]:
        return [task.mod for task in self._tasks]

    def _network_is_due(self) -> bool:
        network = self._network(self._measurer) if self._known and self._confirms else None
        return network is not None and network.is_due(self._database, self._mods())

    def _network(self, measurer: Measurer | None) -> NetworkConfirmation:
        alone = measurer is not None and measurer.threads == 1 and measurer.timing.by_processor
        return NetworkConfirmation(
            self._model,
            self._target,
            self._options,
            self._folder,
            self._tasks[0].network,
            self._count(measurer),
            time.thread_time if alone else time.perf_counter,
            sizes=self._sizes,
        )

    def _confirmation(self) -> Confirmation:
        spaces = [task.space for task in self._tasks]
        return Confirmation(spaces, self._database, self._folder, device_of(self._target))

    def run(self, request: Request, course: Course) -> None:
        """Search, then time the fastest once more."""
        measurer = self._measurer or Measurer()
        outcome = course.outcome
        try:
            seconds = {}
            if request.trials > self._known:
                strategies = self._tune(request, measurer, course)
                outcome.note(note for strategy in strategies for note in strategy.notes)
                outcome.note(_left_over(strategies, request.trials))
                model = sum(strategy.model_seconds for strategy in strategies)
                searched = sum(strategy.search_seconds for strategy in strategies) - model
                seconds = {"search": searched, "model": model}
            confirming = time.perf_counter()
            if self._here:
                self._confirm(measurer)
                if self._confirms:
                    self._confirm_network(measurer, outcome)
                course.note_latency()
            elif self._confirms:
                outcome.note([ELSEWHERE])
            measurer.check_noise([(device_of(self._target), arguments_of(task.mod)) for task in self._tasks])
            confirmed = time.perf_counter() - confirming
            counts = measurer.counts
            outcome.noise = list(counts.noise)
            outcome.seconds = seconds | {
                "build": counts.build_seconds,
                "run": counts.run_seconds,
                "confirm": confirmed,
            }
        finally:
            if self._measurer is None:
                measurer.close()

    def _strategies(self, request: Request, numbers: Sequence[int], left: Budget, first: int) -> list[TunerStrategy]:
        peers = earlier_kernels(self._database, self._mods(), self._target) if request.recipe.shares else None
        return [
            TunerStrategy(
                request.recipe, request.seed + number, store_features=self._store_features, first_batch=first,
                budget=left, peers=peers,
            )
            for number in numbers
        ]  # fmt: skip

    def _confirm(self, measurer: Measurer) -> None:
        """Let only those candidates take the place of a rule's choice that are faster than it side by side."""
        confirmation = self._confirmation()
        if confirmation.is_due:
            for result, seconds in zip(self.kernels, confirmation.run(self._target, measurer), strict=True):
                result.before = result.before if seconds is None else seconds
        self._note_best(open_database(self._folder))

    def _confirm_network(self, measurer: Measurer, outcome: TuningResult) -> None:
        """Leave kernels alone with whose records the whole network is slower."""
        database = open_database(self._folder)
        found = self._network(measurer).run(database, self._mods())
        if isinstance(found, NetworkTimes):
            outcome.network = found
            outcome.note([found.sentence()] if found.left_alone else [])
            self._note_best(database)
        elif found is not None:
            outcome.note([found])

    def _tune(self, request: Request, measurer: Measurer, course: Course) -> list[TunerStrategy]:
        """Spend the trials; MetaSchedule never returns to a kernel whose first candidate failed: they get theirs here.

        Returns
        -------
        list of TunerStrategy
            That chose what was measured.
        """
        numbers, used, left = list(range(len(self._tasks))), list[TunerStrategy](), Budget(request.trials - self._known)
        builder_runner = builder_and_runner(measurer)
        for first, share in ((1, request.trials // len(self._tasks)), (request.batch, 0)):
            if numbers and left.left:
                strategies = self._strategies(request, numbers, left, first)
                reporter = _Reporter(course, numbers, left, share)
                self._tune_some(request, numbers, strategies, builder_runner, measurer, reporter, left.left)
                used += strategies
                left.left += sum(reporter.kept.values())
                numbers = sorted(reporter.kept)
        return used

    def _tune_some(
        self,
        request: Request,
        numbers: Sequence[int],
        strategies: Sequence[TunerStrategy],
        builder_runner: tuple[ms.Builder, ms.Runner],
        measurer: Measurer,
        reporter: _Reporter,
        trials: int,
    ) -> None:
        logger = logging.getLogger("tvm_ext.tuning")
        logger.setLevel(logging.ERROR)
        builder, runner = builder_runner
        tasks = [self._tasks[number] for number in numbers]

        def design_space(schedule: Schedule) -> Schedule:
            with one_compilation():
                return tunable_schedule(schedule.mod["main"], self._target, backend_of(self._target).rules)

        nothing: dict[str, Any] = {"sch_rules": [], "postprocs": [], "mutator_probs": {}}
        with one_compilation(), only_tensor_intrinsics():
            contexts = [
                ms.TuneContext(
                    task.mod,
                    target=self._target,
                    space_generator=ms.space_generator.ScheduleFn(design_space, **nothing),
                    search_strategy=strategy,
                    task_name=task.name,
                    rand_state=strategy.seed + 1,
                    num_threads=1,
                    logger=logger,
                )
                for task, strategy in zip(tasks, strategies, strict=True)
            ]
        callbacks = [
            ms.measure_callback.AddToDatabase(),
            ms.measure_callback.RemoveBuildArtifact(),
            reporter,
        ]
        try:
            ms.tune.tune_tasks(
                tasks=contexts,
                task_weights=[float(task.calls) for task in tasks],
                work_dir=str(self._folder),
                max_trials_global=trials,
                max_trials_per_task=request.trials,
                num_trials_per_iter=request.batch,
                builder=builder,
                runner=runner,
                database=self._database,
                cost_model=ms.cost_model.RandomModel(),
                measure_callbacks=callbacks,
            )
        except Exception as error:
            broken = measurer.broken or self._database.broken
            if broken is not None:
                raise broken from None
            if not isinstance(error, OSError | RuntimeError):
                raise
            # From TVM's side: its log in the folder cannot be opened or written.
            text = " ".join(str(error).split())[:200]
            raise OutputError(
                f"cannot write the database in {self._folder}: {text}; free some space or use another folder"
            ) from None


def _left_over(strategies: Sequence[TunerStrategy], trials: int) -> list[str]:
    """Say where spaces were searched to their end before the trials were spent."""
    left = min((strategy.budget.left for strategy in strategies if strategy.budget is not None), default=0)
    if left < 1:
        return []
    return [f"{left} of {trials} trials were not needed: the kernels have no configuration that was not tried"]


def _taken_seconds(task: Task, database: SharedDatabase, marked: Collection[Identity]) -> tuple[float | None, bool]:
    """Look up the time of what a compilation takes, and whether it leaves the fastest record alone."""
    best = best_seconds(database, task.mod)
    if best is None or not marked:
        return best, False
    (fastest,) = database.get_top_k(database.commit_workload(task.mod), 1)
    if identity(fastest) not in marked:
        return best, False
    return _default_seconds(task, database) or best, True


def _default_seconds(task: Task, database: SharedDatabase) -> float | None:
    """Look up the time of the rule's own choice (median of its repeats); None where it was not measured, or failed."""
    default = task.space.space.default
    for record in records_of(database, task.mod):
        if task.space.vector(record.trace) == default:
            return median_seconds(record.run_secs)
    return None


@derived_object
class _Reporter(PyMeasureCallback):
    """Notes what was measured of some kernels, and keeps a share of the trials for each that has only failed so far.

    Attributes
    ----------
    kept : dict from int to int
        Kernel of which nothing could be measured to the trials that are kept for it.
    """

    def __init__(self, course: Course, numbers: Sequence[int], left: Budget, share: int) -> None:
        super().__init__()
        self.course, self.numbers, self.left, self.share = course, numbers, left, share
        self.kept: dict[int, int] = {}
        self._measured: set[int] = set()

    def apply(
        self,
        task_scheduler: Any,
        task_id: int,
        measure_candidates: Sequence[Any],
        builder_results: Sequence[Any],
        runner_results: Sequence[Any],
    ) -> None:
        measured: list[tuple[float | None, str]] = []
        for built, ran in zip(builder_results, runner_results, strict=True):
            if ran.run_secs is None:
                measured.append((None, str(ran.error_msg or built.error_msg)))
            else:
                measured.append((sorted(map(float, ran.run_secs))[len(ran.run_secs) // 2], ""))
        number = self.numbers[task_id]
        if any(seconds is not None for seconds, _ in measured):
            self._measured.add(number)
            self.left.left += self.kept.pop(number, 0)
        elif number not in self._measured and number not in self.kept:
            self.kept[number] = min(self.share, self.left.left)
            self.left.left -= self.kept[number]
        self.course.note(number, measured)
