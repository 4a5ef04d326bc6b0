"""Cost models: predict the score of configurations that were not measured."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tvm_ext.errors import MissingPackageError, TuningError, TvmExtError, first_line
from tvm_ext.tuners.space import ConfigSpace
from tvm_ext.tuners.tile_features import tile_projection
from tvm_ext.tuners.tree_tables import TreeTables


class CostModel(Protocol):
    """Learns scores (higher is better, 0 for an invalid configuration) from features."""

    @property
    def fitted(self) -> bool:
        """Whether there is something to predict with."""

    @property
    def notes(self) -> Sequence[str]:
        """What the run should say of it."""

    def features(self, space: ConfigSpace, vectors: np.ndarray) -> np.ndarray:
        """Give what it looks at (n × features) of vectors (n × knobs)."""

    def fit(self, features: np.ndarray, scores: np.ndarray) -> None:
        """Learn anew from all measurements (n × features, n)."""

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Predict scores (n)."""

    def scorer(self, space: ConfigSpace) -> Callable[[np.ndarray], np.ndarray]:
        """Give what predicts scores (n) of vectors (n × knobs), from nothing but :meth:`features`."""

    def resampled(self, features: np.ndarray, scores: np.ndarray) -> Sequence[CostModel]:
        """Give models like this one that learnt from other samples of the measurements: they tell how sure it is."""


@contextmanager
def said_by(model: Any) -> Iterator[None]:
    """Tell in a sentence what goes wrong inside a cost model, which may be a user's."""
    try:
        yield
    except TvmExtError:
        raise
    except Exception as error:
        raise TuningError(
            f"cost model {type(model).__name__} failed ({type(error).__name__}: {first_line(error)}); expected what "
            "tvm_ext.tuners.cost_model.CostModel describes"
        ) from error


def scorer_of(model: CostModel, space: ConfigSpace) -> Callable[[np.ndarray], np.ndarray]:
    """Give what predicts scores (n) of vectors (n x knobs) of a space, and lets nothing but finite numbers pass."""
    with said_by(model):
        score = model.scorer(space)

    def checked(vectors: np.ndarray) -> np.ndarray:
        with said_by(model):
            return numbers_for(score(vectors), (len(vectors),))

    return checked


def numbers_for(predicted: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Give what was predicted as an array; a :class:`ValueError` where it has another shape, or no finite numbers."""
    found = np.asarray(predicted)
    if found.shape != shape or found.dtype.kind not in "fiu":
        raise ValueError(f"it predicted {found.dtype}{list(found.shape)}, expected numbers of shape {list(shape)}")
    if not np.isfinite(found).all():
        raise ValueError(f"{np.count_nonzero(~np.isfinite(found))} of {found.size} predicted scores are not finite")
    return found


MEMBERS = 8
"""Models whose predictions the mean and the spread are taken of."""


def bootstrap(model: Any, features: np.ndarray, scores: np.ndarray) -> list[Any]:
    """Give copies of a model, each trained on measurements drawn with replacement.

    Scores are relative to the best measured one, so that each sample has it. What a model knew before anything was
    measured is the same in all.

    References
    ----------
    Breiman, "Bagging Predictors", Machine Learning 24, 1996.
    """
    rng, members = np.random.default_rng(len(scores)), []
    for _ in range(MEMBERS):
        member = copy.copy(model)
        rows = rng.integers(0, len(scores), len(scores))
        if len(rows):
            rows[0] = int(np.argmax(scores))
        member.fit(features[rows], scores[rows])
        members.append(member)
    return members


@dataclass
class XGBoostModel:
    """Gradient-boosted trees under squared error, by default with AutoTVM's parameters.

    Attributes
    ----------
    rounds : int
        Number of trees.
    eta : float
        Learning rate.
    share : float
        Each tree learns from this share of the measurements, and each split looks at this share of the features: the
        model is smoother where it has seen little.
    depth : int
        Most comparisons between the root of a tree and a leaf; the tables of :meth:`scorer` take three.

    References
    ----------
    Chen et al., "Learning to Optimize Tensor Programs", NeurIPS 2018; loss ``xgb-reg`` of Ahn et al., "Chameleon",
    ICLR 2020, table 7.
    """

    rounds: int = 80
    eta: float = 0.3
    share: float = 1.0
    depth: int = 3
    _booster: Any = None

    PARAMETERS = {  # noqa: RUF012
        "objective": "reg:squarederror",
        "gamma": 1e-4,
        "min_child_weight": 1,
        "lambda": 1.0,
        "alpha": 0.0,
        "nthread": 1,
        "seed": 0,
        "verbosity": 0,
    }

    @property
    def fitted(self) -> bool:
        """Whether there is something to predict with."""
        return self._booster is not None

    @property
    def notes(self) -> Sequence[str]:
        """Nothing."""
        return ()

    def features(self, space: ConfigSpace, vectors: np.ndarray) -> np.ndarray:
        """Give the features of the space."""
        return space.features(vectors)

    def fit(self, features: np.ndarray, scores: np.ndarray) -> None:
        """Learn anew; scores are divided by the best, as AutoTVM does."""
        best = float(scores.max(initial=0.0))
        self._booster = self._trees(features, scores / best if best > 0 else scores)

    def _trees(self, features: np.ndarray, labels: np.ndarray, margin: np.ndarray | None = None, **more: Any) -> Any:
        """Train trees on top of a margin (n), with parameters (``more``) other than those of the model."""
        try:
            import xgboost
        except ImportError:
            raise MissingPackageError(
                "tuning with a cost model needs XGBoost: pip install tvm-ext[tune], or use the recipe 'random'"
            ) from None
        data = xgboost.DMatrix(features, label=labels, base_margin=margin, nthread=1)
        chosen = {
            "eta": self.eta,
            "max_depth": self.depth,
            "subsample": self.share,
            "colsample_bynode": self.share,
        }
        rounds = more.pop("rounds", self.rounds)
        return xgboost.train(self.PARAMETERS | chosen | more, data, rounds)

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Predict scores (n) relative to the best measured one."""
        return self._booster.inplace_predict(features)

    def scorer(self, space: ConfigSpace) -> Callable[[np.ndarray], np.ndarray]:
        """Predict as :meth:`predict` does, ten times as fast, from tables that are made now."""
        return TreeTables(self._booster, space.choice_features).predict

    def resampled(self, features: np.ndarray, scores: np.ndarray) -> Sequence[CostModel]:
        """See :func:`bootstrap`."""
        return bootstrap(self, features, scores)


@dataclass
class TileModel(XGBoostModel):
    """Gradient-boosted trees that also see the volumes of tiles, of all subsets of the loops.

    What decides is often a product of factors of several knobs: how many accumulators there are, or whether a tile fits
    a cache. Trees that look at single knobs learn it for each combination anew. More trees than AutoTVM's, of smaller
    steps and each from a part of the measurements, follow less what is peculiar to one configuration.
    """

    rounds: int = 100
    eta: float = 0.15
    share: float = 0.6
    depth: int = 4
    _projection: tuple[ConfigSpace, np.ndarray] | None = None

    def features(self, space: ConfigSpace, vectors: np.ndarray) -> np.ndarray:
        """Give the features of the space and the logarithms of volumes; see :func:`.tile_projection`."""
        if self._projection is None or self._projection[0] is not space:
            self._projection = space, tile_projection(space)
        return space.features(vectors) @ self._projection[1]

    def scorer(self, space: ConfigSpace) -> Callable[[np.ndarray], np.ndarray]:
        """Predict from the features; a volume depends on several knobs, so that there are no tables."""
        return lambda vectors: self.predict(self.features(space, vectors))
