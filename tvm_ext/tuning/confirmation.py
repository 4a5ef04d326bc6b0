"""Whether what looks fastest is faster than the rule's own choice.

The least of many noisy times is less than what it is a time of. So the candidates that look fastest are timed once
more, in turns with the rule's choice, before they take its place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import tvm
from tvm.s_tir import meta_schedule as ms

from tvm_ext.database.folders import FAILED_SECONDS, replace_times
from tvm_ext.database.marks import confirmed_records, note_confirmed
from tvm_ext.tuners.measure.measurer import Arguments, Candidate, Measurer, arguments_of
from tvm_ext.tuners.metaschedule.trace_space import TraceSpace
from tvm_ext.tuners.space import Vector

ROUNDS = 6
RIVALS = 3
"""Candidates that are compared with the rule's choice in a round."""

Times = Sequence[float]


class Confirmation:
    """Which kernels' fastest records are still to be timed beside the rules' own choices, and doing that.

    Parameters
    ----------
    spaces : sequence of TraceSpace
        Of the kernels.
    database : ms.Database
    device_type : str
        Of the device that they run on.
    folder : Path
        Of the database: it holds which records were compared already, in this run or in one that was killed.
    """

    def __init__(
        self, spaces: Sequence[TraceSpace], database: ms.Database, folder: Path, device_type: str = "cpu"
    ) -> None:
        self._spaces, self._folder, self._device_type = spaces, folder, device_type
        self._records = [_records(space, database) for space in spaces]
        self._times = [
            {vector: [float(value) for value in record.run_secs] for vector, record in of_kernel.items()}
            for of_kernel in self._records
        ]
        known = confirmed_records(folder, [record for of_kernel in self._records for record in of_kernel.values()])
        compared = {id(record) for record in known}
        self._compared = [
            {vector for vector, record in of_kernel.items() if id(record) in compared} for of_kernel in self._records
        ]

    @property
    def is_due(self) -> bool:
        """Whether there is a kernel whose fastest record is neither the rule's choice nor compared with it."""
        means = [_means(of_kernel) for of_kernel in self._times]
        rows = zip(means, map(_default, self._spaces), self._compared, strict=True)
        return any(default in mean and bool(_to_compare(mean, default, done)) for mean, default, done in rows)

    def run(self, target: tvm.target.Target, measurer: Measurer) -> list[float | None]:
        """Compare on this machine; what is found is in the database after each round.

        Returns
        -------
        list of float or None
            For each kernel the time (seconds) of the rule's choice; None where nothing was compared.
        """

        def group(space: TraceSpace, vectors: Sequence[Vector]) -> tuple[list[Candidate], str, Arguments]:
            schedules = [space.schedule(vector) for vector in vectors]
            rows = [measurer.candidate(schedule.mod, target) for schedule in schedules if schedule is not None]
            return (rows if len(rows) == len(vectors) else []), self._device_type, arguments_of(space.mod)

        def compare(wanted: Sequence[Sequence[Vector]]) -> list[list[list[float]] | None]:
            found = measurer.compare(
                [group(space, vectors) for space, vectors in zip(self._spaces, wanted, strict=True)]
            )
            return [rows or None for rows in found]

        defaults = [_default(space) for space in self._spaces]
        confirmed = confirm(self._times, defaults, compare, self._compared, self._keep)
        return [
            float(np.median(new[default])) if default is not None and default in new else None
            for default, new in zip(defaults, confirmed, strict=True)
        ]

    def _keep(self, confirmed: Sequence[Mapping[Vector, Times]]) -> None:
        rows = [
            (of_kernel[vector], values)
            for of_kernel, new in zip(self._records, confirmed, strict=True)
            for vector, values in new.items()
        ]
        if rows:
            replace_times(self._folder, rows)
            note_confirmed(self._folder, [record for record, _ in rows])  # killed before: they are compared once more


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
    compared: Sequence[Collection[Vector]] | None = None,
    keep: Callable[[Sequence[Mapping[Vector, Times]]], None] = lambda confirmed: None,
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
    compared : sequence of collection of vector, optional
        For each kernel those whose times were taken so before.
    keep : callable
        Called with all new times after each round.

    Returns
    -------
    list of dict
        The new times of each kernel; empty where the rule's own choice is the fastest anyway.
    """
    means = [_means(of_kernel) for of_kernel in times]
    confirmed: list[dict[Vector, Times]] = [{} for _ in times]
    settled = [set(of_kernel) for of_kernel in compared] if compared is not None else [set() for _ in times]
    going = [default in of_kernel for default, of_kernel in zip(defaults, means, strict=True)]
    for _ in range(ROUNDS):
        wanted = [
            _to_compare(of_kernel, default, done) if more and default is not None else []
            for of_kernel, default, done, more in zip(means, defaults, settled, going, strict=True)
        ]
        if not any(wanted):
            break
        for number, (vectors, found) in enumerate(zip(wanted, compare(wanted), strict=True)):
            if not vectors or found is None:
                going[number] = False
                continue
            for vector, values in zip(vectors, found, strict=True):
                confirmed[number][vector], means[number][vector] = values, float(np.mean(values))
            settled[number].update(vectors)
        keep(confirmed)
    return confirmed


def _means(times: Mapping[Vector, Times]) -> dict[Vector, float]:
    return {vector: float(np.mean(values)) for vector, values in times.items()}


def _to_compare(means: Mapping[Vector, float], default: Vector, confirmed: Collection[Vector]) -> list[Vector]:
    """Give the rule's choice and what seems faster and was not compared; nothing when the fastest was."""
    ranked = sorted(means, key=lambda vector: means[vector])
    if ranked[0] == default or ranked[0] in confirmed:
        return []
    faster = ranked[: ranked.index(default)]
    return [default, *[vector for vector in faster if vector not in confirmed][:RIVALS]]
