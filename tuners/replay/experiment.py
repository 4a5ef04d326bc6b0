"""Runs of tuners on a landscape, and how many measurements they need."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_ext.tuners.explorers import SimulatedAnnealing
from tvm_ext.tuners.measurement import Measurement
from tvm_ext.tuners.recipe import Recipe
from tvm_ext.tuners.recipes import RECIPES
from tvm_ext.tuners.replay.simulator import SimulatedLandscape
from tvm_ext.tuners.shared_model import Peers
from tvm_ext.tuners.space import Vector
from tvm_ext.tuners.tuner import Tuner

ITERATIONS = 16
"""Iterations of a run of the source (table 7 of Ahn et al., "Chameleon", ICLR 2020)."""


@dataclass(frozen=True)
class Run:
    """One tuner, one landscape, one seed.

    Attributes
    ----------
    curve : array
        Best true speed (runs a second) among the first 1, 2, ... measurements.
    iteration_ends : array
        Number of measurements after each iteration.
    invalid : int
        How many of the measured configurations failed.
    queries_per_iteration : float
        Cost-model queries of an iteration until its candidates no longer changed, as a mean.
    seconds : float
        What the tuner itself took.
    """

    tuner: str
    task: str
    seed: int
    curve: np.ndarray
    iteration_ends: np.ndarray
    invalid: int
    queries_per_iteration: float
    converged_queries_per_iteration: float
    seconds: float

    def measurements_to(self, speed: float) -> int | None:
        """How many measurements it took to reach a speed; None when it was not reached."""
        reached = np.nonzero(self.curve >= speed)[0]
        return int(reached[0]) + 1 if reached.size else None

    def best(self, iterations: int | None = None) -> float:
        """Best speed, of the whole run or after so many iterations."""
        if iterations is None or iterations > len(self.iteration_ends):
            return float(self.curve[-1])
        return float(self.curve[self.iteration_ends[iterations - 1] - 1])

    def dump(self) -> dict[str, Any]:
        """Give the run as JSON values; of the curve, only where it rises."""
        rises = np.nonzero(np.diff(self.curve, prepend=-1.0))[0]
        return self.__dict__ | {
            "curve": [len(self.curve), rises.tolist(), self.curve[rises].tolist()],
            "iteration_ends": self.iteration_ends.tolist(),
        }

    @classmethod
    def from_dump(cls, values: dict[str, Any]) -> Run:
        """Make the run that :meth:`dump` described."""
        length, rises, speeds = values["curve"]
        lengths = np.diff([*rises, length])
        return cls(
            **values | {"curve": np.repeat(speeds, lengths), "iteration_ends": np.array(values["iteration_ends"])}
        )

    def row(self) -> dict[str, Any]:
        """Give the figures of the run as JSON values."""
        return {
            "tuner": self.tuner,
            "task": self.task,
            "seed": self.seed,
            "measurements": len(self.curve),
            "iterations": len(self.iteration_ends),
            "invalid": self.invalid,
            "best": self.best(),
            "best_after_16_iterations": self.best(ITERATIONS),
            "queries_per_iteration": round(self.queries_per_iteration),
            "converged_queries_per_iteration": round(self.converged_queries_per_iteration),
            "seconds": round(self.seconds, 2),
        }


def run(
    name: str,
    landscape: SimulatedLandscape,
    seed: int,
    budget: int = 1024,
    stop_at: float = np.inf,
    least_iterations: int = ITERATIONS,
    recipe: Recipe | None = None,
    peers: Peers | None = None,
) -> Run:
    """Let a tuner measure a landscape.

    Parameters
    ----------
    name : str
        Of the recipe, unless that is given.
    budget : int
        Most measurements.
    stop_at : float
        After ``least_iterations``, the run ends when this speed (runs a second) is reached.
    peers : Peers, optional
        Measurements of other landscapes, see :func:`experience`.
    """
    start = time.perf_counter()
    tuner = (recipe or RECIPES[name]).tuner(landscape.space, seed, None if peers is None else peers.copy())
    speeds: list[np.ndarray] = []
    ends: list[int] = []
    best, measured = 0.0, 0
    while measured < budget and not (len(ends) >= least_iterations and best >= stop_at):
        batch = tuner.suggest(budget - measured)
        if not batch:
            break
        vectors = np.array(batch)
        _measure(tuner, batch, landscape, seed)
        speeds.append(1.0 / landscape.seconds(vectors))
        best = max(best, float(speeds[-1].max()))
        measured += len(batch)
        ends.append(measured)
    every = np.concatenate(speeds)
    iterations = max(tuner.effort.iterations, 1)
    return Run(
        name,
        landscape.task.name,
        seed,
        np.maximum.accumulate(every),
        np.array(ends),
        int((every == 0).sum()),
        tuner.effort.queries / iterations,
        tuner.effort.converged_queries / iterations,
        time.perf_counter() - start,
    )


def _measure(tuner: Tuner, batch: Sequence[Vector], landscape: SimulatedLandscape, seed: int) -> None:
    seen = landscape.measure(np.array(batch), seed)
    pairs = zip(batch, seen, strict=True)
    tuner.update([Measurement(row, float(value) if np.isfinite(value) else None) for row, value in pairs])


def experience(landscapes: Sequence[SimulatedLandscape], measurements: int = 200, seed: int = 1000) -> Peers:
    """Tune landscapes for a while, for others to learn from."""
    peers = Peers()
    for landscape in landscapes:
        tuner = RECIPES["sa_as_tiles"].tuner(landscape.space, seed, peers)
        while len(tuner.measurements) < measurements:
            _measure(tuner, tuner.suggest(measurements - len(tuner.measurements)), landscape, seed)
    return peers


def oracle_run(landscape: SimulatedLandscape, budget: int = 1024) -> Run:
    """Measure in the order of the landscape's own model, which knows all but the factor of each configuration.

    What a tuner with a perfect cost model would do: a bound on what better models and searches can save. The order is
    found by annealing, and by changes of single knobs until none of them is better.
    """
    start = time.perf_counter()
    space, rng = landscape.space, np.random.default_rng(0)

    def speed(vectors: np.ndarray) -> np.ndarray:
        return 10 * landscape.least_seconds() / landscape.modelled_seconds(vectors)

    nowhere = np.empty((0, len(space.knobs)), dtype=np.int64)
    annealing = SimulatedAnnealing(chains=512, steps=400, patience=400)
    vectors = annealing.explore(space, speed, budget, (), nowhere, rng).vectors
    last = -np.inf
    while (now := float(speed(vectors).sum())) > last:
        last = now
        around = np.unique(np.concatenate([vectors, space.changes(vectors)]), axis=0)
        vectors = around[np.argsort(-speed(around), kind="stable")[:budget]]
    speeds = 1.0 / landscape.seconds(vectors)
    return Run(
        "oracle",
        landscape.task.name,
        0,
        np.maximum.accumulate(speeds),
        np.array([len(vectors)]),
        int((speeds == 0).sum()),
        0.0,
        0.0,
        time.perf_counter() - start,
    )


def fewer_measurements(
    runs: Sequence[Run], baseline: str, tuner: str, budget: int, share: float = 0.99
) -> dict[str, tuple[float, float]]:
    """Compare, task by task, how many measurements two tuners need for ``share`` of the baseline's final speed.

    The speed is the median over the baseline's seeds. A run that does not reach it counts as ``budget``.

    Returns
    -------
    dict
        For each task: median measurements of the baseline over those of the tuner, and the share of the tuner's runs
        that reached the speed.
    """
    ratios = {}
    for task in dict.fromkeys(row.task for row in runs):
        of = {name: [row for row in runs if (row.task, row.tuner) == (task, name)] for name in (baseline, tuner)}
        if not of[baseline] or not of[tuner]:
            continue
        speed = share * float(np.median([row.best() for row in of[baseline]]))
        counts = {name: [row.measurements_to(speed) or budget for row in rows] for name, rows in of.items()}
        reached = float(np.mean([row.measurements_to(speed) is not None for row in of[tuner]]))
        ratios[task] = (float(np.median(counts[baseline]) / np.median(counts[tuner])), reached)
    return ratios


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean of positive numbers."""
    return float(np.exp(np.mean(np.log(values))))


def bootstrap_interval(
    values: Sequence[float], statistic: Callable[[Sequence[float]], float] = geometric_mean, share: float = 0.95
) -> tuple[float, float]:
    """Interval of a statistic by resampling the values 2000 times.

    References
    ----------
    Efron, "Bootstrap Methods: Another Look at the Jackknife", 1979.
    """
    rng = np.random.default_rng(0)
    table = np.asarray(values, dtype=float)
    drawn = [statistic(table[rng.integers(0, len(table), len(table))].tolist()) for _ in range(2000)]
    low, high = np.quantile(drawn, [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)
