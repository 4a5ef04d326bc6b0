from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuners.spaces import convolution_space, small_spaces
from tvm_ext.tuners.initialisers import Initialiser, RandomInitialiser, SpaceFillingInitialiser
from tvm_ext.tuners.space import ConfigSpace


@settings(max_examples=30, deadline=None)
@given(space=small_spaces(), seed=st.integers(0, 2**32 - 1), count=st.integers(1, 40))
def test_proposals_are_new_and_as_many_as_there_can_be(space: ConfigSpace, seed: int, count: int) -> None:
    for initialiser in (RandomInitialiser(), SpaceFillingInitialiser()):
        rng = np.random.default_rng(seed)
        taken = set(space.keys(space.random(rng, 5)))
        before = set(taken)
        keys = space.keys(initialiser.propose(space, count, taken, rng))
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
        return [least_distance(initialiser.propose(space, 32, set(), np.random.default_rng(seed))) for seed in (0, 1)]

    assert min(proposals(SpaceFillingInitialiser())) > max(proposals(RandomInitialiser()))
