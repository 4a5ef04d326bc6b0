"""A cost model that begins with what was measured of other kernels, and those that tell one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_ext.tuners.cost_model import TileModel
from tvm_ext.tuners.space import ConfigSpace

if TYPE_CHECKING:
    from tvm_ext.tuners.measurement import Measurement

Examples = tuple[np.ndarray, np.ndarray]
"""Features, one row a measurement of one space, and scores."""

Structure = tuple[tuple[str, int], ...]

SLOWEST = -3.0
"""Logarithm of the relative speed below which configurations are equally bad."""

SUREST = 2.0
"""Logarithm of the odds beyond which what holds for others is not trusted: seven to one."""

LOGISTIC: dict[str, Any] = {"objective": "binary:logistic", "base_score": 0.5}


@dataclass
class SharedModel(TileModel):
    """Trees on tiles that correct a prior, which was trained on measurements of other spaces with the same knobs.

    Learnt is the logarithm of the speed relative to the best of the same space, of configurations that work; and,
    apart, whether one works. The score is the product. The extents of the loops are features too: they tell spaces
    apart. Without measurements of others there is no prior, and the model is as good as its own measurements.

    Attributes
    ----------
    prior_rounds, prior_depth : int
    prior_eta : float
        Of the trees of the prior, which sees many more measurements.

    References
    ----------
    Chen et al., "Learning to Optimize Tensor Programs", NeurIPS 2018, section 4 (a global model and a local one).
    """

    rounds: int = 60
    eta: float = 0.1
    prior_rounds: int = 200
    prior_depth: int = 6
    prior_eta: float = 0.1
    _prior: Any = None
    _prior_works: Any = None
    _works: Any = None
    _level: float = 0.0

    @property
    def informed(self) -> bool:
        """Whether there is a prior."""
        return self._prior is not None

    @property
    def fitted(self) -> bool:
        """Whether there is something to predict with."""
        return self.informed or self._booster is not None

    def features(self, space: ConfigSpace, vectors: np.ndarray) -> np.ndarray:
        """Give the features of :class:`.TileModel`, and the logarithm of the extent that each split divides."""
        extents = [rows[0].sum() for rows in space.choice_features if rows.shape[1] > 1]
        known = np.tile(np.array(extents, dtype=np.float32), (len(vectors), 1))
        return np.concatenate([super().features(space, vectors), known], axis=1)

    def learn(self, others: Sequence[Examples]) -> None:
        """Train the prior on the measurements of other spaces; spaces where nothing works say nothing."""
        others = [(features, scores) for features, scores in others if (scores > 0).any()]
        if not others:
            return
        features = np.concatenate([rows for rows, _ in others])
        works = np.concatenate([scores > 0 for _, scores in others])
        missed = np.concatenate([self._missed(rows[scores > 0], scores) for rows, scores in others])
        trees: dict[str, Any] = {"rounds": self.prior_rounds, "max_depth": self.prior_depth, "eta": self.prior_eta}
        self._prior = self._trees(features[works], missed, base_score=0.0, **trees)
        labels, margin = works.astype(np.float32), self.known_odds(features)
        self._prior_works = self._trees(features, labels, margin, **LOGISTIC, **trees)

    def known(self, features: np.ndarray) -> np.ndarray | None:
        """Give what is known of the logarithms of the speeds (n) before anything was measured; None if nothing is."""
        return None

    def known_odds(self, features: np.ndarray) -> np.ndarray | None:
        """Give what is known of the odds to work (n) before anything was measured; None if nothing is."""
        return None

    def _missed(self, features: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Give what is left unsaid of the logarithms of the speeds of one space, up to a constant."""
        known = self.known(features)
        if known is None:
            return _speeds(scores)
        missed = _speeds(scores) - known
        return missed - np.median(missed)

    def _margins(self, features: np.ndarray) -> np.ndarray:
        """Give the logarithms of the speeds (n) as they look without measurements of the space itself."""
        known = self.known(features)
        return _margin(self._prior, features) + (0.0 if known is None else known)

    def _odds_of(self, features: np.ndarray) -> np.ndarray:
        """Give the odds to work (n) as they look without measurements of the space itself."""
        known = self.known_odds(features)
        return _odds(_margin(self._prior_works, features) + (0.0 if known is None else known))

    def fit(self, features: np.ndarray, scores: np.ndarray) -> None:
        """Learn anew what the prior does not say."""
        self._booster, self._works, self._level = None, None, 0.0
        if not len(scores):
            return
        works = scores > 0
        if works.any():
            missed = _speeds(scores) - self._margins(features[works])
            self._level = float(np.median(missed))
            self._booster = self._trees(features[works], missed - self._level, base_score=0.0)
        if self.informed or not works.all():
            self._works = self._trees(features, works.astype(np.float32), self._odds_of(features), **LOGISTIC)

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Predict scores (n) relative to the best of the space."""
        scores = np.exp(self._level + self._margins(features) + _margin(self._booster, features))
        if self._works is None and not self.informed:
            return scores
        return scores / (1.0 + np.exp(-self._odds_of(features) - _margin(self._works, features)))


def _speeds(scores: np.ndarray) -> np.ndarray:
    """Logarithms of the scores of what works, relative to the best."""
    works = scores > 0
    return np.maximum(np.log(scores[works] / scores.max()), SLOWEST)


def _margin(booster: Any, features: np.ndarray) -> np.ndarray:
    """Sum of the leaves that features (n × features) come to (n); 0 without trees."""
    if booster is None:
        return np.zeros(len(features), dtype=np.float32)
    return booster.inplace_predict(features, predict_type="margin")


def _odds(odds: np.ndarray) -> np.ndarray:
    """Logarithms of the odds that configurations work, from others: never so sure that they cannot be corrected."""
    return np.clip(odds, -SUREST, SUREST)


@dataclass
class Peers:
    """Measurements of several spaces, for tuners that learn from one another.

    Spaces with knobs of the same names and numbers of factors belong together, as those of one schedule rule do for
    kernels of different extents.
    """

    _members: dict[Structure, list[tuple[ConfigSpace, Sequence[Measurement]]]] = field(default_factory=dict)

    def join(self, space: ConfigSpace, measurements: Sequence[Measurement]) -> None:
        """Let others see the measurements of a space, and those that are added to the list later."""
        self._members.setdefault(structure(space), []).append((space, measurements))

    def copy(self) -> Peers:
        """Give peers that know the same, to which others can be added."""
        return Peers({key: list(members) for key, members in self._members.items()})

    def groups(self) -> list[list[tuple[ConfigSpace, Sequence[Measurement]]]]:
        """List spaces and their measurements, those together that belong together."""
        return [list(members) for members in self._members.values()]

    def others(self, space: ConfigSpace) -> list[tuple[ConfigSpace, Sequence[Measurement]]]:
        """Spaces like ``space``, itself left out, that have measurements."""
        found = self._members.get(structure(space), ())
        return [(other, rows) for other, rows in found if other is not space and rows]


def structure(space: ConfigSpace) -> Structure:
    """Give what spaces have in common whose measurements can be learnt from together."""
    features = zip(space.knobs, space.choice_features, strict=True)
    knobs = tuple((knob.name, rows.shape[1]) for knob, rows in features)
    numbers = tuple((name, len(row)) for name in ("context", "processor") if (row := getattr(space, name)))
    return (((space.family, 0),) if space.family else ()) + knobs + numbers
