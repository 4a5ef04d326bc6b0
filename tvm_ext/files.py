"""Writing files whole or not at all, and reading nothing but regular files."""

from __future__ import annotations

import ctypes
import os
import stat
from pathlib import Path

from tvm_ext.cleanup import temporary_file
from tvm_ext.errors import OutputError, TvmExtError


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


_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def require_regular(path: str | os.PathLike[str], refusal: type[TvmExtError]) -> None:
    """Refuse what is no regular file, nor a link to one, before it is opened: a pipe may block, a device never end.

    Parameters
    ----------
    path : path
        What is to be read. Where nothing or a folder is found, nothing is raised: to open it fails at once, and says
        why.
    refusal : type of TvmExtError
        The class to raise.

    Raises
    ------
    TvmExtError
        Of the class ``refusal``, if there is a pipe, a socket or a device.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        kind = next((name for test, name in _KINDS if test(mode)), "something else")
        raise refusal(f"{path} is {kind}, and only a regular file can be read; give the path of one")


_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # fcntl.h, linux/fs.h


def exchange(one: Path, other: Path) -> bool:
    """Let two files or folders on a file system swap names, in one step; False where the system cannot do so."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # a C library older than glibc 2.28
        return False
    paths = os.fsencode(one.absolute()), os.fsencode(other.absolute())
    return bool(renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0)
