"""Tuning for VTA: schedules as spaces, measured with the cycle model instead of a board.

Every order of the loops over tiles is a sketch, a space of its own; tiles and virtual threads are the sampling
instructions of its trace. A candidate that does not fit a memory is an invalid measurement, with its reason.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.builder import BuilderInput, BuilderResult, PyBuilder
from tvm.s_tir.meta_schedule.runner import PyRunner, PyRunnerFuture, RunnerFuture, RunnerInput, RunnerResult

from tvm_ext.cleanup import temporary_folder
from tvm_ext.errors import TuningError, VTAProgramError
from tvm_ext.schedules import vta_conv2d, vta_matmul
from tvm_ext.schedules.rule import ScheduleRule
from tvm_ext.tuners.metaschedule.trace_space import TraceSpace
from tvm_ext.tuners.recipes import Recipe
from tvm_ext.tuners.space import Vector
from tvm_ext.tuners.tuner import Measurement, Tuner
from tvm_ext.vta.config import VTAConfig, config_of_target
from tvm_ext.vta.costs import CycleCosts
from tvm_ext.vta.estimate import count_cycles
from tvm_ext.vta.unrolling import plan_program


@dataclass(frozen=True)
class Candidate:
    """A configuration that was tried.

    Attributes
    ----------
    rule : str
        The sketch: a schedule rule with an order of the loops over tiles.
    vector : tuple of int
        In the space of the sketch.
    cycles : int or None
        None if it does not fit.
    reason : str
        Why it does not.
    """

    rule: str
    vector: Vector
    cycles: int | None
    reason: str = ""


@dataclass
class TuningRun:
    """What a run tried and found.

    Attributes
    ----------
    candidates : list of Candidate
        In the order in which they were tried.
    best : Candidate
    schedule : Schedule
        Of the best one.
    seconds : float
    """

    candidates: list[Candidate]
    best: Candidate
    schedule: Schedule
    seconds: float


@dataclass
class _Sketch:
    rule: str
    space: TraceSpace
    tuner: Tuner
    spent: bool = False


def sketches(func: tvm.tirx.PrimFunc, target: tvm.target.Target) -> dict[str, Schedule]:
    """Schedule a function in every order of its loops over tiles; the choices are sampling instructions.

    Raises
    ------
    TuningError
        If no rule for VTA takes the function.
    """
    rules: list[ScheduleRule] = [
        *(vta_conv2d.Conv2d(order) for order in vta_conv2d.ORDERS),
        *(vta_matmul.Matmul(order) for order in vta_matmul.ORDERS),
    ]
    found = {rule.name: rule.apply(func, target, tunable=True) for rule in rules}
    taken = {name: schedule for name, schedule in found.items() if schedule is not None}
    if not taken:
        raise TuningError("the function is no convolution or matrix product on packed data that fits this VTA")
    return taken


def measure(scheduled: tvm.tirx.PrimFunc, config: VTAConfig, costs: CycleCosts) -> tuple[int | None, str]:
    """Count the cycles of a scheduled function; None and the reason if it cannot run."""
    try:
        return count_cycles(plan_program(scheduled, config), config, costs), ""
    except VTAProgramError as error:
        return None, str(error)


def tune(
    func: tvm.tirx.PrimFunc,
    target: tvm.target.Target,
    costs: CycleCosts,
    recipe: Recipe,
    trials: int,
    *,
    seed: int = 0,
    batch: int = 64,
    most_turns: int = 256,
    progress: Callable[[Candidate], None] = lambda candidate: None,
) -> TuningRun:
    """Search the schedules of a function.

    Parameters
    ----------
    func : PrimFunc
        As :mod:`tvm_ext.vta.compute` writes it.
    target : Target
        With a VTA tag.
    costs : CycleCosts
    recipe : Recipe
        The tuner; every sketch gets one.
    trials : int
        Candidates, those that do not fit included.
    seed : int
        The same seed gives the same run.
    batch : int
        Candidates between two updates of a tuner.
    most_turns : int
        Candidates whose loops over tiles turn more often are not counted: every turn waits for memory, so that tiles as
        small as that are never good.
    progress : callable
        Called after every candidate.

    Raises
    ------
    TuningError
        If no rule takes the function, or nothing fits.
    """
    start = time.perf_counter()
    config = config_of_target(target)
    workload = tvm.IRModule({"main": func})
    rows = []
    for number, (rule, schedule) in enumerate(sketches(func, target).items()):
        space = TraceSpace.of(schedule, workload)
        rows.append(_Sketch(rule, space, recipe.tuner(space.space, seed + number)))
    candidates: list[Candidate] = []
    while len(candidates) < trials and not all(row.spent for row in rows):
        for row in rows:
            vectors = row.tuner.suggest(min(batch, trials - len(candidates)))
            row.spent = not vectors
            results = []
            for vector in vectors:
                candidate = _try(row, vector, config, costs, most_turns)
                candidates.append(candidate)
                progress(candidate)
                seconds = None if candidate.cycles is None else candidate.cycles / (costs.clock_mhz * 1e6)
                results.append(Measurement(vector, seconds))
            row.tuner.update(results)
    working = [candidate for candidate in candidates if candidate.cycles is not None]
    if not working:
        reason = candidates[0].reason if candidates else "none was tried"
        raise TuningError(f"none of {len(candidates)} candidates fits: {reason}")
    best = min(working, key=lambda candidate: candidate.cycles or 0)
    chosen = next(row for row in rows if row.rule == best.rule).space.schedule(best.vector)
    return TuningRun(candidates, best, chosen, time.perf_counter() - start)


def _try(row: _Sketch, vector: Vector, config: VTAConfig, costs: CycleCosts, most_turns: int) -> Candidate:
    choices = [knob.choices[choice] for knob, choice in zip(row.space.space.knobs, vector, strict=True)]
    turns = prod(factor for factors in choices for factor in factors[:-1])
    if turns > most_turns:
        return Candidate(row.rule, vector, None, f"{turns} turns of the loops over tiles, more than {most_turns}")
    schedule = row.space.schedule(vector)
    if schedule is None:
        return Candidate(row.rule, vector, None, "the trace of the schedule cannot be followed with these choices")
    return Candidate(row.rule, vector, *measure(schedule.mod["main"], config, costs))


class _Counts:
    """Cycles of candidates between builder and runner, by paths, since MetaSchedule removes their folders."""

    def __init__(self) -> None:
        stack = contextlib.ExitStack()
        self._folder = stack.enter_context(temporary_folder(Path(tempfile.gettempdir()), "vta"))
        self._cycles: dict[str, int] = {}
        self._finalizer = weakref.finalize(self, stack.close)

    def add(self, cycles: int) -> str:
        """Give a path that stands for a candidate."""
        path = Path(tempfile.mkdtemp(dir=self._folder), "candidate")
        self._cycles[str(path)] = cycles
        return str(path)

    def take(self, path: str) -> int | None:
        """Give the cycles of a path, once."""
        return self._cycles.pop(path, None)


@derived_object
class CycleBuilder(PyBuilder):
    """MetaSchedule's builder for VTA: plans the program of a candidate; what does not fit is a failed build."""

    def __init__(self, config: VTAConfig, costs: CycleCosts, counts: _Counts) -> None:
        super().__init__()
        self.config, self.costs, self.counts = config, costs, counts

    def build(self, build_inputs: list[BuilderInput]) -> list[BuilderResult]:
        """Plan a batch."""
        results = []
        for item in build_inputs:
            cycles, reason = measure(item.mod["main"], self.config, self.costs)
            done = BuilderResult(None, reason) if cycles is None else BuilderResult(self.counts.add(cycles), None)
            results.append(done)
        return results


@derived_object
class _Counted(PyRunnerFuture):
    def __init__(self, result: RunnerResult) -> None:
        super().__init__()
        self._result = result

    def done(self) -> bool:
        return True

    def result(self) -> RunnerResult:
        return self._result


@derived_object
class CycleRunner(PyRunner):
    """MetaSchedule's runner for VTA: gives the time that the cycle model counted."""

    def __init__(self, costs: CycleCosts, counts: _Counts) -> None:
        super().__init__()
        self.costs, self.counts = costs, counts

    def run(self, runner_inputs: list[RunnerInput]) -> list[RunnerFuture]:
        """Look up a batch."""
        return [_Counted(self._result(str(item.artifact_path))) for item in runner_inputs]

    def _result(self, path: str) -> RunnerResult:
        cycles = self.counts.take(path)
        if cycles is None:
            return RunnerResult(None, f"{path} was not made by the builder that belongs to this runner")
        return RunnerResult([cycles / (self.costs.clock_mhz * 1e6)], None)


def builder_and_runner(config: VTAConfig, costs: CycleCosts) -> tuple[ms.Builder, ms.Runner]:
    """Make a builder and a runner for ``builder=`` and ``runner=`` of MetaSchedule's functions."""
    counts = _Counts()
    return CycleBuilder(config, costs, counts), CycleRunner(costs, counts)


def design_space(func: tvm.tirx.PrimFunc, target: tvm.target.Target) -> Any:
    """Make MetaSchedule's design space of a function: its sketches.

    Raises
    ------
    TuningError
        If no rule for VTA takes the function.
    """
    names = list(sketches(func, target))

    def generate(schedule: Schedule) -> list[Schedule]:
        return [sketches(schedule.mod["main"], target)[name] for name in names]

    nothing: dict[str, Any] = {"sch_rules": [], "postprocs": [], "mutator_probs": {}}
    return ms.space_generator.ScheduleFn(generate, **nothing)
