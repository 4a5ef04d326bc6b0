"""The best predicted candidates; and two controls that take as few as adaptive sampling would."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tvm_ext.tuners.samplers.adaptive import AdaptiveSampler
from tvm_ext.tuners.samplers.base import History
from tvm_ext.tuners.space import ConfigSpace


@dataclass
class GreedySampler:
    """Takes the best predicted candidates."""

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
        return vectors[:count]


@dataclass
class ReducedSampler:
    """Takes as many candidates as adaptive sampling would take clusters, but the best predicted, or random ones.

    A control: it shows how much of the gain of adaptive sampling comes from measuring less, and how much from where.
    """

    choose: Literal["best", "random"] = "best"
    adaptive: AdaptiveSampler = field(default_factory=AdaptiveSampler)

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
        number = len(self.adaptive.clusters(space, vectors, count, rng)[0])
        if self.choose == "random":
            return vectors[rng.permutation(len(vectors))[:number]]
        return vectors[:number]
