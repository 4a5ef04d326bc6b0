from __future__ import annotations

import numpy as np
import pytest

from tests.tuners.spaces import bowl, convolution_space
from tvm_ext.tuners.cost_model import XGBoostModel


@pytest.mark.parametrize("model", [XGBoostModel(), XGBoostModel(160, eta=0.15, share=0.7)])
def test_it_ranks_what_it_has_not_seen(model: XGBoostModel) -> None:
    space, rng = convolution_space(), np.random.default_rng(0)
    seen, unseen = space.random(rng, 300), space.random(rng, 300)
    assert not model.fitted
    model.fit(space.features(seen), 1 / bowl(space)(seen))
    assert model.fitted
    np.testing.assert_array_equal(model.scorer(space)(unseen), model.predict(space.features(unseen)))
    ranks = [np.argsort(np.argsort(row)) for row in (model.predict(space.features(unseen)), 1 / bowl(space)(unseen))]
    assert np.corrcoef(ranks)[0, 1] > 0.8


def test_only_failures_are_no_trouble() -> None:
    model = XGBoostModel()
    model.fit(np.ones((4, 2)), np.zeros(4))
    assert model.predict(np.ones((3, 2))).tolist() == [0.0, 0.0, 0.0]
