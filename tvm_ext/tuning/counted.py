"""Search with a measurer that counts cycles: exact, so that nothing is measured twice and nothing is confirmed.

A kernel has a sketch for each form of its schedule, a space and a tuner of its own; they take turns.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tvm
from tvm.s_tir import Schedule

from tvm_ext.backends.backend import CountedKernel, CountingMeasurer
from tvm_ext.database.store import SharedDatabase
from tvm_ext.errors import TuningError
from tvm_ext.tuners.measurement import ErrorKind, Measurement
from tvm_ext.tuners.metaschedule.trace_space import TraceSpace
from tvm_ext.tuners.recipe import Recipe
from tvm_ext.tuners.space import Vector
from tvm_ext.tuners.tuner import Tuner
from tvm_ext.tuning.result import KernelResult
from tvm_ext.tuning.search import Course, Request, Search

PART_SECONDS = 1.0
"""Measured for so long, candidates are given to those who keep them, whether or not their batch is complete: a run may
be interrupted, or killed."""


@dataclass(frozen=True)
class Candidate:
    """A configuration that was tried.

    Attributes
    ----------
    sketch : str
        The form of the schedule.
    vector : tuple of int
        In the space of the sketch.
    cycles : int or None
        None if it does not work.
    reason : str
        Why it does not.
    """

    sketch: str
    vector: Vector
    cycles: int | None
    reason: str = ""


@dataclass
class _Sketch:
    name: str
    space: TraceSpace
    tuner: Tuner
    spent: bool = False


@dataclass
class KernelSearch:
    """The search for a schedule of one kernel.

    Parameters
    ----------
    func : PrimFunc
    measurer : CountingMeasurer
    recipe : Recipe
        The tuner; every sketch gets one.
    seed : int
        The same seed gives the same run.
    batch : int
        Candidates between two updates of a tuner.

    Attributes
    ----------
    candidates : list of Candidate
        In the order in which they were tried.
    best : Candidate or None

    Raises
    ------
    TuningError
        If the measurer has no sketch of the kernel.
    """

    func: tvm.tirx.PrimFunc
    measurer: CountingMeasurer
    recipe: Recipe
    seed: int = 0
    batch: int = 64
    candidates: list[Candidate] = field(default_factory=list, init=False)
    best: Candidate | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        workload = tvm.IRModule({"main": self.func})
        self._sketches = []
        for number, (name, schedule) in enumerate(self.measurer.sketches(self.func).items()):
            space = TraceSpace.of(schedule, workload)
            choices = [knob.choices for knob in space.space.knobs]
            oracle = self.measurer.oracle(self.func, choices)
            described = self.measurer.describe(self.func, name, choices)
            tuner = self.recipe.tuner(space.space, self.seed + number, oracle=oracle, description=described)
            self._sketches.append(_Sketch(name, space, tuner))

    def batches(self, trials: int) -> Iterator[list[Candidate]]:
        """Try so many candidates, those that do not work included; give them batch by batch, or in parts of a batch."""
        left = trials
        for sketch in self._sketches:
            sketch.tuner.fit_budget(trials // len(self._sketches))
        while left and not all(sketch.spent for sketch in self._sketches):
            for sketch in self._sketches:
                vectors = sketch.tuner.suggest(min(self.batch, left))
                sketch.spent = not vectors
                tried: list[Candidate] = []
                for part in self._parts(sketch, vectors):
                    tried += part
                    self.candidates += part
                    working = [row for row in (self.best, *part) if row is not None and row.cycles is not None]
                    self.best = min(working, key=lambda row: row.cycles or 0, default=None)
                    yield part
                left -= len(tried)
                sketch.tuner.update([self._measurement(row) for row in tried])

    def run(self, trials: int) -> Candidate:
        """Try so many candidates and return the best.

        Raises
        ------
        TuningError
            If nothing works.
        """
        for _ in self.batches(trials):
            pass
        if self.best is None:
            reason = self.candidates[0].reason if self.candidates else "none was tried"
            raise TuningError(f"none of {len(self.candidates)} candidates fits: {reason}")
        return self.best

    def schedule(self, candidate: Candidate) -> Schedule:
        """Make the schedule of a candidate that works."""
        (sketch,) = (sketch for sketch in self._sketches if sketch.name == candidate.sketch)
        return sketch.space.schedule(candidate.vector)

    @property
    def notes(self) -> list[str]:
        """Why another tuner is used or an oracle was not asked any more, by sketch."""
        return [f"{sketch.name}: {note}" for sketch in self._sketches for note in sketch.tuner.notes]

    def _parts(self, sketch: _Sketch, vectors: Sequence[Vector]) -> Iterator[list[Candidate]]:
        """Try candidates, and give what has been tried every :data:`PART_SECONDS`, at the end, and when interrupted."""
        part: list[Candidate] = []
        start = time.monotonic()
        try:
            for vector in vectors:
                part.append(self._tried(sketch, vector))
                if time.monotonic() - start > PART_SECONDS:
                    yield part
                    part, start = [], time.monotonic()
        except KeyboardInterrupt:
            if part:
                yield part
            raise
        if part:
            yield part

    def _measurement(self, candidate: Candidate) -> Measurement:
        if candidate.cycles is None:
            return Measurement(candidate.vector, None, ErrorKind.INVALID)
        return Measurement(candidate.vector, candidate.cycles / self.measurer.clock)

    def _tried(self, sketch: _Sketch, vector: Vector) -> Candidate:
        choices = [knob.choices[choice] for knob, choice in zip(sketch.space.space.knobs, vector, strict=True)]
        if refusal := self.measurer.refusal(choices):
            return Candidate(sketch.name, vector, None, refusal)
        schedule = sketch.space.schedule(vector)
        if schedule is None:
            reason = "the trace of the schedule cannot be followed with these choices"
            return Candidate(sketch.name, vector, None, reason)
        return Candidate(sketch.name, vector, *self.measurer.count(schedule.mod["main"]))


class CountedSearch(Search):
    """Searches the kernels of a model one after the other, each with its share of the trials.

    Parameters
    ----------
    mod : IRModule
        As :func:`tvm_ext.import_model` gives it.
    measurer : CountingMeasurer

    Raises
    ------
    TuningError
        If the model has nothing to tune.
    """

    def __init__(self, mod: tvm.IRModule, measurer: CountingMeasurer) -> None:
        self._measurer, self._tasks = measurer, measurer.kernels(mod)
        self._folder, self._done = Path(), [0] * len(self._tasks)
        self.kernels = [
            KernelResult(task.name, task.calls, 0, before=task.cycles / measurer.clock) for task in self._tasks
        ]

    def earlier(self, folder: Path) -> list[float | None]:
        """Look up what another folder has."""
        known = self._measurer.known(folder)
        return [known[task.key][0] / self._measurer.clock if task.key in known else None for task in self._tasks]

    def resume(self, folder: Path, database: SharedDatabase) -> tuple[int, int]:
        """Take over what the folder has; records of the database are of kernels that are run."""
        self._folder = folder
        known = self._measurer.known(folder)
        for task, result in zip(self._tasks, self.kernels, strict=True):
            result.best = min(task.cycles, known.get(task.key, (task.cycles, 0))[0]) / self._measurer.clock
        self._done = [known.get(task.key, (0, 0))[1] for task in self._tasks]
        others = 0 if self._measurer.keeps_records else len(database.get_all_tuning_records())
        return sum(self._done), others

    def is_pending(self, trials: int) -> bool:
        """Whether a kernel has fewer trials than its share."""
        return any(done < share for done, share in zip(self._done, self._shares(trials), strict=True))

    def run(self, request: Request, course: Course) -> None:
        """Search the kernels that have fewer trials than their share."""
        shares = self._shares(request.trials)
        for number, (task, done, share) in enumerate(zip(self._tasks, self._done, shares, strict=True)):
            if done < share:
                self._search(number, task, share - done, request, request.seed + done, course)

    def _shares(self, trials: int) -> list[int]:
        """Split trials evenly; what is left over goes to the kernels that take longest."""
        each, more = divmod(trials, len(self._tasks))
        longest = sorted(
            range(len(self._tasks)), key=lambda number: -self._tasks[number].calls * self._tasks[number].cycles
        )
        return [each + (number in longest[:more]) for number in range(len(self._tasks))]

    def _search(
        self, number: int, task: CountedKernel, trials: int, request: Request, seed: int, course: Course
    ) -> None:
        try:
            search = KernelSearch(task.func, self._measurer, request.recipe, seed, request.batch)
        except TuningError as error:
            self.kernels[number].error = str(error)
            return
        kept, best = 0, None
        for tried in search.batches(trials):
            if search.best is not None and search.best.cycles is not None:
                if search.best is not best:
                    best, schedule = search.best, search.schedule(search.best)
                new = len(search.candidates) - kept
                self._measurer.keep(self._folder, task, best.sketch, schedule, search.best.cycles, new)
                kept += new
            course.outcome.note(search.notes)
            course.note(number, [(row.cycles and row.cycles / self._measurer.clock, row.reason) for row in tried])
        if left := trials - len(search.candidates):
            course.outcome.note([f"{task.name}: {left} trials were not needed: no configuration is left to try"])
