"""Tuning databases in folders: MetaSchedule's JSON files, safe to share between processes and to be killed over.

Beside TVM's two files there is one with the versions that began them, as another TVM has other traces and hashes, and
those of :mod:`tvm_ext.database.marks`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import tvm
from tvm.s_tir import meta_schedule as ms

from tvm_ext.database.files import (
    CONFIRMED,
    DAMAGED,
    NETWORKS,
    RECORDS,
    VERSION,
    WORKLOADS,
    finish_last_lines,
    locked,
    unwritable,
)
from tvm_ext.database.repair import is_sound, repair
from tvm_ext.database.store import FAILED_SECONDS, Lines, SharedDatabase, spelt, spelt_trace
from tvm_ext.errors import OptionError, TuningError, TvmExtWarning, warn
from tvm_ext.system.cleanup import temporary_folder
from tvm_ext.system.files import require_regular, write_atomically
from tvm_ext.version import __version__

__all__ = [
    "FAILED_SECONDS",
    "RECORDS",
    "VERSION",
    "WORKLOADS",
    "begun_by",
    "best_seconds",
    "check_database",
    "is_of_pipeline",
    "note_version",
    "open_database",
    "open_earlier",
    "record_count",
    "records_of",
    "replace_times",
]


def check_database(folder: Path) -> None:
    """Say whether a database can be written to a folder, before the work that it is for; nothing is left behind.

    Raises
    ------
    OutputError
        If the folder, or the nearest one above it that there is, cannot be written.
    TuningError
        If a database that is there was written by another TVM.
    """
    place = folder.absolute()
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    try:
        with temporary_folder(place, folder.name):
            pass
    except OSError as error:
        raise unwritable(folder, error) from None
    _check_version(folder)


def open_database(folder: str | Path) -> SharedDatabase:
    """Open the database of a folder, or begin one.

    Lines that cannot be read, because a run was killed while it wrote or two of TVM's own writers were at work, are
    moved to files ``*.damaged`` beside; a warning says how many.

    Raises
    ------
    OutputError
        If the folder cannot be made or written.
    TuningError
        If nothing in the database can be read, or it was written by another TVM.
    OptionError
        If the folder is no path.
    """
    if not isinstance(folder, str | os.PathLike):
        raise OptionError(f"the folder of a database is {folder!r}; expected a path")
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_version(folder)
        with locked(folder):
            finish_last_lines(folder)
            for name in (WORKLOADS, RECORDS):
                (folder / name).touch()
        found = Lines.read(folder)  # without the lock: to follow the traces takes a while
        if not is_sound(found):
            with locked(folder):
                cut = repair(folder, Lines.read(folder))
            found = Lines.read(folder)
            warn(
                f"{cut} line{'s' if cut != 1 else ''} of the database in {folder} could not be read, moved to "
                f"{RECORDS}{DAMAGED} and {WORKLOADS}{DAMAGED} there, and the others are gone on with",
                TvmExtWarning,
            )
    except OSError as error:
        raise unwritable(folder, error) from None
    return SharedDatabase(folder, found)


def open_earlier(folder: Path) -> SharedDatabase:
    """Open a database that must be there, to look up what it knows; nothing in the folder is changed.

    Raises
    ------
    TuningError
        If it is not, nothing in it can be read, or it was written by another TVM.
    """
    if not (folder / RECORDS).is_file() or not (folder / WORKLOADS).is_file():
        raise TuningError(f"no tuning database in {folder}: expected the --work-dir of an earlier run")
    _check_version(folder)
    try:
        return SharedDatabase(folder, Lines.read(folder), writes=False)
    except OSError as error:
        raise TuningError(f"the database in {folder} cannot be read: {error.strerror or error}") from None


def note_version(folder: Path) -> None:
    """Note which versions began a database; nothing is noted of one that was begun by others.

    Raises
    ------
    OutputError
        If the folder cannot be written.
    """
    records = folder / RECORDS
    try:
        if not (folder / VERSION).exists() and not (records.exists() and records.stat().st_size):
            versions = {"tvm": tvm.__version__, "tvm-ext": __version__}
            write_atomically(folder / VERSION, json.dumps(versions) + "\n")
    except OSError as error:
        raise unwritable(folder, error) from None


def begun_by(folder: Path) -> str:
    """Say which versions began a database, as far as that was noted."""
    try:
        versions = json.loads((folder / VERSION).read_text("utf-8"))
        return f"begun by tvm-ext {versions.get('tvm-ext', '0.1.0 or before')} with TVM {versions['tvm']}"
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return "begun by a version that did not note itself"


def is_of_pipeline(folder: Path) -> bool:
    """Whether `tvm-ext tune` was at work in a folder, which measures kernels as the pipeline makes them."""
    return any((folder / name).exists() for name in (VERSION, CONFIRMED, NETWORKS))


def records_of(database: ms.Database, mod: tvm.IRModule) -> list[ms.database.TuningRecord]:
    """List the records of a workload, those that failed too: MetaSchedule's own query leaves them out."""
    if not database.has_workload(mod):
        return []
    workload = database.commit_workload(mod)
    return [record for record in database.get_all_tuning_records() if record.workload.same_as(workload)]


def record_count(database: ms.Database, mod: tvm.IRModule) -> int:
    """Count the measurements of a workload, those that failed too."""
    return len(records_of(database, mod))


def best_seconds(database: ms.Database, mod: tvm.IRModule) -> float | None:
    """Return the best time of a workload (median of its repeats); None where nothing was measured."""
    if not database.has_workload(mod):
        return None
    records = database.get_top_k(database.commit_workload(mod), 1)
    seconds = sorted(map(float, records[0].run_secs)) if records else []
    median = seconds[len(seconds) // 2] if seconds else FAILED_SECONDS
    return median if median < FAILED_SECONDS else None


def replace_times(folder: Path, times: Sequence[tuple[ms.database.TuningRecord, Sequence[float]]]) -> None:
    """Give records of a database in a folder new times (seconds); what was opened before does not see them.

    Raises
    ------
    OutputError
        If the folder cannot be written; the records are as they were then.
    """
    try:
        with locked(folder):
            finish_last_lines(folder)
            found = Lines.read(folder)
            new = {(found.number(record.workload), spelt_trace(record)): seconds for record, seconds in times}
            lines = []
            for row in found.records:
                seconds = None if row.value is None else new.get((row.workload, spelt(row.value[0])))
                if seconds is not None and row.value is not None:
                    row.value[1] = [float(value) for value in seconds]
                    lines.append(spelt([row.workload, row.value]) + "\n")
                else:
                    lines.append(row.text + "\n")
            write_atomically(folder / RECORDS, "".join(lines))
    except OSError as error:
        raise unwritable(folder, error) from None


def _check_version(folder: Path) -> None:
    path = folder / VERSION
    if not path.exists():
        return
    require_regular(path, TuningError)
    try:
        version = str(json.loads(path.read_text("utf-8"))["tvm"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise TuningError(f"{path} is damaged; remove it if TVM {tvm.__version__} wrote the database") from None
    if version != tvm.__version__:
        raise TuningError(
            f"the database in {folder} was written by TVM {version}, this is TVM {tvm.__version__}, whose schedules "
            "and hashes differ; use another folder"
        )
