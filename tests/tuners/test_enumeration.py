"""Small spaces are enumerated: what works is asked for altogether, and all of it ranked."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.tuners.spaces import bowl, convolution_space, tune
from tests.tuners.test_presampling import GRID, ball
from tests.tuners.test_validity import search
from tvm_ext.backends.description import KernelDescription
from tvm_ext.tuners.described_model import DescribedModel
from tvm_ext.tuners.explorers import Exhaustive
from tvm_ext.tuners.initialisers import EnumeratingInitialiser, Start
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuners.space import ConfigSpace, Knob
from tvm_ext.tuners.validity import Validity, first_of_each


@pytest.mark.parametrize("count", [1, 3, 17, 127, 100_000])
def test_the_best_of_all_are_found(count: int) -> None:
    space = ConfigSpace([Knob("a", tuple(range(7))), Knob("b", tuple(range(33))), Knob("c", (0,))])
    seconds = bowl(space)
    excluded = {0, 5, space.size - 1}
    none = np.empty((0, 3), np.int64)
    found = Exhaustive().explore(space, lambda rows: -seconds(rows), count, excluded, none, np.random.default_rng(0))
    keys = [key for key in range(space.size) if key not in excluded]
    expected = np.sort(seconds(space.vectors(keys)))[:count]
    np.testing.assert_array_equal(-found.scores, expected)
    np.testing.assert_array_equal(seconds(found.vectors), expected)
    assert not set(space.keys(found.vectors)) & excluded
    assert found.queries == len(keys)


def test_a_large_space_is_annealed() -> None:
    space, explorer = convolution_space(), Exhaustive()
    none = np.empty((0, 8), np.int64)
    found = explorer.explore(space, lambda rows: -bowl(space)(rows), 10, set(), none, np.random.default_rng(0))
    assert len(found.vectors) == 10
    assert found.queries < space.size / 4
    again = Exhaustive()
    again.load(explorer.dump())
    assert again.dump() == explorer.dump()


def test_first_ones_work_all_of_them_can_be_drawn_and_none_is_asked_twice() -> None:
    validity = Validity(GRID, ball)
    taken = {GRID.keys(GRID.vectors(np.flatnonzero(ball(GRID.vectors(np.arange(GRID.size))))[:3]))[0]}
    before = set(taken)
    working = int(ball(GRID.vectors(np.arange(GRID.size))).sum())
    first = EnumeratingInitialiser().propose(working - 1, Start(GRID, taken, np.random.default_rng(0), validity))
    assert ball(first).all()
    assert len(set(GRID.keys(first)) - before) == working - 1
    assert validity.asked == GRID.size
    more = EnumeratingInitialiser().propose(5, Start(GRID, taken, np.random.default_rng(0), validity))
    assert validity.asked == GRID.size
    assert len(more) == 5  # nothing that works is left
    assert not ball(more).any()


def test_an_oracle_that_would_take_too_long_is_asked_for_some() -> None:
    def slow(vectors: np.ndarray) -> np.ndarray:
        time.sleep(0.002 * len(vectors))
        return ball(vectors)

    validity = Validity(GRID, slow)
    initialiser = EnumeratingInitialiser(seconds=0.05, first=16)
    first = initialiser.propose(10, Start(GRID, set(), np.random.default_rng(0), validity))
    assert len(first) == 10
    assert validity.has_oracle
    assert validity.asked <= min(1016, GRID.size)


def test_nothing_that_the_oracle_refuses_is_measured() -> None:
    tuner = recipe("validity_exhaustive", 20, 20).tuner(GRID, 3, oracle=ball)
    assert all(search(tuner, 100))
    without = recipe("exhaustive", 20, 20).tuner(GRID, 3, oracle=ball)
    assert without.validity is None
    assert not all(search(without, 100))


def test_a_lying_oracle_is_left_alone() -> None:
    tuner = recipe("validity_exhaustive", 20, 20).tuner(GRID, 3, oracle=lambda vectors: ~ball(vectors))
    worked = search(tuner, 120)
    assert "was wrong about" in tuner.notes[0]
    assert not any(worked[:8])
    assert any(worked)


def test_of_equal_programs_one_passes() -> None:
    def pairs(vectors: np.ndarray) -> list[int]:
        return (vectors[:, 0] // 2).tolist()

    space = ConfigSpace([Knob("x", tuple(range(9)))])
    oracle = first_of_each(lambda vectors: vectors[:, 0] != 2, pairs)
    everything = space.vectors(np.arange(9))
    expected = [True, False, False, True, True, False, True, False, True]
    assert oracle(everything).tolist() == expected
    assert oracle(everything[::-1]).tolist() == expected[::-1]  # the first that was asked for stays it
    assert oracle(everything[:0]).tolist() == []


def described(weight: float) -> KernelDescription:
    def numbers(vectors: np.ndarray) -> Any:
        return weight * vectors.sum(axis=1, keepdims=True).astype(np.float64)

    return KernelDescription("f", (), np.zeros(1), numbers, numbers, np.ones((1, 2), bool))


def test_a_description_is_seen_and_changes_nothing_where_it_is_not_asked_for() -> None:
    vectors = GRID.random(np.random.default_rng(0), 5)
    plain, seeing = DescribedModel(), DescribedModel(description=described(2.0))
    assert seeing.features(GRID, vectors).shape[1] == plain.features(GRID, vectors).shape[1] + 1
    np.testing.assert_array_equal(seeing.features(GRID, vectors)[:, -1], 2.0 * vectors.sum(axis=1))
    large = GRID.random(np.random.default_rng(1), 2000)
    np.testing.assert_array_equal(seeing.features(GRID, large), seeing.features(GRID, large.copy()))

    def suggested(name: str, described: KernelDescription | None) -> list[tuple[int, ...]]:
        return tune(recipe(name, 20, 20).tuner(GRID, 1, description=described), bowl(GRID), 80)

    assert suggested("exhaustive_undescribed", described(1.0)) == suggested("exhaustive", None)


def expecting(factor: float) -> KernelDescription:
    """Expect the sum of the choices, which is what is best at the edge of what works, or its contrary."""

    def cost(vectors: np.ndarray) -> Any:
        return np.exp(-factor * vectors.sum(axis=1).astype(np.float64))

    return replace(described(1.0), cost=cost)


def test_what_is_expected_comes_first_and_only_what_works() -> None:
    tuner = recipe("validity_expected").tuner(GRID, 3, oracle=ball, description=expecting(0.2))
    assert not tuner.notes
    first = np.array(tuner.suggest(10))
    works = ball(GRID.vectors(np.arange(GRID.size)))
    assert ball(first).all()
    assert tuner.validity is not None
    assert tuner.validity.asked == GRID.size
    best = np.sort(GRID.vectors(np.flatnonzero(works)).sum(axis=1))[::-1]
    assert first.sum(axis=1).max() == best[0]
    assert np.median(first.sum(axis=1)) >= best[9]


def test_what_is_expected_wrongly_is_corrected() -> None:
    for factor in (0.2, -0.2):
        tuner = recipe("validity_expected").tuner(GRID, 3, oracle=ball, description=expecting(factor))
        assert all(search(tuner, 120))
        assert tuner.best is not None
        works = GRID.vectors(np.flatnonzero(ball(GRID.vectors(np.arange(GRID.size)))))
        assert sum(tuner.best.vector) >= works.sum(axis=1).max() - 1


@pytest.mark.parametrize(
    ("description", "words"),
    [(None, "the target says nothing of the kernel"), (described(1.0), "expects nothing of configurations")],
)
def test_without_an_expectation_the_plain_tuner_is_used_and_says_so(
    description: KernelDescription | None, words: str
) -> None:
    tuner = recipe("validity_expected").tuner(GRID, 3, oracle=ball, description=description)
    (note,) = tuner.notes
    assert words in note
    plain = recipe("validity_exhaustive").tuner(GRID, 3, oracle=ball, description=description)
    assert tuner.suggest(10) == plain.suggest(10)


def test_the_mean_of_several_models_is_predicted() -> None:
    rng = np.random.default_rng(0)
    vectors, unseen = GRID.vectors(np.arange(GRID.size)), GRID.random(rng, 30)
    scores = 1.0 / (1.0 + vectors.sum(axis=1)) * ball(vectors)
    one, four = DescribedModel(), DescribedModel(members=4)
    for model in (one, four):
        model.fit(model.features(GRID, vectors), scores)
    features = one.features(GRID, unseen)
    members = [row.inplace_predict(features, predict_type="margin") for row in four._booster.members]
    assert len({tuple(row.tolist()) for row in members}) == 4
    np.testing.assert_array_equal(members[0], one._booster.inplace_predict(features, predict_type="margin"))
    # Those that work and those that do not are told apart by a mean of four, too.
    odds = np.mean([row.inplace_predict(features, predict_type="margin") for row in four._works.members], axis=0)
    expected = np.exp(four._level + np.mean(members, axis=0)) / (1.0 + np.exp(-odds))
    np.testing.assert_allclose(four.predict(features), expected, rtol=1e-6)


@pytest.mark.parametrize("description", [None, described(1.0)])
def test_averaged_tuners_have_four_models_with_and_without_a_description(
    description: KernelDescription | None,
) -> None:
    for name, members in (("validity_averaged", 4), ("averaged", 4), ("exhaustive", 1)):
        tuner = recipe(name).tuner(GRID, 3, oracle=ball, description=description)
        assert isinstance(tuner.cost_model, DescribedModel)
        assert tuner.cost_model.members == members
        assert (tuner.validity is not None) == (name == "validity_averaged")
    assert all(search(recipe("validity_averaged", 20, 20).tuner(GRID, 3, oracle=ball, description=description), 60))
