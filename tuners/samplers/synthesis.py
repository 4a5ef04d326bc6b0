"""Sample synthesis: a new configuration out of the most frequent choices of the candidates."""

from __future__ import annotations

import numpy as np

from tvm_ext.tuners.samplers.base import History, random_unvisited
from tvm_ext.tuners.space import ConfigSpace


def synthesize(
    space: ConfigSpace,
    candidates: np.ndarray,
    cluster: np.ndarray,
    taken: set[int],
    history: History,
    rng: np.random.Generator,
) -> np.ndarray | None:
    """Make one configuration that is not in ``taken`` and add it.

    In turn: the mode of all candidates, the mode of the cluster, the mode with the next most frequent choice in the
    least decided knobs, a random configuration. Choices that only ever failed do not count.

    Parameters
    ----------
    candidates, cluster : array
        All candidates, and those of the cluster whose centre is replaced (n × knobs).

    Returns
    -------
    array or None
        A vector (knobs); None when every configuration of the space is taken.
    """
    for vector in _modes(candidates, cluster, history):
        (key,) = space.keys(vector[None])
        if key not in taken:
            taken.add(key)
            return vector
    drawn = random_unvisited(space, 1, taken, rng)
    return drawn[0] if len(drawn) else None


def frequent_choices(candidates: np.ndarray, knob: int, history: History) -> list[tuple[int, int]]:
    """Choices of a knob with their number of occurrences, most frequent first, smaller choice first among equals.

    Choices that were only seen in failed measurements are left out, unless there are no others.
    """
    choices, counts = np.unique(candidates[:, knob], return_counts=True)
    pairs = sorted(zip(choices.tolist(), counts.tolist(), strict=True), key=lambda pair: (-pair[1], pair[0]))
    return [pair for pair in pairs if not history.only_failed(knob, pair[0])] or pairs


def mode(candidates: np.ndarray, history: History) -> np.ndarray:
    """Most frequent choice of each knob (knobs)."""
    knobs = range(candidates.shape[1])
    return np.array([frequent_choices(candidates, knob, history)[0][0] for knob in knobs], dtype=np.int64)


def _modes(candidates: np.ndarray, cluster: np.ndarray, history: History) -> list[np.ndarray]:
    base = mode(candidates, history)
    modes = [base]
    if len(cluster):
        modes.append(mode(cluster, history))
    ranked = [frequent_choices(candidates, knob, history) for knob in range(candidates.shape[1])]
    # Least decided first: where the second choice is nearly as frequent as the first.
    alternatives = [(pairs[0][1] - pair[1], knob, pair[0]) for knob, pairs in enumerate(ranked) for pair in pairs[1:]]
    for _, knob, choice in sorted(alternatives):
        changed = base.copy()
        changed[knob] = choice
        modes.append(changed)
    return modes
