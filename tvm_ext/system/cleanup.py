"""What must not outlive a command: temporary files and folders, and child processes.

A process that is killed cannot clean up. What it left is removed by the next one that makes a temporary file or folder
in the same place: names of temporaries end in ``.tvm-ext``, and each is locked for as long as its process lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NEW_SECONDS = 60.0
"""How old a temporary must be that is not locked yet; making one and locking it takes a millisecond."""

_NAME = re.compile(r"\..*-[0-9a-f]{12}\.tvm-ext(\.new)?", re.DOTALL)
_NEW = ".new"

_temporaries: set[Path] = set()


@contextmanager
def temporary_folder(parent: Path, name: str) -> Iterator[Path]:
    """Make a hidden folder in ``parent`` that is gone afterwards, unless it was renamed.

    Parameters
    ----------
    parent : Path
        Folder that exists.
    name : str
        What it is for; part of its name.

    Raises
    ------
    OSError
        If the folder cannot be made.
    """
    with _temporary(parent, name, is_folder=True) as path:
        yield path


@contextmanager
def temporary_file(parent: Path, name: str) -> Iterator[Path]:
    """Make a hidden, empty file in ``parent`` that is gone afterwards, unless it was renamed."""
    with _temporary(parent, name, is_folder=False) as path:
        yield path


@contextmanager
def _temporary(parent: Path, name: str, is_folder: bool) -> Iterator[Path]:
    remove_leftovers(parent)
    # A part of the name only: with it whole, the hidden name could be longer than a file name may be.
    path = parent / f".{name[:40]}-{secrets.token_hex(6)}.tvm-ext"
    new = path.with_name(path.name + _NEW)
    _temporaries.update((new, path))  # before they exist: an interrupt may come between any two steps
    handle = None
    try:
        if is_folder:
            new.mkdir()
        handle = os.open(new, os.O_CLOEXEC | (os.O_RDONLY if is_folder else os.O_CREAT | os.O_EXCL | os.O_RDWR), 0o666)
        with contextlib.suppress(OSError):  # a file system without locks keeps leftovers
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.rename(path)
        yield path
    finally:
        _remove(new)
        _remove(path)
        if handle is not None:
            os.close(handle)


def remove_leftovers(parent: Path) -> None:
    """Remove the temporary files and folders in ``parent`` whose processes were killed."""
    names = []
    with contextlib.suppress(OSError), os.scandir(parent) as entries:  # whoever needs the folder finds out
        names = [entry.name for entry in entries if _NAME.fullmatch(entry.name)]
    for name in names:
        with contextlib.suppress(OSError):  # another user's, in use, or another process was quicker
            _remove_leftover(parent / name)


def _remove_leftover(path: Path) -> None:
    if path.name.endswith(_NEW) and time.time() - path.lstat().st_mtime < NEW_SECONDS:
        return
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(path)
    finally:
        os.close(handle)


def remove_temporaries() -> None:
    """Remove every temporary file and folder that is still there."""
    for path in list(_temporaries):
        _remove(path)


def end_children(seconds: float = 2.0) -> None:
    """End all descendants of this process: first politely, then, after ``seconds``, by force."""
    children = _descendants(os.getpid())
    for number in (signal.SIGTERM, signal.SIGKILL):
        for child in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, number)
        deadline = time.monotonic() + seconds
        while children and time.monotonic() < deadline:
            time.sleep(0.01)
            children = [child for child in children if _alive(child)]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    _temporaries.discard(path)


def _descendants(process: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{process}/task"):
            with contextlib.suppress(OSError):
                for child in map(int, Path(f"/proc/{process}/task/{task}/children").read_text().split()):
                    found += [child, *_descendants(child)]
    return found


def _alive(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"  # a zombie has ended, and only waits to be asked
