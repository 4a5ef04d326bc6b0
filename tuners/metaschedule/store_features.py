"""TVM's per-store features as features of a configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tvm_ext.tuners.space import Vector


class StoreFeatures:
    """Schedules a configuration and describes its stores: sum and maximum over them of each of TVM's 164 features.

    Parameters
    ----------
    schedule : callable
        Makes the schedule of a vector, postprocessed; None when it cannot.
    context : TuneContext
        Whose target the features are for.

    References
    ----------
    Features of Zheng et al., "Ansor: Generating High-Performance Tensor Programs for Deep Learning", OSDI 2020,
    appendix B, as TVM extracts them.
    """

    def __init__(self, schedule: Callable[[Vector], Schedule | None], context: Any) -> None:
        self._schedule, self._context = schedule, context
        self._extractor = ms.feature_extractor.PerStoreFeature()

    def __call__(self, vector: Vector) -> np.ndarray | None:
        """Give the features (328) of a configuration; None when it cannot be scheduled."""
        schedule = self._schedule(vector)
        if schedule is None:
            return None
        candidate = ms.search_strategy.MeasureCandidate(schedule, [])
        (stores,) = self._extractor.extract_from(self._context, [candidate])
        rows: np.ndarray = stores.numpy()
        return np.concatenate([rows.sum(axis=0), rows.max(axis=0)]) if len(rows) else None
