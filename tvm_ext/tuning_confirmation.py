"""Whether what looks fastest is faster than the rule's own choice.

The least of many noisy times is less than what it is a time of. So the candidates that look fastest are timed once
more, in turns with the rule's choice, before they take its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tvm
from tvm.s_tir import meta_schedule as ms

from tvm_ext.tuners.measure.measurer import Arguments, Candidate, Measurer, arguments_of
from tvm_ext.tuners.metaschedule.trace_space import TraceSpace
from tvm_ext.tuners.space import Vector
from tvm_ext.tuning_database import FAILED_SECONDS

ROUNDS = 6
RIVALS = 3
"""Candidates that are compared with the rule's choice in a round."""

Times = Sequence[float]


def confirmed_times(
    spaces: Sequence[TraceSpace], target: tvm.target.Target, database: ms.Database, measurer: Measurer
) -> list[list[tuple[ms.database.TuningRecord, Times]]]:
    """Compare the fastest records of kernels with those of the rules' choices, on this machine.

    Returns
    -------
    list of list of (record, times)
        For each kernel new times (seconds) of the records that were compared, the rule's choice first; empty where that
        is the fastest anyway, or has no record.
    """
    records = [_records(space, database) for space in spaces]
    times = [
        {vector: [float(value) for value in record.run_secs] for vector, record in of_kernel.items()}
        for of_kernel in records
    ]

    def group(space: TraceSpace, vectors: Sequence[Vector]) -> tuple[list[Candidate], str, Arguments]:
        schedules = [space.schedule(vector) for vector in vectors]
        rows = [measurer.candidate(schedule.mod, target) for schedule in schedules if schedule is not None]
        return (rows if len(rows) == len(vectors) else []), "cpu", arguments_of(space.mod)

    def compare(wanted: Sequence[Sequence[Vector]]) -> list[list[list[float]] | None]:
        found = measurer.compare([group(space, vectors) for space, vectors in zip(spaces, wanted, strict=True)])
        return [rows or None for rows in found]

    confirmed = confirm(times, [_default(space) for space in spaces], compare)
    return [
        [(of_kernel[vector], values) for vector, values in new.items()]
        for of_kernel, new in zip(records, confirmed, strict=True)
    ]


def _default(space: TraceSpace) -> Vector | None:
    return None if space.space.default is None else tuple(space.space.default)


def _records(space: TraceSpace, database: ms.Database) -> dict[Vector, ms.database.TuningRecord]:
    records: dict[Vector, ms.database.TuningRecord] = {}
    for record in database.get_top_k(database.commit_workload(space.mod), 1 << 20):
        vector = space.vector(record.trace)
        if vector is not None and record.run_secs and max(map(float, record.run_secs)) < FAILED_SECONDS:
            records.setdefault(vector, record)
    return records


def confirm(
    times: Sequence[Mapping[Vector, Times]],
    defaults: Sequence[Vector | None],
    compare: Callable[[Sequence[Sequence[Vector]]], Sequence[Sequence[Times] | None]],
) -> list[dict[Vector, Times]]:
    """Time the fastest candidates of kernels once more, until the fastest of each is one that was.

    Parameters
    ----------
    times : sequence of dict
        For each kernel the times (seconds) of its configurations.
    defaults : sequence of vector
        The rules' own configurations. A kernel is left alone where there is none, or it has no time.
    compare : callable
        Times configurations of each kernel in turns; None for a kernel for which that fails.

    Returns
    -------
    list of dict
        The new times of each kernel; empty where the rule's own choice is the fastest anyway.
    """
    means = [{vector: float(np.mean(values)) for vector, values in of_kernel.items()} for of_kernel in times]
    confirmed: list[dict[Vector, Times]] = [{} for _ in times]
    going = [default in of_kernel for default, of_kernel in zip(defaults, means, strict=True)]
    for _ in range(ROUNDS):
        wanted = [
            _to_compare(of_kernel, default, new) if more and default is not None else []
            for of_kernel, default, new, more in zip(means, defaults, confirmed, going, strict=True)
        ]
        if not any(wanted):
            break
        for number, (vectors, found) in enumerate(zip(wanted, compare(wanted), strict=True)):
            if not vectors or found is None:
                going[number] = False
                continue
            for vector, values in zip(vectors, found, strict=True):
                confirmed[number][vector], means[number][vector] = values, float(np.mean(values))
    return confirmed


def _to_compare(means: Mapping[Vector, float], default: Vector, confirmed: Mapping[Vector, Times]) -> list[Vector]:
    """Give the rule's choice and what seems faster and was not compared; nothing when the fastest was."""
    ranked = sorted(means, key=lambda vector: means[vector])
    if ranked[0] == default or ranked[0] in confirmed:
        return []
    faster = ranked[: ranked.index(default)]
    return [default, *[vector for vector in faster if vector not in confirmed][:RIVALS]]
