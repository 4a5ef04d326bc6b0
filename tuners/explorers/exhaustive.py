"""Exhaustive search: predicts the score of every configuration of a small space."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_ext.tuners.explorers.base import Exploration, Score
from tvm_ext.tuners.explorers.simulated_annealing import SimulatedAnnealing
from tvm_ext.tuners.space import ConfigSpace


@dataclass
class Exhaustive:
    """Takes the best predicted of all configurations; of equals, random ones. Large spaces are annealed.

    Chains stay where they were, and find a single best configuration late: where all scores fit into one table, none
    needs to be looked for.

    Attributes
    ----------
    most : int
        Configurations of the largest space that is enumerated.
    """

    most: int = 1 << 17
    _otherwise: SimulatedAnnealing = field(default_factory=SimulatedAnnealing, repr=False)

    def explore(
        self,
        space: ConfigSpace,
        score: Score,
        count: int,
        excluded: Collection[int],
        best: np.ndarray,
        rng: np.random.Generator,
    ) -> Exploration:
        """See :class:`~tvm_ext.tuners.explorers.base.Explorer`."""
        if space.size > self.most:
            return self._otherwise.explore(space, score, count, excluded, best, rng)
        keys = rng.permutation(space.size)
        keys = keys[~np.isin(keys, np.fromiter(excluded, np.int64, len(excluded)))]
        vectors = space.vectors(keys)
        scores = np.asarray(score(vectors), np.float64)
        order = np.argsort(-scores, kind="stable")[:count]
        return Exploration(vectors[order], scores[order], len(keys), 1.0, len(keys))

    def dump(self) -> dict[str, Any]:
        """Give what annealing has learnt of a large space."""
        return self._otherwise.dump()

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`dump` gave."""
        self._otherwise.load(state)
