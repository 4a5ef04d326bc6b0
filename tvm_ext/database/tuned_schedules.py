"""Give kernels the fastest schedules that a tuning database knows of them.

before: ``@T.prim_func def fused_conv_relu(...)`` as its rule prepared it
after:  the same, scheduled as the fastest record of the database says, and marked ``tirx.is_scheduled``
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms
from tvm.tirx import PrimFunc

from tvm_ext.database.answers import Answers, Stranger, all_left_alone, no_strangers
from tvm_ext.database.folders import begun_by, is_of_pipeline, open_earlier
from tvm_ext.database.marks import Identity, left_alone
from tvm_ext.database.networks import NETWORK_ATTRIBUTE
from tvm_ext.errors import TvmExtWarning, warn
from tvm_ext.system.threads import threads

RECORD_ATTRIBUTE = "tvm_ext.tuning_record"
"""Attribute of a kernel with a schedule of a database: which record, as JSON."""

TUNED_SCHEDULES = "tvm_ext.TunedSchedules"
"""Name of the pass."""

ENTERED = "the database that was entered"

OF_TVM = (
    "kernels that TVM's own tuners measured are found in the module that was tuned, whose operators are kernels already"
)

NAMED = 3
"""Kernels that a warning names."""


Versions = Callable[[tvm.IRModule, ms.Database, Callable[[Identity], bool]], Any]
"""Notes the versions of kernels of open extents that a database knows of: a module, and the records that it is of."""


def tuned_schedules(
    folder: str | Path,
    stranger: Stranger = no_strangers,
    versions: Versions | None = None,
    foreign: str | None = None,
) -> tvm.transform.Pass:
    """Make the pass, for the database in a folder.

    It is read as it is at that moment: a run that tunes into the folder meanwhile, or one that was killed in the middle
    of a line, does no harm. A database that has records, but none of these kernels, is warned of, and so are lines that
    are damaged otherwise, and records of another rule's space than the kernel's own.

    Parameters
    ----------
    folder : path
    stranger : callable
        Of a kernel, makes what names the rule that a recorded trace is one of, where that is not the one that schedules
        it.
    versions : callable, optional
        Of a module, a database and what says of records that they are left alone, gives the module whose kernels of
        open extents have their versions noted; see :mod:`tvm_ext.schedules.recorded_versions`.
    foreign : str, optional
        A file that may be in the folder, with schedules of which this target takes none: where nothing else is there,
        that is warned of.

    Raises
    ------
    TuningError
        If the database cannot be read.
    """

    @tvm.transform.module_pass(opt_level=0, name=TUNED_SCHEDULES)
    def _tuned_schedules(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        network = mod.attrs.get(NETWORK_ATTRIBUTE) if mod.attrs else None
        mod = mod.without_attr(NETWORK_ATTRIBUTE)
        if all_left_alone():
            return mod
        place = Path(folder)
        database = open_earlier(place)
        answers = Answers(database, stranger, left_alone(place, network and str(network), threads()))
        tuned = _applied(mod, answers, f"the database in {folder}", versions)
        if database.unread:
            lines = f"{database.unread} line{'s' if database.unread != 1 else ''}"
            warn(
                f"{lines} of the database in {folder} ({begun_by(place)}) could not be read and were passed "
                "over; `tvm-ext tune` moves them out of the way, and measures what is missing",
                TvmExtWarning,
            )
        kernels = _unscheduled(mod)
        if not len(database) and kernels and foreign is not None and (place / foreign).is_file():
            warn(
                f"the database in {folder} has no record of a kernel: {foreign} there is for another kind of target, "
                "and is not used; tune into a folder of its own with the target you compile for"
            )
        known = answers.known or _recorded(mod)
        if len(database) and kernels and not known:
            warn(
                f"the database in {folder} ({begun_by(place)}) has none of the {len(kernels)} kernels of this "
                "model: it is of another model, shape, target, other options or another release; tune with those you "
                f"compile with{'' if is_of_pipeline(place) else f', and {OF_TVM}'}"
            )
        return tuned

    return _tuned_schedules


def current_schedules(stranger: Stranger = no_strangers, versions: Versions | None = None) -> tvm.transform.Pass:
    """Make the pass, for the database that the caller has entered (``with database:``)."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.CurrentSchedules")
    def _current_schedules(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        answers = Answers(ms.Database.current(), stranger, ())
        tuned = _applied(mod, answers, ENTERED, versions)
        kernels = _unscheduled(mod)
        known = answers.known or _recorded(mod)
        if kernels and not known and not all_left_alone() and _has_records(answers.database):
            warn(
                f"{ENTERED} has none of the {len(kernels)} kernels of this model: it is of another model, shape, "
                f"target or options; `tvm-ext tune` tunes the kernels of this pipeline, and {OF_TVM}"
            )
        return tuned

    return _current_schedules


def given_schedules(folder: str | Path | None = None) -> tvm.transform.Pass:
    """Make the pass that schedules kernels as they were given, for the database that the caller has entered.

    TVM's own tuners measure the kernels of a module as they stand in it. The pass runs before the pipeline changes
    them: merged with their neighbours they would be others, of which the database knows nothing.

    Parameters
    ----------
    folder : path, optional
        Of a database in place of the one that was entered; nothing is done if `tvm-ext tune` was at work in it, which
        measures the kernels that the pipeline makes.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.GivenSchedules")
    def _given_schedules(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        if all_left_alone() or not _unscheduled(mod):
            return mod
        if folder is None:
            return _applied(mod, Answers(ms.Database.current(), no_strangers, ()), ENTERED, None)
        if is_of_pipeline(Path(folder)):
            return mod
        answers = Answers(open_earlier(Path(folder)), no_strangers, ())
        return _applied(mod, answers, f"the database in {folder}", None)

    return _given_schedules


def _applied(mod: tvm.IRModule, answers: Answers, origin: str, versions: Versions | None) -> tvm.IRModule:
    if versions is not None:
        found = versions(mod, answers.database, answers.is_left)
        answers.taken.update(found.taken)
        answers.left.update(found.left)
        mod = _noted(found.mod, found.taken)
    with answers:
        tuned = relax.transform.MetaScheduleApplyDatabase(enable_warning=False)(mod)
    scheduled = {name for name in answers.taken if _is_scheduled(tuned[name])}
    noted = _noted(tuned, {name: answers.taken[name] for name in scheduled})
    if answers.strangers:
        warn(
            f"{origin} has records for {_named(answers.strangers)} that were tuned in the space of another schedule "
            f"rule ({', '.join(sorted(set(answers.strangers.values())))}) than the one that schedules them, and they "
            "are left out; another folder, tuned anew, has none",
            TvmExtWarning,
        )
    if answers.foreign:
        warn(
            f"{origin} has records for {_named(answers.foreign)} that were tuned for targets of the kind "
            f"{', '.join(sorted(set(answers.foreign.values())))}, and they are left out; tune with the target you "
            "compile for",
            TvmExtWarning,
        )
    return noted


def _named(kernels: Collection[str]) -> str:
    more = f" and {len(kernels) - NAMED} more" if len(kernels) > NAMED else ""
    return ", ".join(list(kernels)[:NAMED]) + more


def _noted(mod: tvm.IRModule, records: Mapping[str, Identity]) -> tvm.IRModule:
    """Note of kernels which record they have their schedules of."""
    noted = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
    for variable, func in mod.functions_items():
        if isinstance(func, PrimFunc) and variable.name_hint in records:
            noted.update_func(variable, func.with_attr(RECORD_ATTRIBUTE, json.dumps(records[variable.name_hint])))
    return noted


def record_of(func: PrimFunc) -> Identity | None:
    """Tell which record a kernel has its schedule of; None for the kernel of a rule."""
    found = func.attrs.get(RECORD_ATTRIBUTE) if func.attrs else None
    if found is None:
        return None
    workload, trace = json.loads(str(found))
    return workload, trace


def _is_scheduled(func: PrimFunc) -> bool:
    return bool(func.attrs) and "tirx.is_scheduled" in func.attrs


def _has_records(database: ms.Database) -> bool:
    try:
        return len(database) > 0
    except RuntimeError:  # one that makes schedules when it is asked cannot tell
        return False


def _recorded(mod: tvm.IRModule) -> bool:
    """Tell whether a kernel has its schedule of a database already."""
    return any(isinstance(func, PrimFunc) and record_of(func) for func in mod.functions.values())


def _unscheduled(mod: tvm.IRModule) -> set[str]:
    return {
        str(name.name_hint)
        for name, func in mod.functions.items()
        if isinstance(func, PrimFunc) and not _is_scheduled(func)
    }
