from __future__ import annotations

import numpy as np
import pytest

from tests.tuners.spaces import bowl, convolution_space
from tvm_ext.tuners.cost_model import BootstrapModel, TileModel, XGBoostModel


@pytest.mark.parametrize(
    "model", [XGBoostModel(), XGBoostModel(160, eta=0.15, share=0.7), TileModel(), BootstrapModel()]
)
def test_it_ranks_what_it_has_not_seen(model: XGBoostModel) -> None:
    space, rng = convolution_space(), np.random.default_rng(0)
    seen, unseen = space.random(rng, 300), space.random(rng, 300)
    assert not model.fitted
    model.fit(model.features(space, seen), 1 / bowl(space)(seen))
    assert model.fitted
    np.testing.assert_array_equal(model.scorer(space)(unseen), model.predict(model.features(space, unseen)))
    ranks = [np.argsort(np.argsort(row)) for row in (model.scorer(space)(unseen), 1 / bowl(space)(unseen))]
    assert np.corrcoef(ranks)[0, 1] > 0.8


@pytest.mark.parametrize("model", [XGBoostModel(), BootstrapModel()])
def test_only_failures_are_no_trouble(model: XGBoostModel) -> None:
    model.fit(np.ones((4, 2)), np.zeros(4))
    assert model.predict(np.ones((3, 2))).tolist() == [0.0, 0.0, 0.0]


def test_volumes_of_tiles_are_learnt_from_fewer_points() -> None:
    """The score depends on a product of three factors; what is to be predicted has other choices of the knobs."""
    space, rng = convolution_space(), np.random.default_rng(1)

    def score(vectors: np.ndarray) -> np.ndarray:
        inner = sum(space.choice_features[knob][vectors[:, knob], 2] for knob in (0, 1, 2))
        return 1.0 / (1.0 + np.abs(inner - 5.0))

    seen, unseen = space.random(rng, 100), space.random(rng, 400)
    errors = []
    for model in (TileModel(), XGBoostModel()):
        model.fit(model.features(space, seen), score(seen))
        errors.append(float(np.abs(model.scorer(space)(unseen) - score(unseen)).mean()))
    assert errors[0] < 0.6 * errors[1]


def test_a_bootstrap_is_drawn_anew_with_more_measurements_and_the_same_for_the_same() -> None:
    space, rng = convolution_space(), np.random.default_rng(2)
    seen, unseen = space.random(rng, 100), space.random(rng, 400)
    scores = 1.0 / bowl(space)(seen)

    def predicted(count: int) -> np.ndarray:
        model = BootstrapModel()
        model.fit(model.features(space, seen[:count]), scores[:count])
        return model.scorer(space)(unseen)

    np.testing.assert_array_equal(predicted(99), predicted(99))
    # One measurement in a hundred changes little in trees that weigh all alike; other weights change nearly all.
    assert (predicted(99) != predicted(100)).mean() > 0.99


def test_failures_do_not_hide_how_fast_their_neighbours_are() -> None:
    """Each second choice of one knob fails: predictions fall for these alone, and rank the others."""
    space, rng = convolution_space(), np.random.default_rng(3)
    seen, unseen = space.random(rng, 300), space.random(rng, 400)

    def works(vectors: np.ndarray) -> np.ndarray:
        return vectors[:, 6] % 2 == 0

    model = BootstrapModel()
    model.fit(model.features(space, seen), np.where(works(seen), 1.0 / bowl(space)(seen), 0.0))
    scores, valid = model.scorer(space)(unseen), works(unseen)
    assert scores[~valid].max() < 0.2 * scores[valid].max()
    ranks = [np.argsort(np.argsort(row)) for row in (scores[valid], 1 / bowl(space)(unseen[valid]))]
    assert np.corrcoef(ranks)[0, 1] > 0.8
