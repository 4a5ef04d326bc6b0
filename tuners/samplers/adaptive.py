"""Adaptive sampling: measure the centres of clusters of candidates, as many as the knee of the loss says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tvm_ext.tuners.samplers.base import History, unvisited
from tvm_ext.tuners.samplers.kmeans import kmeans, knee
from tvm_ext.tuners.samplers.synthesis import synthesize
from tvm_ext.tuners.space import ConfigSpace


@dataclass
class AdaptiveSampler:
    """K-means over the candidates' vectors with a growing number of clusters, until the loss stops falling fast.

    Centres are rounded to the space. One that was visited is replaced by sample synthesis.

    Attributes
    ----------
    first, step : int
        Numbers of clusters tried: ``first``, ``first + step``, ... up to the batch. The paper prints a step of 1, with
        which the search always ends at the second number; with a step of 8 it measures about as much as reported.
    threshold : float
        The search goes on while a loss is this many times less than the one before.
    synthesis : bool
        Replace visited centres; without it they are dropped.
    medoids : bool
        Take the candidate nearest to each centre instead of the rounded centre.

    References
    ----------
    Ahn et al., "Chameleon", ICLR 2020, algorithm 1 and section 3.3; threshold: table 7 as reprinted in Ahn, "AI for
    Optimized Execution of AI", dissertation, UC San Diego, 2022.
    """

    first: int = 8
    step: int = 8
    threshold: float = 2.5
    synthesis: bool = True
    medoids: bool = False

    def clusters(self, vectors: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Cluster the candidates; gives the centres (k × knobs) and the cluster of each candidate (n)."""
        most = min(count, len(vectors))
        if most <= self.first:
            return vectors[:most].astype(np.float64), np.arange(len(vectors)) % max(most, 1)
        found: list[tuple[np.ndarray, np.ndarray]] = []

        def losses() -> Iterator[float]:
            for number in range(self.first, most + 1, self.step):
                centres, labels, loss = kmeans(vectors, number, rng)
                found.append((centres, labels))
                yield loss

        return found[knee(losses(), self.threshold)]

    def sample(
        self,
        space: ConfigSpace,
        vectors: np.ndarray,
        scores: np.ndarray,
        count: int,
        history: History,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """See :class:`Sampler`."""
        if len(vectors) <= self.first:
            return vectors[:count]
        centres, labels = self.clusters(vectors, count, rng)
        if self.medoids:
            rows = [int(((vectors - centre) ** 2).sum(axis=1).argmin()) for centre in centres]
            snapped = vectors[rows]
        else:
            snapped = np.clip(np.rint(centres), 0, space.radices - 1).astype(np.int64)
        taken = set(history.visited)
        kept = unvisited(space, snapped, taken)
        if not self.synthesis:
            return kept
        # Those that were visited, or came twice: one new configuration for each.
        missing = [vectors[labels == cluster] for cluster in self._replaced(space, snapped, history)]
        made = [synthesize(space, vectors, cluster, taken, history, rng) for cluster in missing]
        return np.concatenate([kept, *(row[None] for row in made if row is not None)])

    def _replaced(self, space: ConfigSpace, snapped: np.ndarray, history: History) -> list[int]:
        seen = set(history.visited)
        replaced = []
        for cluster, key in enumerate(space.keys(snapped)):
            if key in seen:
                replaced.append(cluster)
            seen.add(key)
        return replaced
