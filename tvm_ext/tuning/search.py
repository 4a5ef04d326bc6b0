"""What the loop of :func:`tvm_ext.tuning.tune` asks of a search, and the notes that it takes of every search alike."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tvm_ext.database.store import SharedDatabase
from tvm_ext.tuners.recipe import Recipe
from tvm_ext.tuning.result import KernelResult, TuningResult


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes
    ----------
    trials : int
        Measurements over all kernels and runs.
    recipe : Recipe
        The tuners.
    seed : int
    batch : int
        Candidates between two updates of a tuner.
    """

    trials: int
    recipe: Recipe
    seed: int = 0
    batch: int = 16


class Course:
    """Notes the course of a run: completed trials, failures, the best times, and the curve.

    Parameters
    ----------
    outcome : TuningResult
        Is brought up to date.
    progress : callable
        Called with it after every batch.
    start : float
        When the run began, by ``time.perf_counter``.
    """

    def __init__(self, outcome: TuningResult, progress: Callable[[TuningResult], None], start: float) -> None:
        self.outcome, self._progress, self._start = outcome, progress, start

    def note(self, number: int, measured: Sequence[tuple[float | None, str]]) -> None:
        """Note a batch of candidates of a kernel: seconds, or None and why there are none."""
        kernel = self.outcome.kernels[number]
        for seconds, reason in measured:
            kernel.trials += 1
            if seconds is None:
                kernel.failed += 1
                kernel.error = reason
                continue
            if kernel.before is None and kernel.best is None:
                kernel.before = seconds  # the rule's own choice is measured first
            kernel.best = seconds if kernel.best is None else min(kernel.best, seconds)
        self.note_latency()
        self._progress(self.outcome)

    def note_latency(self) -> None:
        """Lengthen the curve."""
        self.outcome.note_latency(time.perf_counter() - self._start)


class Search(ABC):
    """Candidates of the kernels of a model, and how they are measured.

    Attributes
    ----------
    kernels : list of KernelResult
        What there is to tune.
    """

    kernels: list[KernelResult]

    @abstractmethod
    def earlier(self, folder: Path) -> list[float | None]:
        """Look up the best time (seconds) of each kernel in the folder of another run; nothing there is changed."""

    @abstractmethod
    def resume(self, folder: Path, database: SharedDatabase) -> tuple[int, int]:
        """Take over what a folder holds: gives the completed trials of these kernels, and the records of others."""

    @abstractmethod
    def is_pending(self, trials: int) -> bool:
        """Whether something is left to do for so many trials over all runs."""

    @abstractmethod
    def run(self, request: Request, course: Course) -> None:
        """Try candidates until there are as many trials as asked for, and keep what is found in the folder."""
