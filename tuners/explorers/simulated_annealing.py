"""Parallel simulated annealing, as in AutoTVM."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_ext.tuners.candidates import BestCandidates
from tvm_ext.tuners.explorers.base import Exploration, Score
from tvm_ext.tuners.space import ConfigSpace

ELITE = 32
"""So many of the best measured configurations chains begin at."""


@dataclass
class SimulatedAnnealing:
    """Markov chains that change one random knob at a time.

    A move to a score ``new`` is accepted with probability ``exp((new - old) / temperature)``; the temperature falls
    linearly from 1 to 0. The chains go on from where they were in the next iteration (``persistent``).

    Attributes
    ----------
    chains, steps : int
        Number of chains and most steps of each in one iteration.
    patience : int
        The search ends when the candidates have not changed for so many steps.
    elite : float
        This share of the chains begins at the best measured configurations in each iteration.

    References
    ----------
    Chen et al., "Learning to Optimize Tensor Programs", NeurIPS 2018; chains and steps: table 8 of Ahn et al.,
    "Chameleon", ICLR 2020.
    """

    chains: int = 128
    steps: int = 500
    patience: int = 50
    persistent: bool = True
    elite: float = 0.0
    _points: np.ndarray | None = field(default=None, repr=False)

    def explore(
        self,
        space: ConfigSpace,
        score: Score,
        count: int,
        excluded: Collection[int],
        best: np.ndarray,
        rng: np.random.Generator,
    ) -> Exploration:
        """See :class:`Explorer`."""
        points = self._points if self.persistent and self._points is not None else space.random(rng, self.chains)
        chosen = int(self.elite * len(points)) if len(best) else 0
        if chosen:
            points = np.concatenate([best[np.arange(chosen) % min(len(best), ELITE)], points[chosen:]])
        scores = score(points)
        found = BestCandidates(count, excluded)
        found.offer(space, points, scores)
        movable = np.nonzero(space.radices > 1)[0]
        changed_at = step = 0
        rows = np.arange(len(points))
        for step in range(1, self.steps + 1) if movable.size else ():
            proposed = points.copy()
            knobs = movable[rng.integers(0, movable.size, len(points))]
            # A different choice, uniformly: a step of 1 to radix - 1 around the circle.
            radices = space.radices[knobs]
            proposed[rows, knobs] = (points[rows, knobs] + rng.integers(1, radices)) % radices
            proposed_scores = score(proposed)
            if found.offer(space, proposed, proposed_scores):
                changed_at = step
            temperature = 1.0 - step / self.steps
            gain = np.minimum((proposed_scores - scores) / (temperature + 1e-5), 0.0)
            accepted = rng.random(len(points)) < np.exp(gain)
            points = np.where(accepted[:, None], proposed, points)
            scores = np.where(accepted, proposed_scores, scores)
            if step - changed_at >= self.patience:
                break
        self._points = points
        queries = len(points) * (step + 1)
        return Exploration(*found.ranked(len(space.knobs)), queries, float(step + 1), len(points) * (changed_at + 1))

    def dump(self) -> dict[str, Any]:
        """Give the points of the chains."""
        return {"points": None if self._points is None else self._points.tolist()}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from the points of the chains."""
        self._points = None if state["points"] is None else np.array(state["points"], dtype=np.int64)
