from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_ext.tuners.samplers.kmeans import kmeans, knee


def test_planted_clusters_are_recovered() -> None:
    rng = np.random.default_rng(0)
    planted = np.repeat(np.array([[0, 0], [100, 0], [0, 100], [100, 100], [50, 200]]), 20, axis=0)
    points = planted + rng.normal(size=planted.shape)
    centres, labels, loss = kmeans(points, 5, rng)
    assert len(centres) == 5
    assert all(len(set(labels[start : start + 20])) == 1 for start in range(0, 100, 20))
    assert loss < 2 * 2 * 100


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_centres_are_means_and_points_go_to_the_nearest(count: int, clusters: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 20, (count, 3)).astype(float)
    points += rng.normal(size=points.shape) * 1e-3
    centres, labels, loss = kmeans(points, clusters, rng)
    assert len(centres) == min(clusters, count)
    assert set(labels) == set(range(len(centres)))
    for cluster in range(len(centres)):
        np.testing.assert_allclose(centres[cluster], points[labels == cluster].mean(axis=0))
    distances = ((points[:, None] - centres[None]) ** 2).sum(axis=2)
    own = distances[np.arange(count), labels]
    np.testing.assert_allclose(own, distances.min(axis=1), atol=1e-6)
    np.testing.assert_allclose(loss, own.sum(), atol=1e-6)


def test_loss_is_that_of_scikit_learn() -> None:
    cluster = pytest.importorskip("sklearn.cluster")
    rng = np.random.default_rng(1)
    points = rng.integers(0, 80, (64, 8))
    ours = min(kmeans(points, 16, rng)[2] for _ in range(10))
    theirs = cluster.KMeans(16, n_init=10, random_state=0).fit(points).inertia_
    assert ours == pytest.approx(theirs, rel=0.1)


def test_equal_points_make_no_trouble() -> None:
    centres, _, loss = kmeans(np.ones((10, 2)), 4, np.random.default_rng(0))
    assert (centres == 1).all()
    assert loss == 0


@pytest.mark.parametrize(
    ("losses", "position"),
    [
        ([100, 30, 20, 15], 2),  # 100 -> 30 is a fall of more than 2.5 times, 30 -> 20 is not
        ([100, 90], 1),
        ([100, 30, 10, 3], 3),  # falls fast to the end
        ([100, 40, 1], 1),  # exactly 2.5 times is the knee
        ([5], 0),
        ([0, 0], 1),
    ],
)
def test_knee(losses: list[float], position: int) -> None:
    assert knee(losses, 2.5) == position
