"""A cost model that begins with what a schedule rule estimates, and with what was learnt from other networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tvm_ext.tuners.expectations import Expectation
from tvm_ext.tuners.pretrained.artefact import Trained
from tvm_ext.tuners.shared_model import Examples, SharedModel
from tvm_ext.tuners.space import ConfigSpace


@dataclass
class PretrainedModel(SharedModel):
    """Trees that correct trees trained before, which correct the rule's own cost.

    Measurements of peers, where there are any, come between: each sees what those before it leave unsaid. Without a
    cost and without trees of the space's structure it is a :class:`.SharedModel`.

    Attributes
    ----------
    trained : Trained, optional
        For spaces like this one.
    costs : bool
        Whether the cost of the space is the first to be heard.
    """

    trained: Trained | None = None
    costs: bool = False
    _expectation: tuple[ConfigSpace, Expectation] | None = None

    @property
    def informed(self) -> bool:
        """Whether something is known before anything was measured."""
        return self.costs or self.trained is not None or super().informed

    @property
    def notes(self) -> Sequence[str]:
        """Say why the cost is not asked any more."""
        return () if self._expectation is None else self._expectation[1].notes

    def features(self, space: ConfigSpace, vectors: np.ndarray) -> np.ndarray:
        """Give the features of :class:`.SharedModel`, the space's numbers, and the speed by its cost."""
        numbers = np.array([*space.context, *space.processor], dtype=np.float32)
        parts = [super().features(space, vectors), np.tile(numbers, (len(vectors), 1))]
        if self.costs:
            parts.append(self._speeds(space, vectors)[:, None])
        return np.concatenate(parts, axis=1)

    def known(self, features: np.ndarray) -> np.ndarray | None:
        """Add what the cost says, and the trees."""
        said = features[:, -1] if self.costs else None
        if self.trained is None:
            return said
        trees = self.trained.speed.inplace_predict(features, predict_type="margin")
        return trees if said is None else trees + said

    def known_odds(self, features: np.ndarray) -> np.ndarray | None:
        """Ask the trees that tell what works."""
        if self.trained is None:
            return None
        return self.trained.works.inplace_predict(features, predict_type="margin")

    def train(self, others: Sequence[Examples]) -> Trained:
        """Train the trees that are kept, on measurements of spaces of one structure.

        Parameters
        ----------
        others : sequence of (array, array)
            Features and scores of each space; those where nothing works are left out.
        """
        self.learn(others)
        return Trained(self._prior, self._prior_works, self.costs)

    def _speeds(self, space: ConfigSpace, vectors: np.ndarray) -> np.ndarray:
        if space.cost is None:  # of a peer that does not tell
            return np.zeros(len(vectors), dtype=np.float32)
        if self._expectation is None or self._expectation[0] is not space:
            self._expectation = space, Expectation(space.cost)
        return self._expectation[1].speeds(space, vectors)
