"""A cost model that looks at the scheduled loop nest: what was learnt of other kernels holds in any design space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tvm_ext.tuners.pretrained.artefact import LOOP_NEST_FEATURES, Trained
from tvm_ext.tuners.shared_model import Examples, SharedModel
from tvm_ext.tuners.space import ConfigSpace, Vector

Description = Callable[[Vector], np.ndarray | None]
"""Gives the features of the loop nest that a vector makes; None where it cannot be scheduled."""

SPREAD = 3.0
"""Logarithm of the speed relative to the kernel's median beyond which configurations are equally good, or bad."""


@dataclass
class LoopNestModel(SharedModel):
    """Trees on features of the loop nest, on top of trees that were trained on other kernels.

    A knob means something else in every design space, a loop nest does not: what is learnt of one convolution's loops
    holds for another's, whichever sketch they come from. What a loop nest looks like takes a schedule, some 15 ms, so
    that explorers of small populations are wanted. Until :meth:`look_at` is called the features are those of
    :class:`.SharedModel`.

    Attributes
    ----------
    trained : Trained, optional
        Trees for loop nests.
    """

    trained: Trained | None = None
    _describe: Description | None = None
    _siblings: Callable[[], Sequence[Examples]] | None = None
    _known: dict[Vector, np.ndarray | None] = field(default_factory=dict)

    def look_at(self, describe: Description, siblings: Callable[[], Sequence[Examples]] | None = None) -> None:
        """Look at loop nests from now on.

        Parameters
        ----------
        describe : callable
            Gives the features (:data:`LOOP_NEST_FEATURES`) of a vector; it is asked once for each.
        siblings : callable, optional
            Gives features and scores of what was measured of other forms of the same kernel: they are learnt from too.
        """
        self._describe, self._siblings = describe, siblings

    @property
    def looks(self) -> bool:
        """Whether the features are those of loop nests."""
        return self._describe is not None

    @property
    def informed(self) -> bool:
        """Whether something is known before anything was measured."""
        return (self.looks and self.trained is not None) or super().informed

    def features(self, space: ConfigSpace, vectors: np.ndarray) -> np.ndarray:
        """Give the features of the loop nests (n x features); not a number where a vector cannot be scheduled."""
        if self._describe is None:
            return super().features(space, vectors)
        rows = np.full((len(vectors), LOOP_NEST_FEATURES), np.nan, np.float32)
        for number, vector in enumerate(map(tuple, np.asarray(vectors).tolist())):
            if vector not in self._known:
                self._known[vector] = self._describe(vector)
            found = self._known[vector]
            if found is not None:
                rows[number] = found
        return rows

    def known(self, features: np.ndarray) -> np.ndarray | None:
        """Ask the trees for the logarithms of the speeds."""
        if self.trained is None or not self.looks:
            return None
        return self.trained.speed.inplace_predict(features, predict_type="margin")

    def known_odds(self, features: np.ndarray) -> np.ndarray | None:
        """Ask the trees that tell what can be compiled in time, and runs."""
        if self.trained is None or not self.looks:
            return None
        return self.trained.works.inplace_predict(features, predict_type="margin")

    def _missed(self, features: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Give speeds relative to the median in training: the best of few configurations is a matter of luck."""
        if self.trained is not None:
            return super()._missed(features, scores)
        speeds = np.log(scores[scores > 0])
        return np.clip(speeds - np.median(speeds), -SPREAD, SPREAD)

    def fit(self, features: np.ndarray, scores: np.ndarray) -> None:
        """Learn anew what is not known, from the measurements of all forms of the kernel."""
        if self.looks:
            others = [] if self._siblings is None else list(self._siblings())
            features = np.concatenate([features, *(rows for rows, _ in others)])
            scores = np.concatenate([scores, *(found for _, found in others)])
            scheduled = ~np.isnan(features).any(axis=1)
            features, scores = features[scheduled], scores[scheduled]
        super().fit(features, scores)

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Predict scores (n) relative to the best of the kernel; 0 for what cannot be scheduled."""
        predicted = super().predict(features)
        return np.where(np.isnan(features).any(axis=1), 0.0, predicted) if self.looks else predicted

    def train(self, others: Sequence[Examples]) -> Trained:
        """Train the trees that are kept, on features of loop nests and scores of other kernels, one pair each."""
        self.learn(others)
        return Trained(self._prior, self._prior_works, costs=False)
