"""What must not outlive an interrupted command: temporary files and folders, and child processes."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    path = _fresh_path(parent, name)
    _temporaries.add(path)  # before it exists: an interrupt may come between any two steps
    try:
        path.mkdir()
        yield path
    finally:
        _remove(path)


@contextmanager
def temporary_file(parent: Path, name: str) -> Iterator[Path]:
    """Give the path of a hidden file in ``parent``, not made yet, that is gone afterwards, unless it was renamed."""
    path = _fresh_path(parent, name)
    _temporaries.add(path)
    try:
        yield path
    finally:
        _remove(path)


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


def _fresh_path(parent: Path, name: str) -> Path:
    # A part of the name only: with it whole, the hidden name could be longer than a file name may be.
    return parent / f".{name[:40]}-{secrets.token_hex(6)}"


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
