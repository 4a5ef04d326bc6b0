"""Loads libraries so that one that was replaced since is not taken for the old one.

The dynamic loader recognises a library that it holds by the name that it was loaded by, before it looks at the file: a
model that is saved to the same folder again would be the old one for as long as the process lives.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import tvm_ffi

_lock = threading.Lock()
_loaded: dict[str, list[tuple[int, int]]] = {}
"""For each path the files (device, inode) that it stood for, in the order in which they were loaded."""


def load_file(library: Path) -> Any:
    """Load a library of compiled functions, as ``tvm.runtime.load_module`` does, under a name of its own.

    Files that take each other's place at a path get as many slashes before the last part as there were: names that
    differ, of the same path, which TVM's function would make one again. A file that is there already is shared.

    Raises
    ------
    RuntimeError, ValueError, OSError
        If it cannot be loaded.
    """
    path = library.resolve()
    status = path.stat()
    file = status.st_dev, status.st_ino
    with _lock:
        files = _loaded.setdefault(str(path), [])
        if not files or files[-1] != file:
            files.append(file)
        name = f"{path.parent}{'/' * len(files)}{path.name}"
    return tvm_ffi.load_module(name)
