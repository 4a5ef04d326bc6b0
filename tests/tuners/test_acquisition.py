"""Acquisition functions against numerical integration and counting, and tuners that use them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import tvm_ext.tuners
from tests.tuners.spaces import bowl, convolution_space
from tvm_ext.errors import OptionError
from tvm_ext.tuners.acquisition import ACQUISITIONS, CONFIDENCE, confidence_bound, expected_improvement, thompson
from tvm_ext.tuners.cost_model import MEMBERS, TileModel, XGBoostModel
from tvm_ext.tuners.measurement import Measurement
from tvm_ext.tuners.recipes import RECIPES, GuidedRecipe, recipe
from tvm_ext.tuners.shared_model import SharedModel

TUNERS = [name for name, row in RECIPES.items() if not isinstance(row, GuidedRecipe) and row.random_share < 1]


def drawn(mean: float, spread: float) -> np.ndarray:
    """Two members with this mean and spread."""
    return np.array([[mean - spread], [mean + spread]])


@pytest.mark.parametrize("mean", [0.2, 0.9, 1.0, 1.1, 2.0])
@pytest.mark.parametrize("spread", [0.001, 0.05, 0.7])
def test_expected_improvement_is_the_integral_of_the_gain(mean: float, spread: float) -> None:
    values = np.linspace(mean - 12 * spread, mean + 12 * spread, 200_001)
    density = np.exp(-0.5 * ((values - mean) / spread) ** 2) / (spread * np.sqrt(2 * np.pi))
    integral = np.trapezoid(np.maximum(values - 1.0, 0.0) * density, values)
    assert expected_improvement(drawn(mean, spread))[0] == pytest.approx(integral, rel=1e-5, abs=1e-7)


def test_what_is_known_for_sure_improves_by_its_mean() -> None:
    assert expected_improvement(np.array([[0.5, 1.0, 1.25]] * 3)).tolist() == [0.0, 0.0, 0.25]


def test_what_does_not_improve_is_ordered_by_its_mean() -> None:
    order = ACQUISITIONS["expected_improvement"](np.array([[0.2, 0.9, 0.5]] * 4), np.random.default_rng(0))
    assert order.tolist() == [1, 2, 0]


def test_bounds_lie_above_the_mean_by_the_spread() -> None:
    assert confidence_bound(drawn(0.7, 0.2))[0] == pytest.approx(0.7 + 0.2 * CONFIDENCE)


def test_thompson_gives_each_place_to_the_best_of_a_member_that_is_drawn() -> None:
    """Of four members three like the second candidate best: it comes first three times of four."""
    rng = np.random.default_rng(0)
    table = np.array([[1.0, 2.0, 0.0], [1.0, 2.0, 0.0], [0.0, 2.0, 1.0], [1.0, 0.0, 2.0]])
    orders = [thompson(table, rng).tolist() for _ in range(4000)]
    assert all(sorted(order) == [0, 1, 2] for order in orders)
    first = Counter(order[0] for order in orders)
    assert first[1] / 4000 == pytest.approx(0.75, abs=0.03)
    assert first[2] / 4000 == pytest.approx(0.25, abs=0.03)
    # Where the second is first, the next place is the best of what is left: the first by two members, the last by two.
    second = Counter(order[1] for order in orders if order[0] == 1)
    assert second[0] / first[1] == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize("name", ACQUISITIONS)
@pytest.mark.parametrize("count", [0, 1, 7])
def test_all_candidates_are_in_the_order_once(name: str, count: int) -> None:
    rng = np.random.default_rng(1)
    order = ACQUISITIONS[name](rng.random((3, count)), rng)
    assert sorted(order.tolist()) == list(range(count))


@pytest.mark.parametrize("model", [XGBoostModel(), TileModel(), SharedModel()])
def test_models_are_less_sure_of_what_is_far_from_measurements(model: XGBoostModel) -> None:
    """Errors on unseen configurations are larger where the spread is: quarters by spread, from least to most."""
    space, rng = convolution_space(), np.random.default_rng(0)
    seen, unseen = space.random(rng, 120), space.random(rng, 800)
    scores = 1 / bowl(space)(seen)
    members = model.resampled(model.features(space, seen), scores)
    assert len(members) == MEMBERS
    assert not model.fitted  # it has not learnt itself
    table = np.array([member.predict(member.features(space, unseen)) for member in members])
    errors = np.abs(table.mean(axis=0) - (1 / bowl(space)(unseen)) / scores.max())
    ranked = errors[np.argsort(table.std(axis=0))]
    assert ranked[-200:].mean() > 1.3 * ranked[:200].mean()


@pytest.mark.parametrize("acquisition", ACQUISITIONS)
@pytest.mark.parametrize("name", ["autotvm_sa", "sa_as_tiles", "evolution_shared", "evolution_expected", "exhaustive"])
def test_a_tuner_with_an_acquisition_finds_what_is_fast(name: str, acquisition: str) -> None:
    space = convolution_space()
    seconds = bowl(space)
    tuner = recipe(name, 16, 16, acquisition).tuner(space, seed=3)
    assert tuner.acquisition == acquisition
    while len(tuner.measurements) < 96:
        batch = tuner.suggest(16)
        assert len(set(batch)) == len(batch) > 0
        tuner.update(
            [Measurement(vector, float(time)) for vector, time in zip(batch, seconds(np.array(batch)), strict=True)]
        )
    everything = seconds(space.random(np.random.default_rng(0), 2000))
    assert tuner.best is not None
    assert tuner.best.seconds is not None
    assert tuner.best.seconds < np.quantile(everything, 0.01)


def test_an_acquisition_changes_what_is_suggested_and_the_default_does_not() -> None:
    space = convolution_space()
    first = space.random(np.random.default_rng(5), 24)
    rows = [Measurement(tuple(row), float(time)) for row, time in zip(first.tolist(), bowl(space)(first), strict=True)]
    batches = {}
    for acquisition in (None, *ACQUISITIONS):
        tuner = recipe("autotvm_sa_tiles", 16, 16, acquisition).tuner(space, seed=1)
        tuner.update(rows)
        batches[acquisition] = tuner.suggest(16)
    plain = RECIPES["autotvm_sa_tiles"]
    assert plain.acquisition is None
    assert all(batches[name] != batches[None] for name in ACQUISITIONS)


@pytest.mark.parametrize("wrong", ["expected", "", 7, ["thompson"]])
def test_an_acquisition_that_is_not_there_is_refused_with_those_there_are(wrong: object) -> None:
    with pytest.raises(OptionError, match=r"acquisition.*expected_improvement"):
        recipe("chameleon", acquisition=wrong)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="acquisition"):
        tvm_ext.tuners.strategy("chameleon", acquisition=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["glimpse", "chameleon_glimpse", "random"])
def test_recipes_without_use_for_one_say_so(name: str) -> None:
    with pytest.raises(OptionError, match=f"'{name}'.*leave it out"):
        recipe(name, acquisition="thompson")


@pytest.mark.parametrize("wrong", [7, None, 1.5, ["chameleon"], "chamelon"])
def test_a_tuner_that_is_no_name_is_refused_in_a_sentence(wrong: object) -> None:
    with pytest.raises(OptionError, match="unknown tuner"):
        tvm_ext.tuners.options(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"seed": "1"}, {"seed": 1.5}, {"seed": -1}, {"batch": 2.5}, {"initial": "8"}])
def test_numbers_that_are_none_are_refused_in_a_sentence(wrong: dict) -> None:
    with pytest.raises(OptionError, match="expected"):
        tvm_ext.tuners.strategy("chameleon", **wrong)
