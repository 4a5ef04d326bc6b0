"""Initialisers: the configurations that are measured before there is a cost model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tvm_ext.tuners.samplers.base import random_unvisited
from tvm_ext.tuners.space import ConfigSpace


class Initialiser(Protocol):
    """Proposes first configurations."""

    def propose(self, space: ConfigSpace, count: int, taken: set[int], rng: np.random.Generator) -> np.ndarray:
        """Give up to ``count`` vectors (n × knobs) that are not in ``taken``, and add them."""


@dataclass
class RandomInitialiser:
    """Uniformly random configurations."""

    def propose(self, space: ConfigSpace, count: int, taken: set[int], rng: np.random.Generator) -> np.ndarray:
        """See :class:`Initialiser`."""
        return random_unvisited(space, count, taken, rng)


@dataclass
class SpaceFillingInitialiser:
    """Configurations far from one another: each in turn is the farthest of ``pool`` times as many random ones.

    References
    ----------
    Johnson, Moore and Ylvisaker, "Minimax and maximin distance designs", 1990 (maximin, taken greedily).
    """

    pool: int = 8

    def propose(self, space: ConfigSpace, count: int, taken: set[int], rng: np.random.Generator) -> np.ndarray:
        """See :class:`Initialiser`."""
        pool = random_unvisited(space, self.pool * count, set(taken), rng)
        chosen = farthest_points(pool / np.maximum(space.radices - 1, 1), count) if len(pool) else []
        vectors = pool[chosen]
        taken.update(space.keys(vectors))
        return vectors


def farthest_points(points: np.ndarray, count: int) -> list[int]:
    """Choose ``count`` rows of points (n × d), the first row first, then always the one farthest from all chosen."""
    chosen = [0]
    distance = ((points - points[0]) ** 2).sum(axis=1)
    while len(chosen) < min(count, len(points)):
        distance[chosen[-1]] = -1.0
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, ((points - points[chosen[-1]]) ** 2).sum(axis=1))
    return chosen
