"""Evolutionary search on the cost model: mutation and crossover of good configurations."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_ext.tuners.candidates import BestCandidates
from tvm_ext.tuners.explorers.base import Exploration, Score
from tvm_ext.tuners.space import ConfigSpace


@dataclass
class Evolution:
    """Generations that descend from the best measured configurations and random ones.

    Parents are drawn with probability proportional to their predicted score; a child takes each knob from one of two
    parents, then changes one knob with probability ``mutation``: by one step, or to any choice.

    Attributes
    ----------
    population, generations : int
        Size and number of the generations.
    elite : int
        How many of the best measured configurations the first generation holds.
    mutation : float
        Probability that a child is mutated.
    """

    population: int = 256
    generations: int = 8
    elite: int = 32
    mutation: float = 0.85

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
        elite = best[: self.elite]
        people = np.concatenate([elite, space.random(rng, self.population - len(elite))])
        found = BestCandidates(count, excluded)
        changed_at = 0
        for generation in range(self.generations + 1):
            scores = score(people)
            if found.offer(space, people, scores):
                changed_at = generation
            if generation < self.generations:
                people = self._children(space, people, scores, rng)
        rounds = self.generations + 1
        return Exploration(
            *found.ranked(len(space.knobs)),
            self.population * rounds,
            float(rounds),
            self.population * (changed_at + 1),
        )

    def _children(
        self, space: ConfigSpace, people: np.ndarray, scores: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        fitness = np.maximum(scores, 0.0).astype(np.float64) + 1e-9
        parents = rng.choice(len(people), size=(2, self.population), p=fitness / fitness.sum())
        from_first = rng.random((self.population, len(space.knobs))) < 0.5
        children = np.where(from_first, people[parents[0]], people[parents[1]])
        rows = np.nonzero(rng.random(self.population) < self.mutation)[0]
        knobs = rng.integers(0, len(space.knobs), len(rows))
        radices = space.radices[knobs]
        stepped = np.clip(children[rows, knobs] + rng.choice((-1, 1), len(rows)), 0, radices - 1)
        children[rows, knobs] = np.where(rng.random(len(rows)) < 0.5, stepped, rng.integers(0, radices))
        return children

    def dump(self) -> dict[str, Any]:
        """Nothing is kept from one iteration to the next."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Nothing to go on from."""
