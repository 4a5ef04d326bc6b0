"""Lloyd's k-means, and the knee of its loss."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

ITERATIONS = 100


def kmeans(points: np.ndarray, clusters: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    """Cluster points (n × d); centres begin at points far from one another (k-means++).

    Returns
    -------
    tuple
        Centres (clusters × d), the cluster of each point (n), the sum of squared distances to the centres. An empty
        cluster takes over the point that is farthest from its centre.

    References
    ----------
    Lloyd, "Least squares quantization in PCM", 1982; Arthur and Vassilvitskii, "k-means++", SODA 2007.
    """
    points = points.astype(np.float64)
    clusters = min(clusters, len(points))
    centres = points[[int(rng.integers(len(points)))]]
    distance = ((points - centres[0]) ** 2).sum(axis=1)
    while len(centres) < clusters:
        total = distance.sum()
        nearest = int(rng.choice(len(points), p=distance / total)) if total > 0 else int(rng.integers(len(points)))
        centres = np.concatenate([centres, points[[nearest]]])
        distance = np.minimum(distance, ((points - points[nearest]) ** 2).sum(axis=1))
    squares = (points**2).sum(axis=1)
    labels = np.full(len(points), -1)
    for _ in range(ITERATIONS):
        distances = squares[:, None] - 2.0 * points @ centres.T + (centres**2).sum(axis=1)
        assigned = distances.argmin(axis=1)
        counts = np.bincount(assigned, minlength=clusters)
        for empty in np.nonzero(counts == 0)[0]:
            movable = counts[assigned] > 1
            own = distances[np.arange(len(points)), assigned]
            farthest = int(np.where(movable, own, -np.inf).argmax())
            counts[assigned[farthest]] -= 1
            assigned[farthest] = empty
            counts[empty] = 1
        if (assigned == labels).all():
            break
        labels = assigned
        membership = labels == np.arange(clusters)[:, None]
        centres = membership.astype(np.float64) @ points / membership.sum(axis=1, keepdims=True)
    return centres, labels, float(((points - centres[labels]) ** 2).sum())


def knee(losses: Iterable[float], threshold: float) -> int:
    """Give the position of the first loss that is no ``threshold`` times less than the one before; the last if none.

    Losses are consumed no further than needed.
    """
    previous, position = np.inf, -1
    for position, loss in enumerate(losses):  # noqa: B007
        if threshold * loss >= previous:
            break
        previous = loss
    return position
