"""All samplers: never more than asked for, never visited, never twice."""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuners.spaces import convolution_space, small_spaces
from tvm_ext.tuners.samplers import AdaptiveSampler, DiversitySampler, GreedySampler, History, ReducedSampler
from tvm_ext.tuners.samplers.base import Sampler, random_unvisited
from tvm_ext.tuners.samplers.diversity import diverse
from tvm_ext.tuners.samplers.synthesis import mode, synthesize
from tvm_ext.tuners.space import ConfigSpace, Knob

SAMPLERS: dict[str, Sampler] = {
    "greedy": GreedySampler(),
    "diversity": DiversitySampler(),
    "adaptive": AdaptiveSampler(),
    "adaptive, step 1": AdaptiveSampler(step=1),
    "adaptive, medoids": AdaptiveSampler(representative="medoid"),
    "adaptive, medoids by features": AdaptiveSampler(representative="medoid", distance="features"),
    "adaptive, best by features": AdaptiveSampler(representative="best", distance="features"),
    "adaptive, one synthesised": AdaptiveSampler(representative="best", distance="features", synthesized=1),
    "adaptive, centres by features": AdaptiveSampler(distance="features"),
    "adaptive, dropped": AdaptiveSampler(synthesis=False),
    "reduced": ReducedSampler(),
    "reduced, random": ReducedSampler("random"),
}


@pytest.mark.parametrize("name", SAMPLERS)
@settings(max_examples=30, deadline=None)
@given(space=small_spaces(), seed=st.integers(0, 2**32 - 1), count=st.integers(1, 64))
def test_samples_are_new_and_different(name: str, space: ConfigSpace, seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    history = History()
    for vector in random_unvisited(space, space.size // 2, history.visited, rng).tolist():
        history.record(tuple(vector), bool(rng.random() < 0.5))
    candidates = random_unvisited(space, 64, set(history.visited), rng)
    scores = np.sort(rng.random(len(candidates)))[::-1]
    before = set(history.visited)
    chosen = SAMPLERS[name].sample(space, candidates, scores, count, history, rng)
    keys = space.keys(chosen)
    assert len(keys) == len(set(keys)) <= count
    assert not set(keys) & before
    assert history.visited == before
    assert len(keys) > 0 or not len(candidates) or name == "adaptive, dropped"
    assert ((chosen >= 0) & (chosen < space.radices)).all()


def _runs(step: int, rng: np.random.Generator) -> list[int]:
    space, counts = convolution_space(), []
    for _ in range(20):
        middles = space.random(rng, 12)
        near = middles[rng.integers(0, 12, 64)] + rng.integers(-2, 3, (64, len(space.knobs)))
        vectors = np.clip(near, 0, space.radices - 1)
        counts.append(len(AdaptiveSampler(step=step).clusters(space, vectors, 64, rng)[0]))
    return counts


def test_step_1_is_degenerate_and_step_8_is_not() -> None:
    rng = np.random.default_rng(0)
    assert np.mean(_runs(1, rng)) < 10  # as printed: stops at 9 or 10 clusters
    assert 12 < np.mean(_runs(8, rng)) < 48


def _blobs(rng: np.random.Generator) -> tuple[ConfigSpace, np.ndarray]:
    """Ten blobs of six candidates that differ in the last knob alone."""
    space = ConfigSpace([Knob("a", tuple(range(200))), Knob("b", tuple(range(200))), Knob("c", tuple(range(60)))])
    places = rng.permutation(100)[:10]
    corners = np.stack([places // 10 * 20, places % 10 * 20, np.zeros(10, dtype=np.int64)], axis=1)
    return space, rng.permutation(np.concatenate([corners + np.array([0, 0, last]) for last in range(6)]))


@pytest.mark.parametrize("distance", ["choices", "features"])
def test_the_best_of_each_cluster_is_measured(distance: Literal["choices", "features"]) -> None:
    """Candidates are ranked, so that the first of each blob is its best; k-means may divide or join some blobs."""
    rng = np.random.default_rng(0)
    space, vectors = _blobs(rng)
    scores = np.linspace(1.0, 0.5, len(vectors))
    sampler = AdaptiveSampler(first=2, threshold=0.0, representative="best", distance=distance)
    shares = []
    for _ in range(10):
        chosen = sampler.sample(space, vectors, scores, 10, History(), rng)
        first = {tuple(row[:2]): tuple(row) for row in vectors[::-1].tolist()}
        kept = [tuple(row) for row in chosen.tolist()]
        assert tuple(vectors[0].tolist()) in kept
        shares.append(np.mean([row in kept for row in first.values()]))
    assert np.mean(shares) > 0.7


def test_synthesis_takes_the_place_of_the_least_cluster() -> None:
    rng = np.random.default_rng(0)
    space, vectors = _blobs(rng)
    scores = np.linspace(1.0, 0.5, len(vectors))

    def sample(synthesized: int) -> list[list[int]]:
        sampler = AdaptiveSampler(representative="best", synthesized=synthesized)
        return sampler.sample(space, vectors, scores, 32, History(), np.random.default_rng(1)).tolist()

    plain, with_mode = sample(0), sample(1)
    place = {tuple(row): rank for rank, row in enumerate(vectors.tolist())}
    least = max(plain, key=lambda row: place[tuple(row)])
    assert len(with_mode) == len(plain)
    assert [row for row in plain if row not in with_mode] == [least]
    assert mode(vectors, History()).tolist() in with_mode


def test_mode_leaves_out_choices_that_only_failed() -> None:
    candidates = np.array([[1, 0], [1, 0], [1, 2], [2, 2], [2, 0]])
    history = History()
    assert mode(candidates, history).tolist() == [1, 0]
    history.record((1, 2), False)
    assert mode(candidates, history).tolist() == [2, 0]
    history.record((1, 1), True)
    assert mode(candidates, history).tolist() == [1, 0]


@settings(max_examples=30, deadline=None)
@given(space=small_spaces(), seed=st.integers(0, 2**32 - 1))
def test_synthesis_finds_something_new_while_there_is_something(space: ConfigSpace, seed: int) -> None:
    rng = np.random.default_rng(seed)
    candidates = space.random(rng, 20)
    taken: set[int] = set()
    first = synthesize(space, candidates, candidates[:3], taken, History(), rng)
    assert first is not None
    assert first.tolist() == mode(candidates, History()).tolist()
    for number in range(1, min(space.size, 30)):
        assert len(taken) == number
        assert synthesize(space, candidates, candidates[:3], taken, History(), rng) is not None
    if space.size <= 30:
        assert synthesize(space, candidates, candidates[:3], taken, History(), rng) is None


def test_diversity_is_greedy_on_a_submodular_objective() -> None:
    """Greedy selection reaches at least 1 - 1/e of the best subset, found by brute force."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        vectors, scores = rng.integers(0, 3, (8, 3)), rng.random(8)

        def value(
            rows: tuple[int, ...] | list[int], vectors: np.ndarray = vectors, scores: np.ndarray = scores
        ) -> float:
            new = sum(len(set(vectors[list(rows), knob].tolist())) for knob in range(3))
            return float(scores[list(rows)].sum()) + 0.3 * new

        best = max(value(rows) for rows in itertools.combinations(range(8), 4))
        chosen = diverse(vectors, scores, 4, 0.3)
        assert len(set(chosen)) == 4
        assert value(chosen) >= (1 - np.exp(-1)) * best
    assert diverse(vectors, scores, 3, 0.0) == np.argsort(-scores)[:3].tolist()
