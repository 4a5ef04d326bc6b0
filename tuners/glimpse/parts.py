"""Parts of a tuner that follow a guide: first configurations, cost model, sampler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_ext.tuners.cost_model import CostModel, TileModel
from tvm_ext.tuners.explorers.simulated_annealing import SimulatedAnnealing
from tvm_ext.tuners.glimpse import acquisition
from tvm_ext.tuners.glimpse.guide import TABULATED, Guide
from tvm_ext.tuners.initialisers import Start
from tvm_ext.tuners.samplers.base import History, Sampler, random_unvisited, unvisited
from tvm_ext.tuners.shared_model import LOGISTIC, SLOWEST, SUREST
from tvm_ext.tuners.space import ConfigSpace

DRAWN = 1024
"""So many random configurations the ensemble is asked for where too few candidates are left."""

REJECTED = -1e6
"""Score of what the ensemble rejects."""

MEMBERS = 3
"""Forests that the mean and the spread of predictions are taken of."""


@dataclass
class PriorInitialiser:
    """The configurations that the prior thinks most likely, without those that the validity ensemble rejects.

    Attributes
    ----------
    guide : Guide
    rejects : bool
        Whether the ensemble is asked.
    """

    guide: Guide
    rejects: bool = True

    def propose(self, count: int, start: Start) -> np.ndarray:
        """See :class:`~tvm_ext.tuners.initialisers.Initialiser`."""
        space = start.space
        if count < 1:
            return np.empty((0, len(space.knobs)), dtype=np.int64)
        if space.size <= TABULATED:
            everything = space.vectors(np.arange(space.size))
            scores = self._scores(everything)
            order = np.argsort(-scores, kind="stable")[: count + len(start.taken)]
            ranked = everything[order[scores[order] > REJECTED]]
        else:
            none = np.empty((0, len(space.knobs)), dtype=np.int64)
            annealing = SimulatedAnnealing()
            found = annealing.explore(space, self._scores, count, start.taken, none, start.rng)
            ranked = found.vectors[found.scores > REJECTED]
        vectors = start.take(unvisited(space, ranked, set(start.taken))[:count])
        return np.concatenate([vectors, start.random(count - len(vectors))])

    def _scores(self, vectors: np.ndarray) -> np.ndarray:
        scores = self.guide.density(vectors)
        return np.where(self.guide.accepted(vectors), scores, REJECTED) if self.rejects else scores


@dataclass
class GuidedModel(TileModel):
    """Trees that correct the prior of a guide where measurements differ from it.

    As :class:`~tvm_ext.tuners.shared_model.SharedModel`, with networks that were trained beforehand in place of trees
    on the measurements of others. Several forests, each from a part of the measurements, tell how sure they are.

    Attributes
    ----------
    guide : Guide
    rejects : bool
        Whether what the validity ensemble rejects gets no score.
    """

    guide: Guide | None = None
    rejects: bool = False
    rounds: int = 40
    eta: float = 0.1
    _forests: list[Any] = field(default_factory=list)
    _works: Any = None
    _level: float = 0.0

    @property
    def fitted(self) -> bool:
        """Whether there is something to predict with: always, the prior."""
        return True

    def features(self, space: ConfigSpace, vectors: np.ndarray) -> np.ndarray:
        """Give the features of :class:`.TileModel`, and the prior's logarithms of speed and odds as the last two."""
        prior = np.zeros((len(vectors), 2)) if self.guide is None else self.guide.numbers(vectors)[:, :2]
        return np.concatenate([super().features(space, vectors), prior.astype(np.float32)], axis=1)

    def scorer(self, space: ConfigSpace) -> Callable[[np.ndarray], np.ndarray]:
        """Predict scores, 0 for what the validity ensemble rejects if it is asked."""

        def score(vectors: np.ndarray) -> np.ndarray:
            scores = self.predict(self.features(space, vectors))
            if not self.rejects or self.guide is None:
                return scores
            return np.where(self.guide.accepted(vectors), scores, 0.0)

        return score

    def fit(self, features: np.ndarray, scores: np.ndarray) -> None:
        """Learn anew what the prior does not say."""
        self._forests, self._works, self._level = [], None, 0.0
        works = scores > 0
        if works.any():
            speeds = np.maximum(np.log(scores[works] / scores.max()), SLOWEST)
            missed = speeds - features[works, -2]
            self._level = float(np.median(missed))
            self._forests = [
                self._trees(features[works], missed - self._level, base_score=0.0, seed=member)
                for member in range(MEMBERS)
            ]
        if len(scores) and not works.all():
            margin = np.clip(features[:, -1], -SUREST, SUREST)
            self._works = self._trees(features, works.astype(np.float32), margin, **LOGISTIC)

    def beliefs(self, features: np.ndarray) -> np.ndarray:
        """Give mean and spread of the logarithm of the speed relative to the best measured, and log odds (n x 3)."""
        base = features[:, -2] + self._level
        members = np.array([forest.inplace_predict(features, predict_type="margin") for forest in self._forests])
        mean, spread = (members.mean(axis=0), members.std(axis=0)) if len(members) else (0.0, np.zeros(len(base)))
        odds = features[:, -1].astype(np.float64)
        if self._works is not None:
            odds = np.clip(odds, -SUREST, SUREST) + self._works.inplace_predict(features, predict_type="margin")
        return np.stack([base + mean, spread, odds], axis=1)

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Predict scores (n) relative to the best measured one."""
        beliefs = self.beliefs(features)
        return np.exp(beliefs[:, 0] - np.logaddexp(0.0, -beliefs[:, 2]))


@dataclass
class GuidedSampler:
    """Drops candidates that the validity ensemble rejects, and takes those of most worth to the acquisition function.

    Attributes
    ----------
    guide : Guide
    model : CostModel
    rejects : bool
        Whether the ensemble is asked.
    acquires : bool
        Whether the acquisition function chooses; else the best predicted are taken.
    inner : Sampler, optional
        Chooses among what the ensemble lets pass, instead of the acquisition function.
    """

    guide: Guide
    model: CostModel
    rejects: bool = True
    acquires: bool = True
    inner: Sampler | None = None

    def sample(
        self,
        space: ConfigSpace,
        vectors: np.ndarray,
        scores: np.ndarray,
        count: int,
        history: History,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """See :class:`~tvm_ext.tuners.samplers.base.Sampler`."""
        if self.rejects and len(vectors):
            passed = self.guide.accepted(vectors)
            vectors, scores = vectors[passed], scores[passed]
            if len(vectors) < count:
                others = self._others(space, vectors, history, rng)[: count - len(vectors)]
                vectors = np.concatenate([vectors, others])
                scores = np.concatenate([scores, np.full(len(others), scores.min(initial=0.0))])
        if self.inner is not None and len(vectors):
            chosen = self.inner.sample(space, vectors, scores, count, history, rng)
            return chosen[self.guide.accepted(chosen)] if self.rejects and len(chosen) else chosen
        if not self.acquires or not len(vectors) or not isinstance(self.model, GuidedModel):
            return vectors[:count]
        beliefs = self.model.beliefs(self.model.features(space, vectors))
        rows = acquisition.inputs(self.guide, vectors, beliefs, len(history.visited))
        worth = acquisition.worth(self.guide.artefact.acquisition, rows)
        return vectors[np.argsort(-worth, kind="stable")[:count]]

    def _others(
        self, space: ConfigSpace, vectors: np.ndarray, history: History, rng: np.random.Generator
    ) -> np.ndarray:
        """Draw random configurations that the ensemble lets pass, where the explorer has found too few."""
        drawn = random_unvisited(space, DRAWN, {*history.visited, *space.keys(vectors)}, rng)
        return drawn[self.guide.accepted(drawn)]
