"""Gives kernels of open extents the versions that a tuning database knows of.

before: a kernel of open extents, unscheduled; in the database, records of copies of it with known extents
after:  the same kernel, with a note of the versions that its rule is to write: up to so many elements of the result it
        has what was best for the extents that are nearest
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isqrt, prod

import tvm
import tvm_ffi
from tvm.s_tir import meta_schedule as ms
from tvm.tirx import PrimFunc

from tvm_ext.database.marks import Identity
from tvm_ext.schedules.open_versions import (
    Version,
    bare,
    open_extents,
    original_of,
    with_versions,
)
from tvm_ext.schedules.recorded import numbers_of_pick, picks, sampling_of
from tvm_ext.schedules.rule import ScheduleRule, tunable_schedule


@dataclass
class Versioned:
    """A module whose open kernels have versions.

    Attributes
    ----------
    mod : IRModule
    taken : dict from str to Identity
        The versions of each kernel that has some: hashes of the kernel and of its versions.
    left : dict from str to Identity
        Of each kernel that has none because its versions are left alone, those.
    """

    mod: tvm.IRModule
    taken: dict[str, Identity] = field(default_factory=dict)
    left: dict[str, Identity] = field(default_factory=dict)


def recorded_versions(
    mod: tvm.IRModule, database: ms.Database, rules: Sequence[ScheduleRule], is_left: Callable[[Identity], bool]
) -> Versioned:
    """Note the versions of open kernels.

    Parameters
    ----------
    mod : IRModule
    database : ms.Database
    rules : sequence of ScheduleRule
    is_left : callable
        Whether versions are left alone.
    """
    found = Versioned(mod)
    kernels = {
        variable: func
        for variable, func in mod.functions_items()
        if isinstance(func, PrimFunc) and "tirx.is_scheduled" not in (func.attrs or {}) and open_extents(func)
    }
    if not kernels:
        return found
    target = tvm.target.Target.current(allow_none=False)
    known = _known_copies(database)
    updated = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
    for variable, func in kernels.items():
        key = _key(func)
        versions = _versions(known.get(key, ()), target, rules)
        if not versions:
            continue
        noted = with_versions(func, versions)
        spelled = json.dumps([[version.most, *version.picks] for version in versions])
        who = key, hashlib.sha256(spelled.encode()).hexdigest()[:24]
        if is_left(who):
            found.left[variable.name_hint] = who
            continue
        found.taken[variable.name_hint] = who
        updated.update_func(variable, noted)
    found.mod = updated
    return found


def _key(func: PrimFunc) -> str:
    return f"{tvm_ffi.structural_hash(bare(func), map_free_vars=True):016x}"


def _known_copies(database: ms.Database) -> dict[str, list[ms.database.TuningRecord]]:
    """Give the fastest record of each copy, by the kernel that they are copies of."""
    known: dict[str, list[ms.database.TuningRecord]] = {}
    workloads: dict[ms.database.Workload, None] = {}
    for record in database.get_all_tuning_records():
        workloads.setdefault(record.workload)
    for workload in workloads:
        original = original_of(workload.mod["main"])
        if original is not None:
            known.setdefault(_key(original), []).extend(database.get_top_k(workload, 1))
    return known


def _versions(
    records: Sequence[ms.database.TuningRecord], target: tvm.target.Target, rules: Sequence[ScheduleRule]
) -> list[Version]:
    """Make of the best choices for some extents those for all: each has what is nearest, by the ratio."""
    best: dict[int, tuple[int, ...]] = {}
    for record in records:
        func = record.workload.mod["main"]
        chosen = _picks(record)
        own = tunable_schedule(func, target, rules)
        if own is None or _candidates(own.trace) != _candidates(record.trace):
            continue  # found with other choices than the rule has today
        best.setdefault(prod(int(extent) for extent in func.params[-1].ty.shape), chosen)
    versions: list[Version] = []
    for elements, chosen in sorted(best.items()):
        if versions and versions[-1].picks == chosen:
            versions[-1] = Version(elements, chosen)
            continue
        if versions:
            last = versions[-1]
            versions[-1] = Version(isqrt(max(last.most or 0, 1) * elements), last.picks)
        versions.append(Version(elements, chosen))
    return [*versions[:-1], Version(None, versions[-1].picks)] if versions else []


def _picks(record: ms.database.TuningRecord) -> tuple[int, ...]:
    found = picks(record.trace, sampling_of(record.trace))
    return tuple(numbers_of_pick(inst)[int(record.trace.decisions[inst])] for inst in found)


def _candidates(trace: tvm.s_tir.schedule.Trace) -> list[tuple[int, ...]]:
    return [numbers_of_pick(inst) for inst in picks(trace, sampling_of(trace))]
