"""The contract of a sampler, and what it may know of the past."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tvm_ext.tuners.space import ConfigSpace


@dataclass
class History:
    """Every configuration suggested or measured so far.

    Attributes
    ----------
    visited : set of int
        Keys of the configurations that were suggested or measured.
    valid, failed : dict
        For each (knob, choice), in how many valid and in how many failed measurements it took part.
    """

    visited: set[int] = field(default_factory=set)
    valid: dict[tuple[int, int], int] = field(default_factory=dict)
    failed: dict[tuple[int, int], int] = field(default_factory=dict)

    def record(self, vector: tuple[int, ...], is_valid: bool) -> None:
        """Count one measurement."""
        counts = self.valid if is_valid else self.failed
        for pair in enumerate(vector):
            counts[pair] = counts.get(pair, 0) + 1

    def only_failed(self, knob: int, choice: int) -> bool:
        """Whether a choice was measured, and never in a configuration that works."""
        return (knob, choice) in self.failed and (knob, choice) not in self.valid


class Sampler(Protocol):
    """Chooses what is measured."""

    def sample(
        self,
        space: ConfigSpace,
        vectors: np.ndarray,
        scores: np.ndarray,
        count: int,
        history: History,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """Give at most ``count`` vectors (m × knobs), each once and none visited.

        Parameters
        ----------
        vectors, scores : array
            Candidates (n × knobs), best predicted first, none visited, and their scores (n).
        """


def unvisited(space: ConfigSpace, vectors: np.ndarray, taken: set[int]) -> np.ndarray:
    """Drop vectors that are in ``taken`` or came before; those that stay are added to ``taken``."""
    kept = []
    for key, vector in zip(space.keys(vectors), vectors, strict=True):
        if key not in taken:
            taken.add(key)
            kept.append(vector)
    return np.array(kept, dtype=np.int64).reshape(len(kept), len(space.knobs))


def random_unvisited(space: ConfigSpace, count: int, taken: set[int], rng: np.random.Generator) -> np.ndarray:
    """Draw up to ``count`` vectors that are not in ``taken``; they are added to it.

    Fewer come back only when the space holds no more.
    """
    found: list[np.ndarray] = []
    missing = count
    for _ in range(20):
        if missing <= 0 or len(taken) >= space.size:
            break
        new = unvisited(space, space.random(rng, 2 * missing), taken)
        # What is too many was marked as taken all the same: give it back.
        for key in space.keys(new[missing:]):
            taken.discard(key)
        found.append(new[:missing])
        missing -= len(new[:missing])
    if missing > 0 and len(taken) < space.size and space.size <= 1_000_000:
        rest = np.array([index for index in range(space.size) if index not in taken])
        chosen = rng.permutation(rest)[:missing]
        taken.update(chosen.tolist())
        found.append(np.array([space.vector(int(index)) for index in chosen], dtype=np.int64))
    return np.concatenate(found) if found else np.empty((0, len(space.knobs)), dtype=np.int64)
