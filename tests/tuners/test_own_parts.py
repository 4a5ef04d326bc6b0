"""Parts of a user's own in a tuner: what is wrong with a cost model, a recipe or a cost is told in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.tuners.spaces import bowl, measurements, tune
from tvm_ext.errors import OptionError, TuningError
from tvm_ext.tuners.cost_model import XGBoostModel
from tvm_ext.tuners.measurement import Measurement
from tvm_ext.tuners.recipes import RECIPES, recipe
from tvm_ext.tuners.space import ConfigSpace, Knob


def _space(cost: Callable[[np.ndarray], np.ndarray] | None = None) -> ConfigSpace:
    return ConfigSpace([Knob.split("tile", 224, 3), Knob("unroll", (0, 16, 64))], cost=cost)


class _Raises(XGBoostModel):
    def fit(self, features: np.ndarray, scores: np.ndarray) -> None:
        raise RuntimeError("no rows today")


class _Predicts(XGBoostModel):
    value: Any = np.nan

    def predict(self, features: np.ndarray) -> np.ndarray:
        return np.full(len(features), self.value)

    def scorer(self, space: ConfigSpace) -> Callable[[np.ndarray], np.ndarray]:
        return lambda vectors: self.predict(vectors)


class _Infinite(_Predicts):
    value = np.inf


class _One(_Predicts):
    def predict(self, features: np.ndarray) -> np.ndarray:
        return np.zeros(1)


@pytest.mark.parametrize("base", ["sa_as", "evolution"])
@pytest.mark.parametrize("acquisition", [None, "expected_improvement", "thompson"])
@pytest.mark.parametrize(
    ("model", "says"),
    [
        (_Raises, "_Raises failed.*RuntimeError: no rows today.*CostModel describes"),
        (_Predicts, "_Predicts failed.*189 of 189 predicted scores are not finite"),
        (_Infinite, "_Infinite failed.*189 of 189 predicted scores are not finite"),
        (_One, r"_One failed.*float64\[1\], expected numbers of shape \[189\]"),
    ],
)
def test_a_cost_model_that_fails_is_named(model: type, says: str, acquisition: str | None, base: str) -> None:
    tuner = replace(recipe(base, 8, 8), cost_model=model, acquisition=acquisition).tuner(_space(), seed=1)
    tuner.update(measurements(tuner.suggest(8), bowl(tuner.space)))
    with pytest.raises(TuningError, match=says.replace("189", r"\d+")):
        tuner.suggest(8)


@pytest.mark.parametrize("base", [name for name, row in RECIPES.items() if row.random_share < 1])
def test_a_cost_model_of_ones_own_is_asked_by_every_recipe(base: str) -> None:
    row = replace(recipe(base, 8, 8), cost_model=_Raises)
    tuner = row.tuner(_space(lambda vectors: 1.0 + vectors[:, 0]), seed=1)
    assert isinstance(tuner.cost_model, _Raises)
    assert not row.shares
    with pytest.raises(TuningError, match="no rows today"):
        tune(tuner, bowl(tuner.space), 256)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"batch": 0}, "batch of a recipe is 0; expected a whole number of 1"),
        ({"batch": 2.5}, r"batch of a recipe is 2\.5"),
        ({"initial": -1}, "initial of a recipe is -1; expected a whole number of 0"),
        ({"pool": 0}, "pool of a recipe is 0"),
        ({"random_share": -0.5}, r"random_share of a recipe is -0\.5; expected a share from 0 to 1"),
        ({"refined_share": float("nan")}, "refined_share of a recipe is nan"),
    ],
)
def test_numbers_of_a_recipe(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        replace(recipe("sa_as"), **wrong)


def test_numbers_of_numpy_are_numbers() -> None:
    row = replace(recipe("sa_as"), batch=np.int64(8), initial=np.int64(0), random_share=np.float32(0.5))
    assert len(row.tuner(_space()).suggest(8)) == 8


def test_a_cost_may_change_what_it_is_given() -> None:
    def asked(vectors: np.ndarray) -> np.ndarray:
        costs = 1.0 + vectors[:, 0]
        vectors.fill(0)
        return costs

    found = [
        tune(recipe(name, 8, 8).tuner(_space(cost), seed=1), bowl(_space()), 24)
        for name in ("evolution_expected", "chameleon_pretrained")
        for cost in (asked, lambda vectors: 1.0 + vectors[:, 0])
    ]
    assert found[0] == found[1]
    assert found[2] == found[3]


@pytest.mark.parametrize(
    "choices",
    [
        (0, "auto", 3),
        (("a", "b"), ("b", "c"), ("c", "d")),
        ((0, 1), (1, 0), (-2, 2)),
        (1.0, float("inf"), 2.0),
        (0, None, 1),
    ],
)
def test_choices_that_are_no_numbers_can_be_learnt(choices: tuple[Any, ...]) -> None:
    space = ConfigSpace([Knob("odd", choices), Knob("even", tuple(range(32)))])
    assert np.isfinite(space.features(space.vectors(range(space.size)))).all()
    tuner = recipe("sa_as", 8, 8).tuner(space, seed=0)
    assert len(tune(tuner, bowl(space), 32)) == 32
    assert tuner.best is not None


@pytest.mark.parametrize("seconds", [1e-320, 0.0, -1.0, float("inf")])
@pytest.mark.parametrize("name", ["sa_as", "evolution_expected", "validity"])
def test_a_time_that_is_none_is_a_failure(name: str, seconds: float) -> None:
    tuner = recipe(name, 8, 8).tuner(_space(), seed=1)
    for _ in range(3):
        tuner.update([Measurement(row, seconds if row[0] % 2 else 1e-3) for row in tuner.suggest(8)])
    assert tuner.best is not None
    assert tuner.best.seconds == 1e-3


@pytest.mark.parametrize("vector", [None, 7])
def test_a_measurement_of_no_configuration(vector: Any) -> None:
    with pytest.raises(TuningError, match=f"a configuration is {vector}; expected the index"):
        recipe("sa_as").tuner(_space()).update([Measurement(vector, 1.0)])


def test_a_kind_of_error_that_is_none() -> None:
    with pytest.raises(TuningError, match=r"error of configuration .* is 'crash'; expected None or one of invalid"):
        Measurement((0, 0), None, "crash")  # type: ignore[arg-type]
