"""Folders for what lies on the disk while candidates are measured; those of killed runs are removed by the next run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path

PREFIX = "tvm-ext-tune-"
YOUNG_SECONDS = 60.0
"""A folder this new may be one that is not locked yet."""


class ScratchFolder:
    """A folder of its own, gone with this object or at the end of the process.

    It is locked for as long as its process lives, so that others can tell it from one that a killed process left.

    Attributes
    ----------
    path : Path
    """

    def __init__(self) -> None:
        _remove_leftovers(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # a file system without locks keeps leftovers
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.close = weakref.finalize(self, _remove, self.path, handle)


def _remove(path: Path, handle: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(handle)


def _remove_leftovers(parent: Path) -> None:
    for path in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or another process was quicker
            if time.time() - path.stat().st_mtime < YOUNG_SECONDS:
                continue
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(handle)
