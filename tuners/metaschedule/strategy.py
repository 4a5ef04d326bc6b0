"""Any tuner of this package as MetaSchedule's search strategy."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate, PySearchStrategy
from tvm.s_tir.schedule import Trace

from tvm_ext.backends.registry import backend_of
from tvm_ext.errors import TuningError, TvmExtWarning, warn
from tvm_ext.schedules.recorded import sampling_of
from tvm_ext.schedules.rule import Cost, tunable_cost, tunable_with
from tvm_ext.tuners.measurement import Measurement
from tvm_ext.tuners.metaschedule.numbers import Numbers, numbers_of
from tvm_ext.tuners.metaschedule.results import error_kind, median_seconds
from tvm_ext.tuners.metaschedule.store_features import StoreFeatures
from tvm_ext.tuners.metaschedule.trace_space import Remake, TraceSpace
from tvm_ext.tuners.pretrained.loop_nests import LoopNestModel
from tvm_ext.tuners.recipe import Recipe
from tvm_ext.tuners.rescoring import Rescorer
from tvm_ext.tuners.shared_model import Examples, Peers
from tvm_ext.tuners.space import Vector
from tvm_ext.tuners.tuner import LEAST_BATCH, Tuner
from tvm_ext.tuners.validity import Oracle

FIRST_OF_SKETCH = 8
"""Every sketch is tried so often before one is preferred, or as often as half of the budget allows."""

FIRST_WHERE_KNOWN = 2
"""The same where the cost model knows other kernels' loop nests, and so which sketch is good for what."""

ATTEMPTS = 64
"""Configurations in a row that give no new kernel before a task is given up."""


@dataclass
class Budget:
    """Measurements that several tasks share; MetaSchedule itself goes past its limit by up to a batch.

    Attributes
    ----------
    left : int
        How many may still be made.
    """

    left: int


@derived_object
class TunerStrategy(PySearchStrategy):
    """Lets tuners choose what MetaSchedule measures: one tuner a sketch, which share the budget.

    Every sketch gets a part of the first trials; later, sketches are drawn with a probability that follows how
    fast their best is. One that samples nothing, as that of a transposition, is measured once. Batches are so small
    that the cost models have their say in most of the budget. Configurations that cannot be scheduled, or that give
    a kernel that was measured already, are told to the tuner and cost no trial. What the database holds of the
    workload is learnt from first, and counts as trials.

    Parameters
    ----------
    recipe : Recipe
    seed : int
    resume : bool
        Whether records of the database count as trials: a run that was killed ends where it would have.
    store_features : bool
        Whether the best predicted candidates are scheduled and looked at again with TVM's per-store features.
    first_batch : int, optional
        Most candidates of the first batch. With 1, a scheduler that begins with a batch of every task knows what each
        one takes before it shares out the trials.
    budget : Budget, optional
        What the strategies of several tasks share; a task whose turn comes when it is spent is finished.
    peers : Peers, optional
        Through which the tuners of several tasks learn from one another, if the recipe's cost model can.

    Attributes
    ----------
    search_seconds, model_seconds : float
        What proposing candidates has taken, and what of it was training of cost models; known when the task has ended.
    notes : list of str
        What the tuners have to say of the run, known when the task has ended. Without a budget, in MetaSchedule's own
        functions, they are warnings, too.
    """

    def __init__(
        self,
        recipe: Recipe,
        seed: int = 0,
        resume: bool = True,
        store_features: bool = False,
        first_batch: int | None = None,
        budget: Budget | None = None,
        peers: Peers | None = None,
    ) -> None:
        super().__init__()
        self.recipe, self.seed, self.resume, self.store_features = recipe, seed, resume, store_features
        self.first_batch, self.budget, self.peers = first_batch, budget, peers
        self.context: ms.TuneContext | None = None
        self.mod: tvm.IRModule | None = None
        self.postprocs: list[Any] = []
        self.sketches: list[tuple[TraceSpace, Tuner]] = []
        self.trials = self.max_trials = self.batch = self._next_batch = 0
        self._fixed: list[Trace] = []
        self._pending: list[tuple[int, Vector] | None] = []
        self._seen: dict[int, float | None] = {}
        self.search_seconds = self.model_seconds = 0.0
        self.notes: list[str] = []

    def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
        self.mod, self.context = context.mod, context
        self.postprocs = [] if context.space_generator is None else list(context.space_generator.postprocs or [])

    def pre_tuning(
        self,
        max_trials: int,
        num_trials_per_iter: int,
        design_spaces: list[Schedule],
        database: ms.Database | None = None,
        cost_model: ms.CostModel | None = None,
    ) -> None:
        """Make a tuner for each sketch that samples anything, and learn from the database; others are tried once."""
        if self.mod is None or not design_spaces:
            raise TuningError("the task has no design space, so there is nothing to tune; give it another `space`")
        self.max_trials, self.batch = max_trials, num_trials_per_iter
        self._next_batch = self.first_batch or self.batch
        self.trials, self._pending, self._seen, self.sketches, self._fixed = 0, [], {}, [], []
        self._rng = np.random.default_rng(self.seed)
        self._given: list[int] = []
        cost, remake, numbers = self._cost(), self._remake(), self._numbers()
        for number, schedule in enumerate(design_spaces):
            try:
                space = TraceSpace.of(schedule, self.mod, cost, remake, numbers)
            except TuningError:
                self._fixed.append(schedule.trace)
                continue
            # Not the built-in hash of a string, which differs from process to process.
            seed = zlib.crc32(f"{self.seed}/{number}".encode())
            tuner = self.recipe.tuner(space.space, seed, self.peers, self._oracle(space))
            if self.store_features:
                make = partial(self._schedule, space)
                tuner.rescorer = Rescorer(StoreFeatures(make, self.context), self.recipe.cost_model())
            if isinstance(tuner.cost_model, LoopNestModel):
                describe = StoreFeatures(partial(self._schedule, space), self.context, busiest=True)
                tuner.cost_model.look_at(describe, partial(self._of_siblings, len(self.sketches)))
                self._doubt(tuner, tuner.cost_model)
            self.sketches.append((space, tuner))
        share = max_trials // max(len(self.sketches), 1)
        for number, (_, tuner) in enumerate(self.sketches):
            tuner.fit_budget(share)
            if len(self.sketches) > 1:
                # What is measured before there is a cost model is shared out among the sketches.
                tuner.initial = min(tuner.initial, max(tuner.initial // len(self.sketches), LEAST_BATCH))
                if tuner.rescorer is not None:
                    tuner.rescorer.others = partial(self._of_other_sketches, number)
        knows = any(model.informed for model in self._models_of_loops())
        self._first_of_sketch = max(min(FIRST_WHERE_KNOWN if knows else FIRST_OF_SKETCH, share // 2), 1)
        self._given = [0] * len(self.sketches)
        if database is not None and database.has_workload(self.mod):
            self._learn(database)

    def _doubt(self, tuner: Tuner, model: LoopNestModel) -> None:
        """Let a model forget what it was trained on where that were kernels of another kind of processor."""
        target = None if self.context is None else self.context.target
        if model.trained is not None and (target is None or not backend_of(target).loop_nests_known):
            model.trained = None
            tuner.remarks.append(
                "no pretrained cost model is used: it was trained on kernels of CPUs; the tuner learns from nothing"
            )

    def _models_of_loops(self) -> list[LoopNestModel]:
        """Give the cost models that look at loop nests."""
        models = [tuner.cost_model for _, tuner in self.sketches]
        return [model for model in models if isinstance(model, LoopNestModel)]

    def _of_siblings(self, number: int) -> list[Examples]:
        """Give features of loop nests and scores of what was measured of the other sketches."""
        return [
            tuner.examples(space.space, tuner.measurements)
            for at, (space, tuner) in enumerate(self.sketches)
            if at != number and tuner.measurements
        ]

    def _of_other_sketches(self, number: int) -> list[tuple[np.ndarray, float]]:
        """Give per-store features and scores of what was measured of the other sketches."""
        found = []
        for at, (_, tuner) in enumerate(self.sketches):
            if at != number and tuner.rescorer is not None:
                rows = ((tuner.rescorer.of(row.vector), row.score) for row in tuner.measurements)
                found += [(features, score) for features, score in rows if features is not None]
        return found

    def _cost(self) -> Cost | None:
        """Give what the rule that prepared the kernel estimates; None where there is no such rule, or no estimate."""
        target = None if self.context is None else self.context.target
        if self.mod is None or target is None:
            return None
        return tunable_cost(self.mod["main"], target, backend_of(target).rules)

    def _remake(self) -> Remake | None:
        target = None if self.context is None else self.context.target
        if self.mod is None or target is None:
            return None
        return partial(tunable_with, self.mod["main"], target, backend_of(target).rules)

    def _numbers(self) -> Numbers:
        """Give the numbers of kernel and processor that cost models which were trained beforehand look at."""
        target = None if self.context is None else self.context.target
        return ((), ()) if self.mod is None or target is None else numbers_of(self.mod, target)

    def _oracle(self, space: TraceSpace) -> Oracle | None:
        """Ask the target's row what it says of scheduled kernels; None where it runs all, or the recipe does not ask.

        Configurations that cannot be scheduled do not work, nor those that the postprocessors of the space refuse.
        """
        target = None if self.context is None else self.context.target
        refuses = None if target is None or not self.recipe.asks else backend_of(target).refuses
        reason = None if refuses is None or target is None else refuses(target)
        if reason is None or target is None:
            return None

        def works(vector: np.ndarray) -> bool:
            if space.space.cost is not None and np.isinf(space.space.cost(vector[None])[0]):
                return False  # the rule knows without making a schedule
            schedule = self._schedule(space, tuple(vector.tolist()))
            return schedule is not None and not reason(schedule.mod["main"], target)

        return lambda vectors: np.array([works(vector) for vector in vectors], bool)

    def _learn(self, database: ms.Database) -> None:
        """Take over what earlier runs measured."""
        workload = database.commit_workload(self.mod)
        # Not the query for the best ones, which leaves out what failed: that would be tried again.
        for record in database.get_all_tuning_records():
            if not record.workload.same_as(workload):
                continue
            seconds = median_seconds(record.run_secs)
            for number, (space, tuner) in enumerate(self.sketches):
                vector = space.vector(record.trace)
                if vector is not None:
                    tuner.update([Measurement(vector, seconds)])
                    self._given[number] += 1
                    self.trials += self.resume
                    self._note_kernel(self._schedule(space, vector), seconds)
                    break
            else:
                fixed = self._fixed and not sampling_of(record.trace)
                if fixed or any(space.is_akin(record.trace) for space, _ in self.sketches):
                    self._note_kernel(self._of_trace(record.trace), seconds)
                    self.trials += self.resume

    def _note_kernel(self, schedule: Schedule | None, seconds: float | None) -> None:
        """Note what was measured, so that no other configuration that gives the same kernel is."""
        if schedule is not None:
            key = tvm_ffi.structural_hash(schedule.mod)
            known = self._seen.get(key)
            self._seen[key] = seconds if known is None or (seconds is not None and seconds < known) else known

    def post_tuning(self) -> None:
        """Let go of what belongs to the task."""
        self.model_seconds += sum(tuner.model_seconds for _, tuner in self.sketches)
        notes = list(dict.fromkeys(note for _, tuner in self.sketches for note in tuner.notes))
        if not (self.sketches or self._fixed or self.trials):
            notes.append("no sketch of a kernel could be scheduled, as where its extents are open: it was not measured")
        self.notes += notes
        if self.budget is None:  # in MetaSchedule's own functions nobody asks for the notes
            for note in notes:
                warn(note, TvmExtWarning)
        self.sketches, self._fixed, self._pending, self._seen = [], [], [], {}
        self.context = None  # it holds this strategy

    def generate_measure_candidates(self) -> list[MeasureCandidate] | None:
        """Give the next batch; None when the budget is spent or there is nothing left to try."""
        start = time.perf_counter()
        candidates = self._next_candidates()
        self.search_seconds += time.perf_counter() - start
        return candidates or None

    def _next_candidates(self) -> list[MeasureCandidate]:
        wanted = min(self._next_batch, self.max_trials - self.trials)
        if self.budget is not None:
            wanted = min(wanted, self.budget.left)
        self._next_batch = self.batch
        candidates: list[MeasureCandidate] = []
        while self._fixed and len(candidates) < wanted:
            candidate = self._new(self._of_trace(self._fixed.pop(0)))
            if candidate is not None:
                candidates.append(candidate)
                self._pending.append(None)
        in_vain = 0
        waiting: list[int] = []
        while self.sketches and len(candidates) < wanted and in_vain < ATTEMPTS:
            waited, waiting = bool(waiting), self._waiting()
            if waited and not waiting and candidates:
                break  # which sketch is the best is only known once these are measured
            number = waiting[0] if waiting else self._choose_sketch()
            space, tuner = self.sketches[number]
            most = self._first_of_sketch - self._given[number] if waiting else wanted
            vectors = tuner.suggest(min(most, wanted - len(candidates)))
            # One that has nothing left is not waited for.
            self._given[number] += len(vectors) or self._first_of_sketch
            before = len(candidates)
            for vector in vectors:
                candidate = self._candidate(space, tuner, vector)
                if candidate is not None:
                    candidates.append(candidate)
                    self._pending.append((number, vector))
            if candidates and len(vectors) < wanted and not waiting:
                break  # a sampler that needs fewer measurements gets fewer
            in_vain = 0 if len(candidates) > before else in_vain + max(1, len(vectors))
        self.trials += len(candidates)
        if self.budget is not None:
            self.budget.left -= len(candidates)
        return candidates

    def _waiting(self) -> list[int]:
        """Sketches tried too seldom to tell how good they are, the least tried first; none if there is one."""
        if len(self.sketches) == 1:
            return []
        found = [number for number, given in enumerate(self._given) if given < self._first_of_sketch]
        return sorted(found, key=lambda number: self._given[number])

    def _choose_sketch(self) -> int:
        tuners = [tuner for _, tuner in self.sketches]
        speeds = np.array([0.0 if tuner.best is None else tuner.best.score for tuner in tuners])
        weights = (speeds / speeds.max()) ** 2 + 0.05 if speeds.max() > 0 else np.ones(len(tuners))
        return int(self._rng.choice(len(tuners), p=weights / weights.sum()))

    def _candidate(self, space: TraceSpace, tuner: Tuner, vector: Vector) -> MeasureCandidate | None:
        """Make a candidate; what makes none is told to the tuner at once."""
        schedule = self._schedule(space, vector)
        if schedule is None:
            tuner.update([Measurement(vector, None)])
            return None
        key = tvm_ffi.structural_hash(schedule.mod)
        if key in self._seen:
            tuner.update([Measurement(vector, self._seen[key])])
            return None
        return self._new(schedule)

    def _new(self, schedule: Schedule | None) -> MeasureCandidate | None:
        """Make a candidate of a schedule that was not measured yet; None where there is none, or it was."""
        key = None if schedule is None else tvm_ffi.structural_hash(schedule.mod)
        if schedule is None or key is None or key in self._seen:
            return None
        self._seen[key] = None
        return MeasureCandidate(schedule, ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True))

    def _of_trace(self, trace: Trace) -> Schedule | None:
        """Follow a sketch that samples nothing; None when that cannot be."""
        schedule = Schedule(self.mod, debug_mask="none", error_render_level="none")
        try:
            trace.apply_to_schedule(schedule, remove_postproc=True)
        except Exception:  # whatever a primitive refuses
            return None
        return self._finished(schedule)

    def _schedule(self, space: TraceSpace, vector: Vector) -> Schedule | None:
        """Make the schedule of a configuration as it is measured; None when that cannot be."""
        return self._finished(space.schedule(vector))

    def _finished(self, schedule: Schedule | None) -> Schedule | None:
        if schedule is not None:
            schedule.enter_postproc()
            if not all(postproc.apply(schedule) for postproc in self.postprocs):
                return None
        return schedule

    def notify_runner_results(
        self, measure_candidates: list[MeasureCandidate], results: list[ms.runner.RunnerResult]
    ) -> None:
        """Tell the tuners what was measured."""
        pending, self._pending = self._pending, []
        for configuration, candidate, result in zip(pending, measure_candidates, results, strict=True):
            seconds = None if result.run_secs is None else median_seconds(result.run_secs)
            self._seen[tvm_ffi.structural_hash(candidate.sch.mod)] = seconds
            if configuration is None:
                continue
            number, vector = configuration
            kind = None if seconds is not None else error_kind(str(result.error_msg or ""))
            self.sketches[number][1].update([Measurement(vector, seconds, kind)])

    def clone(self) -> TunerStrategy:
        """Give a strategy of the same recipe for another task."""
        options = (self.resume, self.store_features, self.first_batch, self.budget, self.peers)
        return TunerStrategy(self.recipe, self.seed, *options)
