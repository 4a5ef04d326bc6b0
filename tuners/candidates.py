"""The best candidates of a search: by predicted score, each once, none that was measured."""

from __future__ import annotations

import heapq
from collections.abc import Collection

import numpy as np

from tvm_ext.tuners.space import ConfigSpace


class BestCandidates:
    """Keeps the ``count`` best of all vectors offered.

    Parameters
    ----------
    count : int
    excluded : collection of int
        Indices (keys) of configurations that may not be candidates.
    """

    def __init__(self, count: int, excluded: Collection[int]) -> None:
        self.count = count
        self._excluded = excluded
        self._scores: dict[int, float] = {}
        self._vectors: dict[int, np.ndarray] = {}
        self._heap: list[tuple[float, int, int]] = []  # of equal ones the first that came goes first
        self._accepted = 0
        self._threshold = -np.inf

    def offer(self, space: ConfigSpace, vectors: np.ndarray, scores: np.ndarray) -> bool:
        """Consider vectors (n × knobs) with their predicted scores (n); tells whether the best have changed."""
        changed = False
        better = np.nonzero(scores > self._threshold)[0]
        if not better.size:
            return False
        for position, key in zip(better.tolist(), space.keys(vectors[better]), strict=True):
            score = float(scores[position])
            if score <= self._threshold or key in self._scores or key in self._excluded:
                continue
            self._scores[key] = score
            self._vectors[key] = vectors[position].copy()
            changed = True
            self._accepted += 1
            heapq.heappush(self._heap, (score, self._accepted, key))
            if len(self._heap) > self.count:
                worst = heapq.heappop(self._heap)[2]
                del self._scores[worst], self._vectors[worst]
            if len(self._heap) == self.count:
                self._threshold = self._heap[0][0]
        return changed

    def ranked(self, knobs: int) -> tuple[np.ndarray, np.ndarray]:
        """Give vectors (n × knobs) and scores (n), best first."""
        keys = sorted(self._scores, key=lambda key: (-self._scores[key], key))
        vectors = np.array([self._vectors[key] for key in keys], dtype=np.int64).reshape(len(keys), knobs)
        return vectors, np.array([self._scores[key] for key in keys])
