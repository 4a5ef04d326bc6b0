"""Find configurations that work before any is measured, and choose first ones that are unlike each other."""

from __future__ import annotations

import numpy as np

from tvm_ext.tuners.samplers.base import random_unvisited
from tvm_ext.tuners.space import ConfigSpace
from tvm_ext.tuners.validity import Validity


def presample(
    space: ConfigSpace, validity: Validity, samples: int, parallel: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray] | None:
    """Ask the oracle for configurations around those that work, and for random ones.

    What works lies together: a neighbour, one step in one knob, of a configuration that works is likely to work, too.
    For each that does not, a random one is asked for, so that other clusters are found.

    Parameters
    ----------
    samples : int
        How many are asked for, those of the space at most.
    parallel : int
        How many of them at a time.

    Returns
    -------
    vectors, works : array
        What was asked for (n x knobs), and the answers (n); None when the oracle fails.

    References
    ----------
    Rieber, dissertation, Heidelberg University, 2023, algorithm 4. There the candidates of a round are those of the
    round before alone; here what one round finds and does not take is kept, so that it never runs out of neighbours.
    """
    wanted = min(samples, space.size)
    seen: set[int] = set()  # asked for, or a candidate
    batch = random_unvisited(space, min(parallel, wanted), seen, rng)
    vectors: list[np.ndarray] = []
    answers: list[np.ndarray] = []
    candidates = np.empty((0, len(space.knobs)), dtype=np.int64)
    while wanted:
        works = validity.ask(batch)
        if works is None:
            return None
        vectors.append(batch)
        answers.append(works)
        wanted -= len(batch)
        around = [row for vector in batch[works] for row in space.neighbours(vector)]
        new = []
        for key, row in zip(space.keys(np.array(around, dtype=np.int64)) if around else (), around, strict=True):
            if key not in seen:
                seen.add(key)
                new.append(row)
        strangers = random_unvisited(space, int((~works).sum()), seen, rng)
        found = np.array(new, dtype=np.int64).reshape(len(new), len(space.knobs))
        candidates = np.concatenate([candidates, found, strangers])
        count = min(parallel, wanted)
        if len(candidates) < count:
            candidates = np.concatenate([candidates, random_unvisited(space, count - len(candidates), seen, rng)])
        chosen = rng.permutation(len(candidates))[:count]
        batch = candidates[chosen]
        candidates = np.delete(candidates, chosen, axis=0)
    return np.concatenate(vectors), np.concatenate(answers)


def farthest_in_turn(vectors: np.ndarray, count: int, rng: np.random.Generator) -> list[int]:
    """Choose rows of vectors (n x knobs) far from those chosen before, by steps of knobs (Manhattan distance).

    The first is random. Then rows are gone through in order, and one takes the place of the candidate when both its
    mean and its least distance from those chosen are larger than the candidate's.

    References
    ----------
    Rieber, dissertation, Heidelberg University, 2023, algorithm 5.
    """
    if not len(vectors):
        return []
    chosen = [int(rng.integers(len(vectors)))]
    distance = np.abs(vectors - vectors[chosen[0]]).sum(axis=1)
    least, total = distance.copy(), distance.copy()
    while len(chosen) < min(count, len(vectors)):
        best = -1
        best_total = best_least = 0
        for row, (mean, low) in enumerate(zip(total.tolist(), least.tolist(), strict=True)):
            if mean > best_total and low > best_least:
                best, best_total, best_least = row, mean, low
        chosen.append(best)
        distance = np.abs(vectors - vectors[best]).sum(axis=1)
        least, total = np.minimum(least, distance), total + distance
    return chosen
