"""Whether what looks fastest is faster than the rule's own choice.

The least of many noisy times is less than what it is a time of. So the candidates that look fastest are timed once
more, in turns with the rule's choice, before they take its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tvm
from tvm.s_tir import meta_schedule as ms

from tvm_ext.tuners.measure.measurer import Measurer, arguments_of
from tvm_ext.tuners.metaschedule.trace_space import TraceSpace
from tvm_ext.tuners.space import Vector
from tvm_ext.tuning_database import FAILED_SECONDS

ROUNDS = 6
RIVALS = 3
"""Candidates that are compared with the rule's choice in a round."""

Times = Sequence[float]


def confirmed_times(
    space: TraceSpace, target: tvm.target.Target, database: ms.Database, measurer: Measurer
) -> list[tuple[ms.database.TuningRecord, Times]]:
    """Compare the fastest records of a kernel with that of the rule's choice, on this machine.

    Returns
    -------
    list of (record, times)
        New times (seconds) of the records that were compared; empty where the rule's choice is the fastest anyway, or
        has no record.
    """
    records: dict[Vector, ms.database.TuningRecord] = {}
    for record in database.get_top_k(database.commit_workload(space.mod), 1 << 20):
        vector = space.vector(record.trace)
        if vector is not None and record.run_secs and max(map(float, record.run_secs)) < FAILED_SECONDS:
            records.setdefault(vector, record)
    default = None if space.space.default is None else tuple(space.space.default)
    if default not in records:
        return []

    def compare(vectors: Sequence[Vector]) -> list[list[float]] | None:
        schedules = [space.schedule(vector) for vector in vectors]
        rows = [measurer.candidate(schedule.mod, target) for schedule in schedules if schedule is not None]
        return measurer.compare(rows, "cpu", arguments_of(space.mod)) if len(rows) == len(vectors) else None

    times = {vector: [float(value) for value in record.run_secs] for vector, record in records.items()}
    return [(records[vector], values) for vector, values in confirm(times, default, compare).items()]


def confirm(
    times: Mapping[Vector, Times],
    default: Vector,
    compare: Callable[[Sequence[Vector]], Sequence[Times] | None],
) -> dict[Vector, Times]:
    """Time the fastest candidates of a kernel once more, until the fastest of all is one that was.

    Parameters
    ----------
    times : dict
        Times (seconds) of each configuration, the rule's own among them.
    default : vector
        The rule's own.
    compare : callable
        Times configurations in turns; None when that fails.

    Returns
    -------
    dict
        The new times; empty where the rule's own choice is the fastest anyway.
    """
    means = {vector: float(np.mean(values)) for vector, values in times.items()}
    confirmed: dict[Vector, Times] = {}
    for _ in range(ROUNDS):
        ranked = sorted(means, key=lambda vector: means[vector])
        if ranked[0] == default or ranked[0] in confirmed:
            break
        rivals = [vector for vector in ranked if vector != default and vector not in confirmed][:RIVALS]
        found = compare([default, *rivals])
        if found is None:
            break
        for vector, values in zip([default, *rivals], found, strict=True):
            confirmed[vector], means[vector] = values, float(np.mean(values))
    return confirmed
