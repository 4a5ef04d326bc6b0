"""The contract of an explorer."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tvm_ext.tuners.space import ConfigSpace

Score = Callable[[np.ndarray], np.ndarray]
"""Predicts the scores (n) of vectors (one row each, one column a knob)."""


@dataclass(frozen=True)
class Exploration:
    """What an explorer found.

    Attributes
    ----------
    vectors, scores : array
        Candidates (n × knobs), best predicted first, and their predicted scores (n).
    queries : int
        Configurations whose score was asked for.
    steps : float
        Steps of the walkers, as a mean over the walkers, until the search ended: ``queries / walkers``.
    converged_queries : int
        How many queries had been made when the candidates last changed.
    """

    vectors: np.ndarray
    scores: np.ndarray
    queries: int
    steps: float
    converged_queries: int


class Explorer(Protocol):
    """Proposes configurations; may keep what it has learnt from one iteration to the next."""

    def explore(
        self,
        space: ConfigSpace,
        score: Score,
        count: int,
        excluded: Collection[int],
        best: np.ndarray,
        rng: np.random.Generator,
    ) -> Exploration:
        """Look for the ``count`` configurations with the best predicted scores whose keys are not ``excluded``.

        Parameters
        ----------
        best : array
            Vectors (n × knobs) of the best measured configurations, best first.
        """

    def dump(self) -> dict[str, Any]:
        """Give what it has learnt as JSON values."""

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`dump` gave."""
