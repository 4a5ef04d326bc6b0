"""What is expected of configurations before any is measured, as a cost model hears it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tvm_ext.errors import first_line
from tvm_ext.tuners.shared_model import SLOWEST
from tvm_ext.tuners.space import ConfigSpace

SAMPLES = 4096
"""Of so many random configurations the least cost is the one that others are compared with."""

FASTEST = 1.0
"""Logarithm of how much faster than the best of the samples a cost may say that a configuration is."""


@dataclass
class Expectation:
    """Logarithms of speeds as costs of a space say, relative to the fastest of a sample.

    A cost that fails is not asked any more, and all configurations are expected to be alike.

    Attributes
    ----------
    cost : callable
        From vectors (n x knobs) to costs (n); what is no positive number is expected to be slow.
    slowest : float
        Logarithm below which all are expected to be equally slow. The fastest of the sample may be one that does not
        work, where costs do not tell.
    notes : list of str
        Why the cost is not asked any more.
    """

    cost: Callable[[np.ndarray], np.ndarray]
    slowest: float = SLOWEST
    notes: list[str] = field(default_factory=list)
    _reference: float | None = None

    def speeds(self, space: ConfigSpace, vectors: np.ndarray) -> np.ndarray:
        """Give the logarithms (n) of vectors (n x knobs) of the space that the costs are of."""
        if self._reference is None:
            sample = self._costs(space.random(np.random.default_rng(0), SAMPLES))
            finite = sample[np.isfinite(sample)]
            self._reference = float(finite.min()) if finite.size else 1.0
        with np.errstate(divide="ignore", invalid="ignore"):
            speeds = np.log(self._reference) - np.log(self._costs(vectors))
        return np.clip(np.nan_to_num(speeds, nan=self.slowest), self.slowest, FASTEST).astype(np.float32)

    def _costs(self, vectors: np.ndarray) -> np.ndarray:
        """Ask for the costs (n) of vectors; none of them is a number where the cost fails, or has failed."""
        unknown = np.full(len(vectors), np.nan)
        if self.notes:
            return unknown
        try:
            costs = np.asarray(self.cost(vectors.copy()))  # which it may change
            if costs.shape != (len(vectors),) or not np.issubdtype(costs.dtype, np.number):
                found = f"{costs.dtype}{list(costs.shape)}"
                raise ValueError(f"it gave {found} for {len(vectors)} configurations, expected as many numbers")
            return costs.astype(np.float64)
        except Exception as error:  # whatever goes wrong in a function of a rule's, or of a user's
            self.notes.append(
                f"what is expected of configurations cannot be heard ({type(error).__name__}: {first_line(error)}); "
                "the tuner goes on without it"
            )
            return unknown
