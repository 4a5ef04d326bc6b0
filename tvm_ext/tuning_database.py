"""MetaSchedule's JSON database in a folder: opened with errors that say what is wrong, and looked into.

Beside TVM's two files there is one with the version of the TVM that began them: another one has other traces and
hashes, and would find nothing in them, or something else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import tvm
from tvm.s_tir import meta_schedule as ms

from tvm_ext.errors import OutputError, TuningError
from tvm_ext.files import write_atomically

WORKLOADS, RECORDS, VERSION = "database_workload.json", "database_tuning_record.json", "database_version.json"

FAILED_SECONDS = 1e9
"""Times above mark candidates that could not be measured."""


def open_database(folder: Path) -> ms.Database:
    """Open the JSON database of a folder, or begin one.

    A last line that was cut short, because a run was killed while it wrote, is removed.

    Raises
    ------
    OutputError
        If the folder cannot be made or written.
    TuningError
        If the database is damaged, or was written by another TVM.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_version(folder)
        for name in (WORKLOADS, RECORDS):
            _remove_half_line(folder / name)
        return ms.database.JSONDatabase(str(folder / WORKLOADS), str(folder / RECORDS))
    except TuningError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write the database in {folder}: {error.strerror or error}") from None
    except Exception as error:  # whatever TVM raised
        raise TuningError(
            f"the database in {folder} cannot be read: it is damaged or of another TVM "
            f"({' '.join(str(error).split())[:200]}); use another folder"
        ) from None


def open_earlier(folder: Path) -> ms.Database:
    """Open a database that must be there.

    Raises
    ------
    TuningError
        If it is not, is damaged, or was written by another TVM.
    """
    if not (folder / RECORDS).is_file() or not (folder / WORKLOADS).is_file():
        raise TuningError(f"no tuning database in {folder}: expected the --work-dir of an earlier run")
    return open_database(folder)


def note_version(folder: Path) -> None:
    """Note which TVM began a database; nothing is noted of one that was begun by others.

    Raises
    ------
    OutputError
        If the folder cannot be written.
    """
    records = folder / RECORDS
    try:
        if not (folder / VERSION).exists() and not (records.exists() and records.stat().st_size):
            (folder / VERSION).write_text(json.dumps({"tvm": tvm.__version__}) + "\n", "utf-8")
    except OSError as error:
        raise OutputError(f"cannot write the database in {folder}: {error.strerror or error}") from None


def record_count(database: ms.Database, mod: tvm.IRModule) -> int:
    """Count the measurements of a workload, those that failed too."""
    if not database.has_workload(mod):
        return 0
    workload = database.commit_workload(mod)
    return sum(record.workload.same_as(workload) for record in database.get_all_tuning_records())


def best_seconds(database: ms.Database, mod: tvm.IRModule) -> float | None:
    """Return the best time of a workload (median of its repeats); None where nothing was measured."""
    if not database.has_workload(mod):
        return None
    records = database.get_top_k(database.commit_workload(mod), 1)
    seconds = sorted(map(float, records[0].run_secs)) if records else []
    median = seconds[len(seconds) // 2] if seconds else FAILED_SECONDS
    return median if median < FAILED_SECONDS else None


def check_records(folder: Path, expected: int) -> None:
    """Make sure that every measurement is on the disk: TVM says nothing when it cannot write.

    Raises
    ------
    OutputError
        If measurements are missing.
    """
    with (folder / RECORDS).open("rb") as file:
        found = sum(line.endswith(b"\n") for line in file)
    if found < expected:
        raise OutputError(
            f"the database in {folder} holds {found} of {expected} measurements: the disk is full, or the file may not "
            "grow; free some space and run again, what is there is gone on with"
        )


def replace_times(folder: Path, times: Sequence[tuple[ms.database.TuningRecord, Sequence[float]]]) -> None:
    """Give records of a database in a folder new times (seconds); what was opened before does not see them.

    Raises
    ------
    OutputError
        If the folder cannot be written; the records are as they were then.
    """
    hashes = [json.loads(line)[0] for line in (folder / WORKLOADS).read_text("utf-8").splitlines()]
    new = {(record.workload.as_json()[0], _trace_text(record.as_json()[0])): seconds for record, seconds in times}
    lines = []
    for line in (folder / RECORDS).read_text("utf-8").splitlines():
        workload, record = json.loads(line)
        seconds = new.get((hashes[workload], _trace_text(record[0])))
        if seconds is not None:
            record[1] = [float(value) for value in seconds]
            line = json.dumps([workload, record], separators=(",", ":"))
        lines.append(line + "\n")
    write_atomically(folder / RECORDS, "".join(lines))


def _trace_text(value: object) -> str:
    """Spell a trace in one way: truth values are numbers in TVM's file, and are not in its records."""
    if isinstance(value, list):
        return f"[{','.join(map(_trace_text, value))}]"
    return json.dumps(int(value) if isinstance(value, bool) else value)


def _check_version(folder: Path) -> None:
    path = folder / VERSION
    if not path.exists():
        return
    try:
        version = str(json.loads(path.read_text("utf-8"))["tvm"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise TuningError(f"{path} is damaged; remove it if TVM {tvm.__version__} wrote the database") from None
    if version != tvm.__version__:
        raise TuningError(
            f"the database in {folder} was written by TVM {version}, this is TVM {tvm.__version__}, whose schedules "
            "and hashes differ; use another folder"
        )


def _remove_half_line(path: Path) -> None:
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole == len(content):
        return
    try:
        json.loads(content[whole:])
    except ValueError:
        with path.open("r+b") as file:
            file.truncate(whole)
    else:
        with path.open("ab") as file:
            file.write(b"\n")
