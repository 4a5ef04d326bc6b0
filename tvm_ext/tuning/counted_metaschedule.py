"""A measurer that counts cycles as builder and runner of MetaSchedule, and sketches of a function as design space."""

from __future__ import annotations

import contextlib
import tempfile
import weakref
from pathlib import Path
from typing import Any

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.builder import BuilderInput, BuilderResult, PyBuilder
from tvm.s_tir.meta_schedule.runner import PyRunner, PyRunnerFuture, RunnerFuture, RunnerInput, RunnerResult

from tvm_ext.backends.backend import CountingMeasurer
from tvm_ext.system.cleanup import temporary_folder


class _Counts:
    """Cycles of candidates between builder and runner, by paths, since MetaSchedule removes their folders."""

    def __init__(self) -> None:
        stack = contextlib.ExitStack()
        self._folder = stack.enter_context(temporary_folder(Path(tempfile.gettempdir()), "counted"))
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
    """Counts the cycles of candidates; what does not fit is a failed build."""

    def __init__(self, measurer: CountingMeasurer, counts: _Counts) -> None:
        super().__init__()
        self.measurer, self.counts = measurer, counts

    def build(self, build_inputs: list[BuilderInput]) -> list[BuilderResult]:
        """Count a batch."""
        results = []
        for item in build_inputs:
            cycles, reason = self.measurer.count(item.mod["main"])
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
    """Gives the times that were counted, at the clock of the measurer."""

    def __init__(self, measurer: CountingMeasurer, counts: _Counts) -> None:
        super().__init__()
        self.measurer, self.counts = measurer, counts

    def run(self, runner_inputs: list[RunnerInput]) -> list[RunnerFuture]:
        """Look up a batch."""
        return [_Counted(self._result(str(item.artifact_path))) for item in runner_inputs]

    def _result(self, path: str) -> RunnerResult:
        cycles = self.counts.take(path)
        if cycles is None:
            return RunnerResult(None, f"{path} was not made by the builder that belongs to this runner")
        return RunnerResult([cycles / self.measurer.clock], None)


def builder_and_runner(measurer: CountingMeasurer) -> tuple[ms.Builder, ms.Runner]:
    """Make a builder and a runner for ``builder=`` and ``runner=`` of MetaSchedule's functions."""
    counts = _Counts()
    return CycleBuilder(measurer, counts), CycleRunner(measurer, counts)


def design_space(func: tvm.tirx.PrimFunc, measurer: CountingMeasurer) -> Any:
    """Make MetaSchedule's design space of a function: its sketches.

    Raises
    ------
    TuningError
        If the measurer has no sketch of the function.
    """
    names = list(measurer.sketches(func))

    def generate(schedule: Schedule) -> list[Schedule]:
        return [measurer.sketches(schedule.mod["main"])[name] for name in names]

    nothing: dict[str, Any] = {"sch_rules": [], "postprocs": [], "mutator_probs": {}}
    return ms.space_generator.ScheduleFn(generate, **nothing)
