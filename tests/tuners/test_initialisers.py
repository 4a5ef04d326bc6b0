from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuners.spaces import convolution_space, small_spaces
from tvm_ext.tuners.initialisers import (
    Initialiser,
    LocalInitialiser,
    RandomInitialiser,
    SpaceFillingInitialiser,
    Start,
)
from tvm_ext.tuners.space import ConfigSpace


@settings(max_examples=30, deadline=None)
@given(space=small_spaces(), seed=st.integers(0, 2**32 - 1), count=st.integers(1, 40))
def test_proposals_are_new_and_as_many_as_there_can_be(space: ConfigSpace, seed: int, count: int) -> None:
    for initialiser in (RandomInitialiser(), SpaceFillingInitialiser(), LocalInitialiser()):
        rng = np.random.default_rng(seed)
        taken = set(space.keys(space.random(rng, 5)))
        before = set(taken)
        keys = space.keys(initialiser.propose(count, Start(space, taken, rng)))
        assert not set(keys) & before
        assert taken == before | set(keys)
        assert len(set(keys)) == len(keys) == min(count, space.size - len(before))


def test_filling_is_wider_than_random() -> None:
    space = convolution_space()

    def least_distance(vectors: np.ndarray) -> float:
        points = vectors / (space.radices - 1)
        distances = ((points[:, None] - points[None]) ** 2).sum(axis=2)
        return float(distances[~np.eye(len(points), dtype=bool)].min())

    def proposals(initialiser: Initialiser) -> list[float]:
        return [
            least_distance(initialiser.propose(32, Start(space, set(), np.random.default_rng(seed)))) for seed in (0, 1)
        ]

    assert min(proposals(SpaceFillingInitialiser())) > max(proposals(RandomInitialiser()))


def test_local_ones_begin_with_the_nearest_change_of_every_knob() -> None:
    plain = convolution_space()
    default = [len(knob.choices) // 2 for knob in plain.knobs]
    space = ConfigSpace(plain.knobs, default)
    taken = {space.index(default)}
    vectors = LocalInitialiser(share=0.5).propose(32, Start(space, taken, np.random.default_rng(0)))
    near = vectors[:16]
    assert ((near != default).sum(axis=1) == 1).all()
    assert set(np.nonzero(near != default)[1][: len(space.knobs)].tolist()) == set(range(len(space.knobs)))
    distance = ((space.features(near) - space.features(np.array([default]))) ** 2).sum(axis=1)
    for position, features in enumerate(space.choice_features):
        others = np.delete(features, default[position], axis=0)
        changed = distance[near[:, position] != default[position]]
        nearest = np.sort(((others - features[default[position]]) ** 2).sum(axis=1))
        np.testing.assert_allclose(changed, nearest[: len(changed)], rtol=1e-5)
    assert ((vectors[16:] != default).sum(axis=1) > 1).any()
