"""MetaSchedule's builder and runner on warm workers."""

from __future__ import annotations

from concurrent.futures import Future

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.builder import BuilderInput, BuilderResult, PyBuilder
from tvm.s_tir.meta_schedule.runner import PyRunner, PyRunnerFuture, RunnerFuture, RunnerInput, RunnerResult

from tvm_ext.tuners.measure.measurer import Candidate, Measurer, tensor_arguments
from tvm_ext.tuners.measure.scratch import ScratchFolder


class Artifacts:
    """Which candidate an artifact path stands for; compiled code stays in the workers.

    The path is one of a folder of its own, since MetaSchedule removes the folder when a candidate is done with.
    """

    def __init__(self) -> None:
        self._folder = ScratchFolder()
        self._candidates: dict[str, Candidate] = {}
        self._number = 0

    def add(self, candidate: Candidate) -> str:
        """Give a path that stands for the candidate."""
        self._number += 1
        folder = self._folder.path / str(self._number)
        folder.mkdir()
        path = folder / "candidate"
        path.write_text(candidate.key, encoding="utf-8")
        self._candidates[str(path)] = candidate
        return str(path)

    def take(self, path: str) -> Candidate | None:
        """Give the candidate of a path, once."""
        return self._candidates.pop(path, None)


@derived_object
class WarmBuilder(PyBuilder):
    """Compiles in warm workers; its artifacts can be run by the :class:`WarmRunner` of the same measurer alone."""

    def __init__(self, measurer: Measurer, artifacts: Artifacts) -> None:
        super().__init__()
        self.measurer, self.artifacts = measurer, artifacts

    def build(self, build_inputs: list[BuilderInput]) -> list[BuilderResult]:
        """Compile a batch."""
        rows = [self.measurer.candidate(item.mod, item.target) for item in build_inputs]
        self.measurer.build(rows)
        return [
            BuilderResult(self.artifacts.add(row), None) if row.error is None else BuilderResult(None, row.error)
            for row in rows
        ]


@derived_object
class _Result(PyRunnerFuture):
    def __init__(self, candidate: Future[Candidate]) -> None:
        super().__init__()
        self._candidate = candidate

    def done(self) -> bool:
        return self._candidate.done()

    def result(self) -> RunnerResult:
        row = self._candidate.result()
        return RunnerResult(row.seconds, None if row.seconds is not None else row.error or "not run")


@derived_object
class WarmRunner(PyRunner):
    """Times candidates where their measurer does: in the workers that compiled them, or on other machines."""

    def __init__(self, measurer: Measurer, artifacts: Artifacts) -> None:
        super().__init__()
        self.measurer, self.artifacts = measurer, artifacts

    def run(self, runner_inputs: list[RunnerInput]) -> list[RunnerFuture]:
        """Time a batch."""
        rows = []
        for item in runner_inputs:
            row = self.artifacts.take(str(item.artifact_path))
            if row is None:
                path = str(item.artifact_path)
                row = Candidate(
                    path, "", {}, error=f"{path} was not compiled by the builder that belongs to this runner"
                )
            rows.append((row, str(item.device_type), tensor_arguments(item.args_info)))
        return [_Result(done) for done in self.measurer.run_all(rows)]


def builder_and_runner(measurer: Measurer) -> tuple[ms.Builder, ms.Runner]:
    """Make a builder and a runner for ``builder=`` and ``runner=`` of MetaSchedule's functions, with any strategy."""
    artifacts = Artifacts()
    return WarmBuilder(measurer, artifacts), WarmRunner(measurer, artifacts)
