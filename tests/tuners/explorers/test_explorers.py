from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuners.spaces import bowl, convolution_space, small_spaces
from tvm_ext.tuners.candidates import BestCandidates
from tvm_ext.tuners.explorers import Evolution, Explorer, RandomSearch, SimulatedAnnealing
from tvm_ext.tuners.explorers.actor_critic import ActorCritic
from tvm_ext.tuners.explorers.ppo import Hyperparameters, Rollout, generalized_advantages
from tvm_ext.tuners.space import ConfigSpace, Knob

EXPLORERS = {
    "annealing": lambda: SimulatedAnnealing(chains=32, steps=100),
    "annealing from the best": lambda: SimulatedAnnealing(chains=32, steps=100, elite=0.5),
    "evolution": lambda: Evolution(population=64, generations=4, elite=8),
    "random": lambda: RandomSearch(pool=200),
    "actor critic": lambda: ActorCritic(episodes=16, steps=40, parallel=8),
}


@pytest.mark.parametrize("name", EXPLORERS)
@settings(max_examples=15, deadline=None)
@given(space=small_spaces(), seed=st.integers(0, 2**32 - 1))
def test_candidates_are_ranked_different_and_not_excluded(name: str, space: ConfigSpace, seed: int) -> None:
    rng = np.random.default_rng(seed)
    excluded = set(space.keys(space.random(rng, 10)))
    explorer: Explorer = EXPLORERS[name]()
    score = bowl(space)
    found = explorer.explore(space, lambda vectors: 1 / score(vectors), 16, excluded, space.random(rng, 4), rng)
    keys = space.keys(found.vectors)
    assert len(keys) == len(set(keys)) <= 16
    assert not excluded & set(keys)
    assert (np.diff(found.scores) <= 0).all()
    np.testing.assert_allclose(found.scores, 1 / score(found.vectors), rtol=1e-6)
    assert 0 <= found.converged_queries <= found.queries


def test_chains_begin_at_the_best_measured() -> None:
    space, rng = convolution_space(), np.random.default_rng(0)
    best = space.random(rng, 5)
    asked: list[np.ndarray] = []

    def score(vectors: np.ndarray) -> np.ndarray:
        asked.append(vectors.copy())
        return 1 / bowl(space)(vectors)

    explorer = SimulatedAnnealing(chains=16, steps=3, elite=0.5)
    for _ in range(2):  # and again in the next iteration
        asked.clear()
        explorer.explore(space, score, 4, set(), best, rng)
        np.testing.assert_array_equal(asked[0][:8], best[np.arange(8) % 5])
        assert (asked[0][8:] != best[0]).any(axis=1).all()


def _concave(space: ConfigSpace) -> Callable[[np.ndarray], np.ndarray]:
    """A separable score, concave in every knob; 1 is the most."""
    centre, scale = np.rint(0.6 * (space.radices - 1)), np.maximum(space.radices - 1, 1)
    return lambda vectors: 1.0 - 2.0 * (((vectors - centre) / scale) ** 2).mean(axis=1)


@pytest.mark.parametrize("name", ["annealing", "evolution"])
def test_search_beats_as_many_random_points(name: str) -> None:
    space = convolution_space()
    explorer: Explorer = {"annealing": SimulatedAnnealing(), "evolution": Evolution(generations=40)}[name]
    rng = np.random.default_rng(0)
    score = _concave(space)
    found = explorer.explore(space, score, 8, set(), space.random(rng, 4), rng)
    drawn = np.sort(score(space.random(rng, found.queries)))[::-1][:8]
    assert found.scores.mean() > drawn.mean()
    assert found.scores[0] > 0.97


def test_the_agent_learns() -> None:
    """In 128 episodes it comes within 5 % of the best, and its later walks are better than its first."""
    space, rng = convolution_space(), np.random.default_rng(0)
    score = _concave(space)
    asked: list[float] = []

    def recorded(rows: np.ndarray) -> np.ndarray:
        values = score(rows)
        asked.append(float(values.mean()))
        return values

    explorer = ActorCritic(seed=1)
    found = explorer.explore(space, recorded, 8, set(), space.random(rng, 1), rng)
    assert found.scores[0] > 0.95
    for _ in range(3):
        explorer.explore(space, recorded, 8, set(), space.random(rng, 1), rng)
    assert np.mean(asked[-8:]) > np.mean(asked[:4]) + 0.1


def test_advantages_are_those_of_the_definition() -> None:
    """Against the sum over the rest of each episode, episode by episode."""
    rng = np.random.default_rng(0)
    lengths = [3, 1, 5]
    steps = [(t, e) for t in range(5) for e in range(3) if t < lengths[e]]
    owners = np.array([e for _, e in steps])
    ended = np.array([t == lengths[e] - 1 for t, e in steps])
    rewards, values, following = rng.random((3, len(steps))).astype(np.float32)
    parameters = Hyperparameters(discount=0.8, gae_parameter=0.95)
    blank = np.zeros((len(steps), 2), dtype=np.float32)
    rollout = Rollout(blank, blank.astype(np.int64), blank, owners, ended, rewards)
    advantages, targets = generalized_advantages(rollout, values, following, parameters)
    for episode in range(3):
        rows = [i for i, (_, e) in enumerate(steps) if e == episode]
        delta = [rewards[i] + 0.8 * (0 if ended[i] else following[i]) - values[i] for i in rows]
        for start, row in enumerate(rows):
            expected = sum((0.8 * 0.95) ** k * delta[start + k] for k in range(len(rows) - start))
            assert advantages[row] == pytest.approx(expected, rel=1e-4)
            assert targets[row] == pytest.approx(delta[start] + values[row], rel=1e-4)


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 1, width=16)), max_size=60), st.integers(1, 8))
def test_best_candidates_are_the_best(offers: list[tuple[int, float]], count: int) -> None:
    table = dict(offers)  # a configuration has one score
    found = BestCandidates(count, {3, 7})
    space = ConfigSpace([Knob("knob", tuple(range(31)))])
    for key, _ in offers:
        found.offer(space, np.array([[key]]), np.array([table[key]]))
    vectors, scores = found.ranked(1)
    allowed = {key: score for key, score in table.items() if key not in (3, 7)}
    assert scores.tolist() == sorted(allowed.values(), reverse=True)[:count]
    assert [allowed[key] for key in vectors[:, 0].tolist()] == scores.tolist()
