"""MetaSchedule's database over the files of a folder: each measurement is on the disk before the next is made."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.database import PyDatabase, TuningRecord, Workload
from tvm.s_tir.schedule import Trace
from tvm.tirx import FloatImm, IntImm

from tvm_ext.database.files import RECORDS, WORKLOADS, append, lines_of, locked, unwritable
from tvm_ext.errors import OutputError, TuningError

FAILED_SECONDS = 1e9
"""Times above mark candidates that could not be measured."""


FAILED_MARK = 1e10
"""The time that TVM's own functions note of a candidate that failed."""


def spelt(value: object) -> str:
    """Spell a JSON value as TVM's files do: truth values are numbers there."""
    return json.dumps(_plain(value), separators=(",", ":"))


def _plain(value: object) -> object:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, IntImm | FloatImm):
        return value.value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def record_json(record: TuningRecord) -> list[Any]:
    """Give a record as its line has it; TVM's own way has no spelling for the index maps of a trace."""
    try:
        found: list[Any] = record.as_json()
    except TypeError:
        bare = TuningRecord(Trace([], {}), record.workload, record.run_secs, record.target, record.args_info)
        found = [record.trace.as_json(), *bare.as_json()[1:]]
    seconds: Any = [] if found[1] is None else _plain(list(found[1]))
    if not all(map(math.isfinite, seconds)):
        found[1] = [FAILED_MARK]  # a runner of the caller's may say so, and TVM reads no such number
    return found


def spelt_trace(record: TuningRecord) -> str:
    """Spell the trace of a record as its line does."""
    return spelt(record_json(record)[0])


def is_valid(seconds: Sequence[float]) -> bool:
    """Whether times are those of a candidate that could be run."""
    return bool(seconds) and all(0 <= value < FAILED_SECONDS for value in seconds)


@dataclass
class Row:
    """A line of the file of records.

    Attributes
    ----------
    text : str
    workload : int
        Number of the line of its workload; -1 in a line that is damaged.
    value : list or None
        Trace, times, target and arguments; None in a line that is damaged.
    record : TuningRecord or None
        Once it was asked for.
    """

    text: str
    workload: int = -1
    value: list[Any] | None = None
    record: TuningRecord | None = None

    @classmethod
    def of(cls, text: str, workloads: int) -> Row:
        """Read a line, of files with so many workloads."""
        try:
            number, value = json.loads(text)
            trace, seconds, _, arguments = value
            sound = isinstance(number, int) and 0 <= number < workloads
            sound = sound and isinstance(trace, list) and isinstance(arguments, list | None)
            if not sound or (seconds is not None and not all(isinstance(second, int | float) for second in seconds)):
                return cls(text)
        except (ValueError, TypeError, RecursionError):
            return cls(text)
        return cls(text, number, value)

    @property
    def seconds(self) -> float:
        """The mean of its times; infinite where it failed."""
        times = [] if self.value is None else self.value[1] or []
        return sum(times) / len(times) if is_valid(times) else float("inf")

    def load(self, workload: Workload) -> TuningRecord | None:
        """Give the record; None where it is damaged, or its trace is none of this workload."""
        if self.record is None and self.value is not None:
            try:
                self.record = TuningRecord.from_json(self.value, workload)
            except Exception:  # whatever TVM raised while it followed the trace
                self.value = None
        return self.record


class Lines:
    """What the two files of a folder hold.

    Attributes
    ----------
    workload_texts : list of str
    workloads : list of Workload or None
        None where a line is damaged.
    records : list of Row
    """

    def __init__(self, workload_texts: Sequence[str], record_texts: Sequence[str]) -> None:
        self.workload_texts = list(workload_texts)
        self.workloads = [workload_of(text) for text in workload_texts]
        self.records = [Row.of(text, len(self.workloads)) for text in record_texts]
        self._numbers: dict[int, list[int]] = {}
        for number, workload in enumerate(self.workloads):
            if workload is not None:
                self._numbers.setdefault(tvm_ffi.structural_hash(workload.mod), []).append(number)

    @classmethod
    def read(cls, folder: Path) -> Lines:
        """Read the files.

        Raises
        ------
        TuningError
            If nothing can be read of a file that holds something.
        """
        records = lines_of(folder / RECORDS)  # first: workloads are written before their records
        found = cls(lines_of(folder / WORKLOADS), records)
        nothing = (records or found.workloads) and not any(found.workloads)
        if nothing or (records and all(row.value is None for row in found.records)):
            name = WORKLOADS if nothing else RECORDS
            raise TuningError(
                f"the database in {folder} cannot be read: no line of {name} is one of MetaSchedule's; use another "
                "folder"
            )
        return found

    def add(self, text: str, workload: Workload) -> int:
        """Note a line of a workload; gives its number."""
        number = len(self.workloads)
        self.workload_texts.append(text)
        self.workloads.append(workload)
        self._numbers.setdefault(tvm_ffi.structural_hash(workload.mod), []).append(number)
        return number

    def number(self, workload: Workload) -> int | None:
        """Give the number of a workload's first line; None where it has none."""
        for number in self._numbers.get(tvm_ffi.structural_hash(workload.mod), ()):
            known = self.workloads[number]
            if known is not None and tvm_ffi.structural_equal(known.mod, workload.mod):
                return number
        return None


def workload_of(text: str) -> Workload | None:
    """Read a line of the file of workloads; None when it is damaged."""
    try:
        return Workload.from_json(json.loads(text))
    except Exception:  # whatever TVM raises at what is no workload
        return None


@derived_object
class SharedDatabase(PyDatabase):
    """The database of a folder that other processes may use at the same time.

    It knows what the files held when it was opened, and what it was told since; what others add meanwhile is kept in
    the files, and seen when they are opened again. Traces are only read when they are asked for.

    Parameters
    ----------
    folder : Path
    lines : Lines
        What its files hold.
    writes : bool
        Whether what it is told goes into the files.

    Attributes
    ----------
    broken : OutputError or None
        Why it could not write: TVM, which calls it, lets nothing but a text through.
    unread : int
        Number of lines of records and workloads that are damaged, and were passed over. Traces do not count.
    """

    def __init__(self, folder: Path, lines: Lines, writes: bool = True) -> None:
        super().__init__()
        self.folder, self.writes = folder, writes
        self.broken: OutputError | None = None
        self._workloads: dict[int, list[Workload]] = {}
        self._rows: list[tuple[Workload, Row]] = []
        first = [None if workload is None else self._remember(workload) for workload in lines.workloads]
        for row in lines.records:
            workload = None if row.value is None else first[row.workload]
            if workload is not None:
                self._rows.append((workload, row))
        self.unread = sum(row.value is None for row in lines.records) + lines.workloads.count(None)
        self._lines, self._stamp = lines, (0, 0, 0)

    def _find(self, mod: tvm.IRModule) -> Workload | None:
        for workload in self._workloads.get(tvm_ffi.structural_hash(mod), ()):
            if tvm_ffi.structural_equal(workload.mod, mod):
                return workload
        return None

    def _remember(self, workload: Workload) -> Workload:
        known = self._find(workload.mod)
        if known is None:
            self._workloads.setdefault(tvm_ffi.structural_hash(workload.mod), []).append(workload)
        return known or workload

    def has_workload(self, mod: tvm.IRModule) -> bool:
        """Tell whether a workload is known."""
        return self._find(mod) is not None

    def commit_workload(self, mod: tvm.IRModule) -> Workload:
        """Give the workload of a module; it comes into the file with its first record."""
        return self._find(mod) or self._remember(Workload(mod))

    def commit_tuning_record(self, record: TuningRecord) -> None:
        """Append a record to the file, and its workload if that is not there.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        workload, value = self._remember(record.workload), record_json(record)
        if self.writes:
            try:
                with locked(self.folder):
                    append(self.folder / RECORDS, spelt([self._number(workload), value]))
            except OSError as error:
                remedy = "then run again, what is there is gone on with"
                self.broken = OutputError(f"{unwritable(self.folder, error)}, {remedy}")
                raise self.broken from None
            except OutputError as error:
                self.broken = error
                raise
        self._rows.append((workload, Row("", 0, value, record)))

    def _number(self, workload: Workload) -> int:
        """Find the line of a workload, which others may have written; one is appended where there is none."""
        path = self.folder / WORKLOADS
        if self._stamp != _stamp(path):
            self._lines = Lines(lines_of(path), ())
        number = self._lines.number(workload)
        if number is None:
            number = self._lines.add(spelt(workload.as_json()), workload)
            append(path, self._lines.workload_texts[number])
        self._stamp = _stamp(path)
        return number

    def get_top_k(self, workload: Workload, top_k: int) -> list[TuningRecord]:
        """Give the fastest records of a workload, by the mean of their times; those that failed are none."""
        known = self._find(workload.mod)
        rows = [row for mine, row in self._rows if mine is known and row.seconds < FAILED_SECONDS]
        found: list[TuningRecord] = []
        for row in sorted(rows, key=lambda row: row.seconds):
            if len(found) >= top_k:
                break
            record = row.load(workload)
            found += [] if record is None else [record]
        return found

    def get_all_tuning_records(self) -> list[TuningRecord]:
        """Give all records, in the order they were measured."""
        loaded = (row.load(workload) for workload, row in self._rows)
        return [record for record in loaded if record is not None]

    def __len__(self) -> int:
        return len(self._rows)


def _stamp(path: Path) -> tuple[int, int, int]:
    """Give what changes with a file."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return (0, 0, 0)
    return (state.st_ino, state.st_size, state.st_mtime_ns)
