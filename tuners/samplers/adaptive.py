"""Adaptive sampling: measure the centres of clusters of candidates, as many as the knee of the loss says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tvm_ext.tuners.samplers.base import History
from tvm_ext.tuners.samplers.kmeans import kmeans, knee
from tvm_ext.tuners.samplers.synthesis import synthesize
from tvm_ext.tuners.space import ConfigSpace


@dataclass
class AdaptiveSampler:
    """K-means over the candidates with a growing number of clusters, until the loss stops falling fast.

    One configuration of each cluster is measured. One that was visited is replaced by sample synthesis.

    Attributes
    ----------
    first, step : int
        Numbers of clusters tried: ``first``, ``first + step``, ... up to the batch. The paper prints a step of 1, with
        which the search always ends at the second number; with a step of 8 it measures about as much as reported.
    threshold : float
        The search goes on while a loss is this many times less than the one before.
    synthesis : bool
        Replace visited configurations; without it they are dropped.
    synthesized : int
        Of so many clusters, those whose best candidate is the least, a synthesised configuration is measured in any
        case. Candidates were never visited, so that with ``medoid`` and ``best`` nothing is replaced otherwise.
    representative : str
        What is measured of a cluster: its ``centre``, rounded to the space; its ``medoid``, the candidate nearest to
        the centre; or the ``best`` predicted candidate. A rounded centre is a mixture that nothing was predicted of.
    distance : str
        Between vectors of ``choices``, or between ``features``, each scaled by its spread over the space: neighbouring
        choices of a split may have quite other factors.

    References
    ----------
    Ahn et al., "Chameleon", ICLR 2020, algorithm 1 and section 3.3; threshold: table 7 as reprinted in Ahn, "AI for
    Optimized Execution of AI", dissertation, UC San Diego, 2022.
    """

    first: int = 8
    step: int = 8
    threshold: float = 2.5
    synthesis: bool = True
    synthesized: int = 0
    representative: Literal["centre", "medoid", "best"] = "centre"
    distance: Literal["choices", "features"] = "choices"

    def clusters(
        self, space: ConfigSpace, vectors: np.ndarray, count: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Cluster the candidates; gives the centres (k × dimensions) and the cluster of each candidate (n)."""
        points = self._points(space, vectors)
        most = min(count, len(vectors))
        if most <= self.first:
            return points[:most], np.arange(len(vectors)) % max(most, 1)
        found: list[tuple[np.ndarray, np.ndarray]] = []

        def losses() -> Iterator[float]:
            for number in range(self.first, most + 1, self.step):
                centres, labels, loss = kmeans(points, number, rng)
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
        centres, labels = self.clusters(space, vectors, count, rng)
        snapped = self._represent(space, vectors, centres, labels)
        taken = set(history.visited)
        kept, replaced = [], []
        given_up = self._least(labels, len(centres)) if self.synthesis else set()
        for cluster, key in enumerate(space.keys(snapped)):
            if key in taken or cluster in given_up:
                replaced.append(cluster)
            else:
                taken.add(key)
                kept.append(snapped[cluster])
        if self.synthesis:
            for cluster in replaced:
                made = synthesize(space, vectors, vectors[labels == cluster], taken, history, rng)
                kept += [] if made is None else [made]
        return np.array(kept, dtype=np.int64).reshape(len(kept), len(space.knobs))

    def _least(self, labels: np.ndarray, clusters: int) -> set[int]:
        """Clusters whose first candidate, which is their best, comes last."""
        if not self.synthesized:
            return set()
        first = np.array([(labels == cluster).argmax() for cluster in range(clusters)])
        return set(np.argsort(first)[-self.synthesized :].tolist())

    def _points(self, space: ConfigSpace, vectors: np.ndarray) -> np.ndarray:
        if self.distance == "choices":
            return vectors.astype(np.float64)
        spread = np.concatenate([rows.std(axis=0) for rows in space.choice_features])
        return space.features(vectors).astype(np.float64) / np.where(spread > 0, spread, 1.0)

    def _represent(
        self, space: ConfigSpace, vectors: np.ndarray, centres: np.ndarray, labels: np.ndarray
    ) -> np.ndarray:
        """One vector for each cluster (k × knobs)."""
        clusters = range(len(centres))
        if self.representative == "best":  # candidates are ranked: the first of each cluster
            return vectors[[int((labels == cluster).argmax()) for cluster in clusters]]
        if self.representative == "medoid":
            points = self._points(space, vectors)
            return vectors[[int(((points - centre) ** 2).sum(axis=1).argmin()) for centre in centres]]
        middles = np.array([vectors[labels == cluster].mean(axis=0) for cluster in clusters])
        return np.clip(np.rint(middles), 0, space.radices - 1).astype(np.int64)
