from __future__ import annotations

import numpy as np
import pytest

from tests.tuners.spaces import bowl, convolution_space
from tvm_ext.tuners.cost_model import TileModel, XGBoostModel
from tvm_ext.tuners.shared_model import SharedModel


@pytest.mark.parametrize("model", [XGBoostModel(), XGBoostModel(160, eta=0.15, share=0.7), TileModel(), SharedModel()])
def test_it_ranks_what_it_has_not_seen(model: XGBoostModel) -> None:
    space, rng = convolution_space(), np.random.default_rng(0)
    seen, unseen = space.random(rng, 300), space.random(rng, 300)
    assert not model.fitted
    model.fit(model.features(space, seen), 1 / bowl(space)(seen))
    assert model.fitted
    np.testing.assert_array_equal(model.scorer(space)(unseen), model.predict(model.features(space, unseen)))
    ranks = [np.argsort(np.argsort(row)) for row in (model.scorer(space)(unseen), 1 / bowl(space)(unseen))]
    assert np.corrcoef(ranks)[0, 1] > 0.8


def test_only_failures_are_no_trouble() -> None:
    model = XGBoostModel()
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
