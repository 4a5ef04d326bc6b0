"""The files of a tuning database, as several processes may use them at once, and as a killed one may leave them.

They are those of TVM's ``JSONDatabase``: a line for each workload (its hash, its module), and a line for each record
(the number of its workload's line, the record). TVM reads them once and counts on being alone: two of its writers give
one number to two workloads, and a line that was cut short makes the folder unreadable.

Here a writer holds a lock for as long as it takes to look up a workload's number and to append a line. What it finds
cut short at the end is moved to a file ``NAME.damaged``. Readers need no lock: they pass over an unfinished last line,
and read the records first, so that every workload these name is there.

``flock`` ends with the process that holds it, also when that is killed. The lock file stays: a lock on a file that
others may remove is none.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tvm_ext.errors import OutputError, TuningError
from tvm_ext.system.files import require_regular, write_remedy

WORKLOADS, RECORDS, VERSION = "database_workload.json", "database_tuning_record.json", "database_version.json"
CONFIRMED = "database_confirmed.json"
LEFT_ALONE, NETWORKS = "database_left_alone.json", "database_networks.json"
VTA_SCHEDULES = "vta_schedules.json"
"""Beside a database: schedules of layers on VTA, which no other target takes."""
LOCK, RUN_LOCK = "database.lock", "database_run.lock"

DAMAGED = ".damaged"
"""What the name of a file gets behind it for the one that takes its damaged lines."""

PATIENCE_SECONDS = 60.0
"""How long a writer waits for another one; a line takes milliseconds."""

UNFINISHED_SECONDS = 0.2
"""How long a last line may stay unfinished before it counts as cut short: TVM's own writers hold no lock."""


def unwritable(folder: Path, error: OSError) -> OutputError:
    """Say why a database cannot be written, and what to do about it."""
    return OutputError(f"cannot write the database in {folder}: {error.strerror or error}; {write_remedy(error)}")


@contextlib.contextmanager
def locked(folder: Path, patience: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Be the only writer of a database; not for use inside itself.

    Raises
    ------
    OutputError
        If another process writes for longer than ``patience`` seconds; the message says which.
    OSError
        If the folder cannot be written.
    """
    with (folder / LOCK).open("a+", encoding="utf-8") as file:
        deadline = time.monotonic() + patience
        while not _taken(file):
            if time.monotonic() > deadline:
                raise OutputError(
                    f"the database in {folder} has been locked by {_holder(file)} for more than {patience:.0f} s; end "
                    "it, or use another folder"
                )
            time.sleep(0.005)
        yield


@contextlib.contextmanager
def announced(folder: Path) -> Iterator[str | None]:
    """Say to later runs on a folder that there is this one; gives the run that is there already, or None.

    Runs on one folder are allowed: what one finds, the others keep. But they disturb one another's times.

    Raises
    ------
    OutputError
        If the folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context((folder / RUN_LOCK).open("a+", encoding="utf-8"))
            beside = None if _taken(file) else _holder(file)
        except OSError as error:
            raise unwritable(folder, error) from None
        yield beside


def _taken(file: Any) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    # Past the buffer of the file, which would be written once more, and fail again, when it is closed.
    os.ftruncate(file.fileno(), 0)
    os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
    return True


def _holder(file: Any) -> str:
    file.seek(0)
    return file.read(200) or "another process"


def lines_of(path: Path) -> list[str]:
    """Read the finished lines of a file; none where there is no file.

    A last line without its end counts where it is a whole JSON value: its writer was killed between the two.
    """
    require_regular(path, TuningError)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    whole = content.rfind(b"\n") + 1
    if content[whole:] and _is_json(content[whole:]):
        whole = len(content)
    return content[:whole].decode("utf-8", "replace").splitlines()


def append(path: Path, line: str) -> None:
    """Append a line, all of it or nothing, and have it on the disk; for a writer that holds the lock.

    Raises
    ------
    OSError
        If it cannot be written; the file is as it was.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        _finish_last_line(path, handle)
        size = os.fstat(handle).st_size
        rest = memoryview(line.encode() + b"\n")
        try:
            while rest:
                rest = rest[os.write(handle, rest) :]
        except BaseException:
            os.ftruncate(handle, size)
            raise
        try:
            os.fsync(handle)  # a busy disk takes its time; who interrupts that keeps the line, which is whole
        except OSError:
            os.ftruncate(handle, size)
            raise
    finally:
        os.close(handle)


def finish_last_lines(folder: Path) -> None:
    """Move what a killed writer left unfinished out of the way, so that TVM can read the files, too; under the lock."""
    for name in (WORKLOADS, RECORDS, CONFIRMED, LEFT_ALONE, NETWORKS):
        if (folder / name).is_file():
            handle = os.open(folder / name, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            try:
                _finish_last_line(folder / name, handle)
            finally:
                os.close(handle)


def _finish_last_line(path: Path, handle: int) -> None:
    size = os.fstat(handle).st_size
    if not size or os.pread(handle, 1, size - 1) == b"\n":
        return
    deadline = time.monotonic() + UNFINISHED_SECONDS
    while time.monotonic() < deadline:
        time.sleep(0.01)
        if os.fstat(handle).st_size != size:
            _finish_last_line(path, handle)
            return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if _is_json(content[whole:]):
        os.write(handle, b"\n")
        return
    keep_damaged(path, [content[whole:].decode("utf-8", "replace")])
    os.ftruncate(handle, whole)


def keep_damaged(path: Path, lines: list[str]) -> Path:
    """Append lines to the file of a file's damaged lines; gives its path."""
    damaged = path.with_name(path.name + DAMAGED)
    with damaged.open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())
    return damaged


def _is_json(content: bytes) -> bool:
    try:
        return isinstance(json.loads(content), list)
    except (ValueError, RecursionError):
        return False
