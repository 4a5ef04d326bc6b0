"""A cost model that also sees what the target says of configurations: bytes moved, memories filled, turns of loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_ext.backends.description import KernelDescription
from tvm_ext.tuners.expectations import Expectation
from tvm_ext.tuners.shared_model import SLOWEST, SharedModel
from tvm_ext.tuners.space import ConfigSpace

KEPT = 1024
"""The features of so many vectors are kept, in case the same array is asked for again: all of a space are."""

EXPECTED_SLOWEST = 3 * SLOWEST
"""Costs tell nothing of what fits: what works may be as slow, beside the fastest configuration that does not fit."""

FAITH = 1.0
"""Sum of squares of logarithms that has to speak against what is expected before half of it is believed."""


@dataclass(frozen=True)
class MeanOfTrees:
    """Several boosters that were trained with different seeds, of which the mean is predicted."""

    members: Sequence[Any]

    def inplace_predict(self, features: np.ndarray, **options: Any) -> np.ndarray:
        """Predict (n) of features (n x features), as XGBoost's boosters do."""
        return np.mean([row.inplace_predict(features, **options) for row in self.members], axis=0)


@dataclass
class DescribedModel(SharedModel):
    """Trees on the logarithm of the speed that see tiles, and the numbers of a target's description if there is one.

    Attributes
    ----------
    description : KernelDescription, optional
        Of the space that is tuned; without one only tiles are seen.
    expects : bool
        Whether the cost that the description estimates is heard first: trees then learn what it leaves unsaid.
    members : int
        Models that are trained with different seeds; their mean is predicted. Each tree learns from a part of the
        measurements, so that one model ranks the few best configurations by chance.
    """

    rounds: int = 100
    eta: float = 0.15
    description: KernelDescription | None = None
    expects: bool = False
    members: int = 1
    _kept: tuple[np.ndarray, np.ndarray] | None = None
    _expectation: Expectation | None = None
    _trust: float = 1.0

    def __post_init__(self) -> None:
        if self.expects and self.description is not None and self.description.cost is not None:
            self._expectation = Expectation(self.description.cost, EXPECTED_SLOWEST)

    @property
    def informed(self) -> bool:
        """Whether something is known before anything was measured."""
        return self._expectation is not None or super().informed

    @property
    def notes(self) -> Sequence[str]:
        """Say why what is expected is not asked any more."""
        return () if self._expectation is None else self._expectation.notes

    def known(self, features: np.ndarray) -> np.ndarray | None:
        """Give what the estimate says, the last of the features."""
        return None if self._expectation is None else self._trust * features[:, -1]

    def fit(self, features: np.ndarray, scores: np.ndarray) -> None:
        """See :class:`.SharedModel`; what is expected counts as much as it agrees with what was measured."""
        works = scores > 0
        if self._expectation is not None and works.any():
            expected, found = features[works, -1], np.maximum(np.log(scores[works] / scores.max()), SLOWEST)
            expected, found = expected - expected.mean(), found - found.mean()
            slope = (expected @ found + FAITH) / (expected @ expected + FAITH)
            self._trust = float(np.clip(slope, 0.0, 1.0))
        super().fit(features, scores)

    def _trees(self, features: np.ndarray, labels: np.ndarray, margin: np.ndarray | None = None, **more: Any) -> Any:
        """Train as many models as there are members."""
        if self.members == 1:
            return super()._trees(features, labels, margin, **more)
        return MeanOfTrees(
            [
                super(DescribedModel, self)._trees(features, labels, margin, seed=seed, **more)
                for seed in range(self.members)
            ]
        )

    def features(self, space: ConfigSpace, vectors: np.ndarray) -> np.ndarray:
        """Give the features of :class:`.SharedModel`, the numbers that the target gives, and what it expects."""
        if self._kept is not None and self._kept[0] is vectors:
            return self._kept[1]
        features = super().features(space, vectors)
        if self.description is not None:
            numbers = self.description.features(vectors).astype(np.float32)
            features = np.concatenate([features, numbers], axis=1)
        if self._expectation is not None:
            features = np.concatenate([features, self._expectation.speeds(space, vectors)[:, None]], axis=1)
        if len(vectors) >= KEPT:
            self._kept = vectors, features
        return features
