"""Acquisition functions: what a candidate is worth, by the mean and the spread of what a cost model predicts of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tvm_ext.errors import OptionError, candidates

CONFIDENCE = 1.0
"""Standard deviations that the confidence bound lies away from the mean."""

FLAT = 1e-12
"""Spreads below it are none: what is known has no improvement but that of its mean."""

Acquisition = Callable[[np.ndarray, np.random.Generator], np.ndarray]
"""From scores that each member predicts (members x n), relative to the best measured, to an order of all candidates."""


def expected_improvement(drawn: np.ndarray) -> np.ndarray:
    """Give by how much candidates (n) are expected to be better than the best measured, whose score is 1.

    References
    ----------
    Jones, Schonlau and Welch, "Efficient Global Optimization of Expensive Black-Box Functions", Journal of Global
    Optimization 13, 1998, equation 15.
    """
    mean, spread = drawn.mean(axis=0), drawn.std(axis=0)
    gain = mean - 1.0
    known = spread < FLAT
    distance = gain / np.where(known, 1.0, spread)
    density = np.exp(-0.5 * distance**2) / np.sqrt(2.0 * np.pi)
    return np.where(known, np.maximum(gain, 0.0), gain * _normal(distance) + spread * density)


def confidence_bound(drawn: np.ndarray) -> np.ndarray:
    """Give the upper confidence bounds of scores (n); of times they are the lower ones.

    References
    ----------
    Srinivas, Krause, Kakade and Seeger, "Gaussian Process Optimization in the Bandit Setting", ICML 2010.
    """
    return drawn.mean(axis=0) + CONFIDENCE * drawn.std(axis=0)


def thompson(drawn: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Order candidates: each place goes to the best of what is left by a member that is drawn for it.

    References
    ----------
    Chapelle and Li, "An Empirical Evaluation of Thompson Sampling", NeurIPS 2011.
    """
    members, count = drawn.shape
    rankings = np.argsort(-drawn, axis=1, kind="stable")
    at, left, order = np.zeros(members, dtype=np.int64), np.ones(count, dtype=bool), []
    for member in rng.integers(0, members, size=(count,)):
        while not left[rankings[member, at[member]]]:
            at[member] += 1
        chosen = rankings[member, at[member]]
        left[chosen] = False
        order.append(chosen)
    return np.array(order, dtype=np.int64)


def _normal(values: np.ndarray) -> np.ndarray:
    """Give the distribution function of the standard normal (n)."""
    from math import erf, sqrt

    return np.array([0.5 * (1.0 + erf(value / sqrt(2.0))) for value in values.tolist()])


def _by(worth: Callable[[np.ndarray], np.ndarray]) -> Acquisition:
    """Order candidates by their worth, and equals, as what is known not to improve, by their mean."""
    return lambda drawn, rng: np.lexsort((-drawn.mean(axis=0), -worth(drawn)))


ACQUISITIONS: Mapping[str, Acquisition] = {
    "expected_improvement": _by(expected_improvement),
    "confidence_bound": _by(confidence_bound),
    "thompson": thompson,
}


def check_acquisition(name: Any) -> str:
    """Give the name of an acquisition function.

    Raises
    ------
    OptionError
        If there is none of that name; the message lists those there are.
    """
    if not isinstance(name, str) or name not in ACQUISITIONS:
        raise OptionError(f"unknown acquisition {name!r}, {candidates(str(name), ACQUISITIONS)}")
    return name
