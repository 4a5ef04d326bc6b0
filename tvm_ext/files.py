"""Writing files whole or not at all."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from tvm_ext.cleanup import temporary_file
from tvm_ext.errors import OutputError


def write_atomically(path: str | Path, data: str | bytes, *, make_folders: bool = False) -> None:
    """Write a file so that it appears whole or not at all.

    Parameters
    ----------
    path : str or Path
        The file; a pipe or a device is written to and not replaced.
    data : str or bytes
        Text is written as UTF-8.
    make_folders : bool
        Make missing folders.

    Raises
    ------
    OutputError
        If the path cannot be written (no permission, a folder) or the disk is full.
    """
    path = Path(path)
    payload = data.encode() if isinstance(data, str) else data
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(payload)
            return
        folder = path.absolute().parent
        if make_folders:
            folder.mkdir(parents=True, exist_ok=True)
        with temporary_file(folder, path.name) as partial:
            partial.write_bytes(payload)
            partial.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; choose another path") from None


_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # fcntl.h, linux/fs.h


def exchange(one: Path, other: Path) -> bool:
    """Let two files or folders on a file system swap names, in one step; False where the system cannot do so."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # a C library older than glibc 2.28
        return False
    paths = os.fsencode(one.absolute()), os.fsencode(other.absolute())
    return bool(renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0)
