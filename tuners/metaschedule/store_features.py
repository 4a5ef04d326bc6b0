"""TVM's per-store features as features of a configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tvm_ext.tuners.space import Vector

FLOATING_POINT = 7
"""So many of the features count floating-point operations, in logarithms; they come first."""


class StoreFeatures:
    """Schedules a configuration and describes its stores: sum and maximum over them of each of TVM's 164 features.

    With ``busiest``, those of the store with the most floating-point arithmetic come after them.

    Parameters
    ----------
    schedule : callable
        Makes the schedule of a vector, postprocessed; None when it cannot.
    context : TuneContext
        Whose target the features are for.
    busiest : bool

    References
    ----------
    Features of Zheng et al., "Ansor: Generating High-Performance Tensor Programs for Deep Learning", OSDI 2020,
    appendix B, as TVM extracts them.
    """

    def __init__(self, schedule: Callable[[Vector], Schedule | None], context: Any, busiest: bool = False) -> None:
        self._schedule, self._context, self._busiest = schedule, context, busiest
        self._extractor = ms.feature_extractor.PerStoreFeature()

    def __call__(self, vector: Vector) -> np.ndarray | None:
        """Give the features (328, or 492) of a configuration; None when it cannot be scheduled."""
        schedule = self._schedule(vector)
        if schedule is None:
            return None
        candidate = ms.search_strategy.MeasureCandidate(schedule, [])
        (stores,) = self._extractor.extract_from(self._context, [candidate])
        rows: np.ndarray = stores.numpy()
        return summary(rows, self._busiest) if len(rows) else None


def summary(rows: np.ndarray, busiest: bool = False) -> np.ndarray:
    """Describe a loop nest by the features of its stores (n x 164): sum, maximum, and perhaps the busiest store's."""
    parts = [rows.sum(axis=0), rows.max(axis=0)]
    if busiest:
        parts.append(rows[np.argmax(rows[:, :FLOATING_POINT].sum(axis=1))])
    return np.concatenate(parts)
