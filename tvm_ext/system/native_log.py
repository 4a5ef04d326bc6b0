"""Taking what C++ code writes to stderr by itself, so that it can become part of an error, or be left out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def captured_stderr() -> Iterator[list[str]]:
    """Collect the lines that anything in this process writes to file descriptor 2.

    For short calls that cannot crash the process: the lines are in the list only afterwards, and a process that dies
    takes them with it. Where there is no stderr, nothing is collected.

    Yields
    ------
    list of str
        The lines, filled in at the end.
    """
    lines: list[str] = []
    try:
        saved = os.dup(2)
    except OSError:
        yield lines
        return
    try:
        # In memory: there may be no folder for temporary files, or a full one.
        with os.fdopen(os.memfd_create("tvm_ext"), "w+b") as stream:
            os.dup2(stream.fileno(), 2)
            try:
                yield lines
            finally:
                os.dup2(saved, 2)
                stream.seek(0)
                lines += stream.read().decode("utf-8", errors="replace").splitlines()
    finally:
        os.close(saved)
