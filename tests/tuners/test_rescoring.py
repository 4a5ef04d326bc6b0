from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.tuners.spaces import bowl, convolution_space, small_spaces, tune
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuners.rescoring import Rescorer
from tvm_ext.tuners.space import ConfigSpace, Vector


class TableModel:
    """Predicts from a function of the features."""

    fitted = True
    notes = ()

    def __init__(self, function: Callable[[np.ndarray], np.ndarray]) -> None:
        self._function = function

    def features(self, space: ConfigSpace, vectors: np.ndarray) -> np.ndarray:
        return space.features(vectors)

    def fit(self, features: np.ndarray, scores: np.ndarray) -> None:
        pass

    def predict(self, features: np.ndarray) -> np.ndarray:
        return self._function(features)

    def scorer(self, space: ConfigSpace) -> Callable[[np.ndarray], np.ndarray]:
        return lambda vectors: self.predict(self.features(space, vectors))


@given(small_spaces(), st.integers(0, 2**32 - 1), st.integers(1, 12), st.floats(0, 1))
def test_the_best_predicted_come_first(space: ConfigSpace, seed: int, count: int, share: float) -> None:
    """The oracle sorts all candidates; the model predicts the last feature."""
    rng = np.random.default_rng(seed)
    vectors = np.unique(space.random(rng, 20), axis=0)
    worth = {tuple(vector): float(rng.random()) for vector in vectors.tolist()}
    broken = {vector for vector in worth if rng.random() < share}
    asked: list[Vector] = []

    def features(vector: Vector) -> np.ndarray | None:
        asked.append(vector)
        return None if vector in broken else np.array([0.0, worth[vector]])

    rescorer = Rescorer(features, TableModel(lambda rows: rows[:, -1]))
    measured = [(vector, 1.0) for vector in list(worth)[:3]]
    chosen, scores = rescorer.best(space, measured, vectors, count)
    expected = sorted((vector for vector in worth if vector not in broken), key=lambda vector: -worth[vector])
    got = [tuple(vector) for vector in chosen.tolist()]
    assert len(got) == len(set(got)) == min(count, len(worth))
    if any(vector not in broken for vector, _ in measured):
        working = expected[:count]
        assert got[: len(working)] == working
        assert scores.tolist() == [0.0 if vector in broken else worth[vector] for vector in got]
    else:
        assert not scores.any(), "nothing was learnt from"
    assert sorted(asked) == sorted(set(asked)), "features are found once"


def test_a_tuner_takes_the_second_look_at_a_wider_pool() -> None:
    """Of all that the explorer found, the batch is what the second model likes best."""
    space = convolution_space()
    seconds = bowl(space)
    tuner = recipe("evolution").tuner(space, seed=1)
    asked: list[Vector] = []

    def features(vector: Vector) -> np.ndarray:
        asked.append(vector)
        return seconds(np.array([vector]))

    tuner.rescorer = Rescorer(features, TableModel(lambda rows: 1.0 / rows[:, -1]))
    first = tune(tuner, seconds, 16)
    assert not asked, "without measurements there is nothing to learn from"
    batch = tuner.suggest(16)
    pool = [vector for vector in asked if vector not in first]
    assert len(pool) == 4 * 16
    best = sorted(pool, key=lambda vector: float(seconds(np.array(vector))))[:16]
    assert set(batch) == set(best), "no share of so small a batch is random"
