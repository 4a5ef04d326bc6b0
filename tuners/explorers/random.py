"""Random search: scores a fixed number of random configurations."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_ext.tuners.candidates import BestCandidates
from tvm_ext.tuners.explorers.base import Exploration, Score
from tvm_ext.tuners.space import ConfigSpace


@dataclass
class RandomSearch:
    """Takes the best of ``pool`` random configurations; with a pool as large as the batch, simply random ones."""

    pool: int = 4096

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
        vectors = space.random(rng, self.pool)
        found = BestCandidates(count, excluded)
        found.offer(space, vectors, score(vectors))
        return Exploration(*found.ranked(len(space.knobs)), self.pool, 1.0, self.pool)

    def dump(self) -> dict[str, Any]:
        """Nothing is learnt."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Nothing to go on from."""
