from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuners.spaces import convolution_space, small_spaces
from tvm_ext.tuners.cost_model import XGBoostModel
from tvm_ext.tuners.space import ConfigSpace, Knob
from tvm_ext.tuners.tree_tables import CHUNK, TreeTables


def _pair(space: ConfigSpace, seed: int, rounds: int, rows: int) -> tuple[XGBoostModel, np.random.Generator]:
    rng = np.random.default_rng(seed)
    model = XGBoostModel(rounds)
    seen = space.random(rng, rows)
    scores = rng.random(rows) * (rng.random(rows) < 0.8) + np.sin(seen.sum(axis=1))
    model.fit(space.features(seen), np.maximum(scores, 0.0))
    return model, rng


@settings(max_examples=25)
@given(small_spaces(), st.integers(0, 2**32 - 1), st.integers(0, 20), st.integers(1, 40))
def test_tables_predict_what_xgboost_predicts(space: ConfigSpace, seed: int, rounds: int, rows: int) -> None:
    """To the last bit: trees of one leaf, pruned nodes, thresholds that equal features, any number of trees."""
    model, rng = _pair(space, seed, rounds, rows)
    vectors = space.random(rng, 50)
    np.testing.assert_array_equal(model.scorer(space)(vectors), model.predict(space.features(vectors)))


def test_large_spaces_and_many_configurations() -> None:
    """Knobs share tables or have their own; more configurations than are evaluated at once."""
    knobs = [Knob.split("a", 840, 3), Knob.split("b", 720720, 3), *convolution_space().knobs]
    space = ConfigSpace(knobs)
    assert max(space.radices) > 4096
    model, rng = _pair(space, 0, 80, 600)
    vectors = space.random(rng, 2 * CHUNK + 7)
    np.testing.assert_array_equal(model.scorer(space)(vectors), model.predict(space.features(vectors)))


def test_missing_values_go_where_they_went_in_training() -> None:
    space = ConfigSpace([Knob("a", (float("nan"), 1.0, 2.0, 3.0)), Knob("b", (5.0, float("nan"), 7.0))])
    model, _ = _pair(space, 3, 20, 60)
    every = np.array([space.vector(index) for index in range(space.size)])
    np.testing.assert_array_equal(model.scorer(space)(every), model.predict(space.features(every)))


def test_trees_with_too_many_leaves_are_refused() -> None:
    xgboost = pytest.importorskip("xgboost")
    space = ConfigSpace([Knob("a", tuple(range(16)))])
    every = space.features(np.arange(16)[:, None])
    labels = np.arange(16) ** 2.0
    deep = xgboost.train({"max_depth": 6, "lambda": 0, "min_child_weight": 0}, xgboost.DMatrix(every, label=labels), 1)
    with pytest.raises(ValueError, match="at most 8"):
        TreeTables(deep, space.choice_features)
