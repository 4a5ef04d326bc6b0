"""Diversity-aware selection, as in AutoTVM: good candidates that differ from one another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvm_ext.tuners.samplers.base import History
from tvm_ext.tuners.space import ConfigSpace


@dataclass
class DiversitySampler:
    """Maximises predicted score plus ``weight`` for each choice of a knob that the selection did not hold yet.

    The objective is submodular, and candidates are taken greedily, one by one.

    Attributes
    ----------
    weight : float
        What a new choice is worth, as a share of the spread of the predicted scores.

    References
    ----------
    Chen et al., "Learning to Optimize Tensor Programs", NeurIPS 2018, eq. 3.
    """

    weight: float = 0.1

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
        chosen = diverse(vectors, scores, count, self.weight * (float(np.ptp(scores)) if len(scores) else 0.0))
        return vectors[chosen]


def diverse(vectors: np.ndarray, scores: np.ndarray, count: int, bonus: float) -> list[int]:
    """Choose ``count`` rows greedily by score plus ``bonus`` for each choice not seen in a chosen row."""
    seen = np.zeros((vectors.shape[1], int(vectors.max(initial=0)) + 1), dtype=bool)
    columns = np.arange(vectors.shape[1])
    left = np.ones(len(vectors), dtype=bool)
    chosen: list[int] = []
    while len(chosen) < min(count, len(vectors)):
        value = scores + bonus * (~seen[columns, vectors]).sum(axis=1)
        best = int(np.where(left, value, -np.inf).argmax())
        left[best] = False
        seen[columns, vectors[best]] = True
        chosen.append(best)
    return chosen
