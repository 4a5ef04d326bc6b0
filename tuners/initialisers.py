"""Initialisers: the configurations that are measured before there is a cost model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tvm_ext.tuners.presampling import farthest_in_turn, presample
from tvm_ext.tuners.samplers.base import random_unvisited, unvisited
from tvm_ext.tuners.space import ConfigSpace, Vector
from tvm_ext.tuners.validity import Validity


@dataclass(frozen=True)
class Start:
    """What first configurations are chosen from.

    Attributes
    ----------
    space : ConfigSpace
    taken : set of int
        Indices of configurations that are not to be proposed; those that are proposed are added.
    rng : numpy.random.Generator
    validity : Validity, optional
        Tells what works; not every initialiser asks.
    """

    space: ConfigSpace
    taken: set[int]
    rng: np.random.Generator
    validity: Validity | None = None

    def random(self, count: int) -> np.ndarray:
        """Draw up to ``count`` vectors (n x knobs)."""
        return random_unvisited(self.space, count, self.taken, self.rng)

    def take(self, vectors: np.ndarray) -> np.ndarray:
        """Note that vectors (n x knobs) are proposed, and give them back."""
        self.taken.update(self.space.keys(vectors))
        return vectors


class Initialiser(Protocol):
    """Proposes first configurations."""

    def propose(self, count: int, start: Start) -> np.ndarray:
        """Give up to ``count`` vectors (n x knobs) that are not taken, and take them."""


@dataclass
class RandomInitialiser:
    """Uniformly random configurations."""

    def propose(self, count: int, start: Start) -> np.ndarray:
        """See :class:`Initialiser`."""
        return start.random(count)


@dataclass
class SpaceFillingInitialiser:
    """Configurations far from one another: each in turn is the farthest of ``pool`` times as many random ones.

    References
    ----------
    Johnson, Moore and Ylvisaker, "Minimax and maximin distance designs", 1990 (maximin, taken greedily).
    """

    pool: int = 8

    def propose(self, count: int, start: Start) -> np.ndarray:
        """See :class:`Initialiser`."""
        space = start.space
        pool = random_unvisited(space, self.pool * count, set(start.taken), start.rng)
        chosen = farthest_points(pool / np.maximum(space.radices - 1, 1), count) if len(pool) else []
        return start.take(pool[chosen])


@dataclass
class LocalInitialiser:
    """Changes of single knobs of the default configuration, and configurations far from one another.

    A schedule rule's own choice is a good one: what is better is often near it. Knobs are changed in turns, each to the
    choices first whose features differ least. A space without a default is filled.

    Attributes
    ----------
    share : float
        Of the configurations, so many are changes of the default.
    """

    share: float = 0.5

    def propose(self, count: int, start: Start) -> np.ndarray:
        """See :class:`Initialiser`."""
        space = start.space
        near = np.empty((0, len(space.knobs)), dtype=np.int64)
        if space.default is not None:
            near = unvisited(space, _changes_in_turns(space, space.default, start.rng), set(start.taken))
            near = start.take(near[: round(self.share * count)])
        return np.concatenate([near, SpaceFillingInitialiser().propose(count - len(near), start)])


@dataclass
class ValidityInitialiser:
    """Some configurations that work and some that do not, of either kind those that are far from one another.

    An oracle is asked beforehand, first of all around what works. A cost model needs both kinds: those that do not work
    to learn the limits, those that do to rank them. Without an oracle configurations are random.

    Attributes
    ----------
    samples : int
        Configurations that the oracle is asked for.
    parallel : int
        How many of them at a time.
    share : float
        Of the first configurations, so many work, if there are as many.
    maximise : bool
        Whether distances decide which are taken; else they are random ones of those that were asked for.

    References
    ----------
    Rieber, dissertation, Heidelberg University, 2023, section 5.2; numbers: section 5.3.1.
    """

    samples: int = 1000
    parallel: int = 32
    share: float = 0.5
    maximise: bool = True

    def propose(self, count: int, start: Start) -> np.ndarray:
        """See :class:`Initialiser`."""
        space, validity, rng = start.space, start.validity, start.rng
        if validity is None or not validity.has_oracle or count < 1 or not self._presampled(space, validity, rng):
            return start.random(count)
        keys = sorted(validity.answers)
        vectors, works = space.vectors(keys), np.array([validity.answers[key] for key in keys])
        free = np.array([key not in start.taken for key in keys])
        kinds = [vectors[free & works], vectors[free & ~works]]
        wanted = round(self.share * count)
        # What one kind lacks the other gives.
        first = max(min(wanted, len(kinds[0])), min(count - len(kinds[1]), len(kinds[0])))
        chosen = [
            rows[self._choose(rows, number, rng)] for rows, number in zip(kinds, (first, count - first), strict=True)
        ]
        found = start.take(np.concatenate(chosen))
        return np.concatenate([found, start.random(count - len(found))])

    def _presampled(self, space: ConfigSpace, validity: Validity, rng: np.random.Generator) -> bool:
        """Ask the oracle, unless it was asked before; tells whether it has answered."""
        if len(validity.answers) >= min(self.samples, space.size):
            return True
        return presample(space, validity, self.samples, self.parallel, rng) is not None

    def _choose(self, rows: np.ndarray, count: int, rng: np.random.Generator) -> list[int]:
        if count <= 0:
            return []
        return farthest_in_turn(rows, count, rng) if self.maximise else rng.permutation(len(rows))[:count].tolist()


@dataclass
class EnumeratingInitialiser:
    """Random ones of all configurations that work, as far as the oracle can be asked for all.

    Where validity is known in closed form, every configuration of a space is asked for in milliseconds. What does not
    work need not be measured then, to learn the limits neither, and a cost model only ranks what works. Where that
    would take the oracle too long, or the space is too large, it is asked as by :class:`ValidityInitialiser`.

    Attributes
    ----------
    most : int
        Configurations of the largest space that is enumerated.
    seconds : float
        What the oracle may take for all of them, as the first :attr:`first` tell.
    """

    most: int = 1 << 17
    seconds: float = 60.0
    first: int = 1024

    def propose(self, count: int, start: Start) -> np.ndarray:
        """See :class:`Initialiser`."""
        space, validity = start.space, start.validity
        if validity is None or not validity.has_oracle or count < 1:
            return start.random(count)
        if not self.enumerate(space, validity, start.rng):
            return ValidityInitialiser(share=1.0, maximise=False).propose(count, start)
        free = [key for key in validity.known_to_work() if key not in start.taken]
        found = start.take(space.vectors(start.rng.permutation(free).astype(np.int64)[:count]))
        return np.concatenate([found, start.random(count - len(found))])

    def enumerate(self, space: ConfigSpace, validity: Validity, rng: np.random.Generator) -> bool:
        """Ask for everything; tells whether that was done, now or before."""
        if space.size > self.most:
            return False
        if len(validity.answers) < space.size:
            asked, seconds = validity.asked, validity.seconds
            if validity.ask(space.vectors(rng.permutation(space.size)[: self.first])) is None:
                return False
            asked = validity.asked - asked
            if asked and (validity.seconds - seconds) / asked * space.size > self.seconds:
                return False
        return validity.ask(space.vectors(np.arange(space.size))) is not None


def _changes_in_turns(space: ConfigSpace, vector: Vector, rng: np.random.Generator) -> np.ndarray:
    """Vectors (n x knobs) that differ in one knob: the nearest choice of every knob, the next nearest, and so on."""
    turns = []
    for position, features in enumerate(space.choice_features):
        distance = ((features - features[vector[position]]) ** 2).sum(axis=1)
        order = rng.permutation(len(features))
        order = order[np.argsort(distance[order], kind="stable")]
        turns.append([(rank, position, choice) for rank, choice in enumerate(order[order != vector[position]])])
    knobs = rng.permutation(len(space.knobs))
    ranked = sorted((rank, knobs[position], position, choice) for turn in turns for rank, position, choice in turn)
    rows = np.tile(np.array(vector, dtype=np.int64), (len(ranked), 1))
    for row, (_, _, position, choice) in zip(rows, ranked, strict=True):
        row[position] = choice
    return rows


def farthest_points(points: np.ndarray, count: int) -> list[int]:
    """Choose ``count`` rows of points (n x d), the first row first, then always the one farthest from all chosen."""
    chosen = [0]
    distance = ((points - points[0]) ** 2).sum(axis=1)
    while len(chosen) < min(count, len(points)):
        distance[chosen[-1]] = -1.0
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, ((points - points[chosen[-1]]) ** 2).sum(axis=1))
    return chosen
