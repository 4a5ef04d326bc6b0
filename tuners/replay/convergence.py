"""How many trials a tuner needs to find the best configuration of a landscape that is known altogether."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tvm_ext.backends.description import KernelDescription
from tvm_ext.tuners.glimpse.tuner import GuidedTuner
from tvm_ext.tuners.measurement import Measurement
from tvm_ext.tuners.recipe import Recipe
from tvm_ext.tuners.replay.recorded import RecordedLandscape
from tvm_ext.tuners.validity import Oracle

TRIALS = 750
"""Trials of a run of the source (Rieber, dissertation, Heidelberg University, 2023, section 5.3)."""


@dataclass(frozen=True)
class Convergence:
    """One tuner, one landscape, one seed.

    Attributes
    ----------
    tuner, landscape : str
    seed : int
    trials : int or None
        Up to the best configuration, that one included; None if it was not found.
    invalid : int
        Trials of configurations that do not work.
    measured : int
    rises : tuple of (int, float)
        After how many trials the best so far became better, and its speed relative to the best of all.
    asked : int
        Questions to the oracle.
    """

    tuner: str
    landscape: str
    seed: int
    trials: int | None
    invalid: int
    measured: int
    rises: tuple[tuple[int, float], ...]
    asked: int = 0

    def dump(self) -> dict[str, Any]:
        """Give the run as JSON values."""
        return asdict(self)

    @classmethod
    def from_dump(cls, values: dict[str, Any]) -> Convergence:
        """Make the run that :meth:`dump` described."""
        return cls(**values | {"rises": tuple((int(at), float(speed)) for at, speed in values["rises"])})

    def speed_after(self, trials: int) -> float:
        """Give the best speed among the first ``trials`` trials, relative to the best of all."""
        return max((speed for at, speed in self.rises if at <= trials), default=0.0)

    def trials_to(self, share: float, budget: int = TRIALS) -> int:
        """Give how many trials it took to a share of the best speed; ``budget`` if it was not reached."""
        return min((at for at, speed in self.rises if speed >= share), default=budget)


def converge(
    name: str,
    recipe: Recipe,
    landscape: RecordedLandscape,
    seed: int,
    budget: int = TRIALS,
    oracle: Oracle | None = None,
    description: KernelDescription | None = None,
) -> Convergence:
    """Let a tuner measure a landscape until it has found the best configuration, or the budget is spent."""
    tuner = recipe.tuner(landscape.space, seed, oracle=oracle, description=description)
    if isinstance(tuner, GuidedTuner) and tuner.guide is not None:
        tuner.guide.budget = budget
    best, measured, invalid = landscape.best_seconds, 0, 0
    rises: list[tuple[int, float]] = []
    fastest = np.inf
    while measured < budget and fastest > best:
        batch = tuner.suggest(budget - measured)
        if not batch:
            break
        times = landscape.seconds(np.array(batch))
        tuner.update(
            Measurement(vector, float(time) if np.isfinite(time) else None)
            for vector, time in zip(batch, times, strict=True)
        )
        for time in times.tolist():
            measured += 1
            if time < fastest:
                fastest = time
                rises.append((measured, best / time))
            if time <= best:
                break
            invalid += not np.isfinite(time)
    asked = 0 if tuner.validity is None else tuner.validity.asked
    found = measured if fastest <= best else None
    return Convergence(name, landscape.name, seed, found, invalid, measured, tuple(rises), asked)


def quartiles(runs: Sequence[Convergence], budget: int = TRIALS) -> tuple[float, float]:
    """Median and interquartile range of the trials to the best; runs that did not find it count as ``budget``."""
    trials = [budget if run.trials is None else run.trials for run in runs]
    low, median, high = np.quantile(trials, [0.25, 0.5, 0.75])
    return float(median), float(high - low)
