"""What the oracle is asked for, and which first configurations are chosen of it."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuners.spaces import small_spaces
from tvm_ext.tuners.initialisers import Start, ValidityInitialiser
from tvm_ext.tuners.presampling import farthest_in_turn, presample
from tvm_ext.tuners.space import ConfigSpace, Knob
from tvm_ext.tuners.validity import Validity

GRID = ConfigSpace([Knob(name, tuple(range(16))) for name in "abcd"])


def ball(vectors: np.ndarray) -> np.ndarray:
    """A cluster of about one configuration in a hundred."""
    return np.abs(vectors - 7).sum(axis=1) <= 5


def test_a_small_cluster_is_found_and_walked() -> None:
    share = float(ball(GRID.vectors(np.arange(GRID.size))).mean())
    assert share < 0.02
    for seed in range(5):
        validity = Validity(GRID, ball)
        found = presample(GRID, validity, 1000, 32, np.random.default_rng(seed))
        assert found is not None
        vectors, works = found
        assert len(vectors) == 1000 == validity.asked == len(set(GRID.keys(vectors)))
        np.testing.assert_array_equal(works, ball(vectors))
        assert works.mean() > 10 * share


@settings(max_examples=30, deadline=None)
@given(space=small_spaces(), seed=st.integers(0, 99), samples=st.integers(0, 60), parallel=st.integers(1, 9))
def test_no_more_is_asked_for_than_there_is(space: ConfigSpace, seed: int, samples: int, parallel: int) -> None:
    validity = Validity(space, lambda vectors: vectors[:, 0] == 0)
    found = presample(space, validity, samples, parallel, np.random.default_rng(seed)) if samples else None
    if found is not None:
        assert len(set(space.keys(found[0]))) == len(found[0]) == min(samples, space.size)


def test_rows_are_as_the_published_loop_takes_them() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.integers(0, 9, (40, 3))
    vectors = np.unique(vectors, axis=0)
    chosen = farthest_in_turn(vectors, 12, np.random.default_rng(1))
    taken = [chosen[0]]
    while len(taken) < 12:  # algorithm 5, word for word
        mean, least, new = 0.0, 0.0, -1
        for row in range(len(vectors)):
            if row in taken:
                continue
            distances = [float(np.abs(vectors[row] - vectors[other]).sum()) for other in taken]
            if np.mean(distances) > mean and min(distances) > least:
                mean, least, new = float(np.mean(distances)), min(distances), row
        taken.append(new)
    assert chosen == taken


def test_chosen_ones_are_farther_apart_than_random_ones() -> None:
    vectors = GRID.vectors(np.flatnonzero(ball(GRID.vectors(np.arange(GRID.size)))))

    def spread(rows: list[int]) -> float:
        return float(np.mean([np.abs(vectors[a] - vectors[b]).sum() for a, b in combinations(rows, 2)]))

    rng = np.random.default_rng(0)
    assert spread(farthest_in_turn(vectors, 25, rng)) > 1.2 * spread(rng.permutation(len(vectors))[:25].tolist())
    assert farthest_in_turn(vectors[:0], 5, rng) == []
    assert sorted(farthest_in_turn(vectors[:3], 5, rng)) == [0, 1, 2]


@settings(max_examples=30, deadline=None)
@given(space=small_spaces(), seed=st.integers(0, 99), count=st.integers(1, 40), limit=st.integers(0, 6))
def test_proposals_are_new_and_as_many_as_there_can_be(space: ConfigSpace, seed: int, count: int, limit: int) -> None:
    rng = np.random.default_rng(seed)
    taken = set(space.keys(space.random(rng, 5)))
    before = set(taken)
    validity = Validity(space, lambda vectors: vectors.sum(axis=1) < limit)
    for initialiser in (ValidityInitialiser(samples=50, parallel=7), ValidityInitialiser(20, 3, maximise=False)):
        keys = space.keys(initialiser.propose(count, Start(space, taken, rng, validity)))
        assert not set(keys) & before
        assert taken == before | set(keys)
        assert len(set(keys)) == len(keys) == min(count, space.size - len(before))
        before = set(taken)


def test_half_of_the_first_ones_work() -> None:
    for initialiser, share in ((ValidityInitialiser(), 0.5), (ValidityInitialiser(share=0.25), 0.25)):
        first = initialiser.propose(48, Start(GRID, set(), np.random.default_rng(0), Validity(GRID, ball)))
        assert float(ball(first).mean()) == share
    without = ValidityInitialiser().propose(48, Start(GRID, set(), np.random.default_rng(0), Validity(GRID)))
    assert ball(without).mean() < 0.1
