"""Writing files whole or not at all, and reading nothing but regular files."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tvm_ext.errors import OutputError, TvmExtError
from tvm_ext.system.cleanup import temporary_file

ARTIFACT = "model.so", "metadata.json"
"""The files of an artifact."""


def check_output(path: str | os.PathLike[str], reads: Iterable[str | os.PathLike[str]]) -> None:
    """Refuse to write a file over what a command reads, or among the files of an artifact, before the work is done.

    Parameters
    ----------
    path : path
        The file that is to be written.
    reads : iterable of path
        Files and folders that the command reads; what does not exist is passed over.

    Raises
    ------
    OutputError
        If ``path``, links followed, is or lies in one of ``reads``, is in the folder of an artifact, is a folder, or is
        a pipe that nobody reads; or if its nearest folder that exists is none, or does not allow writing.
    """
    try:
        place = Path(os.path.realpath(path))
    except OSError as error:  # the current folder was deleted
        raise OutputError(f"cannot write {path}: {error.strerror}; give an absolute path") from None
    if place.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder; give a file name")
    for read in reads:
        if _is_same(place, read) or Path(os.path.realpath(read)) in (place, *place.parents):
            raise OutputError(f"cannot write {path}: {read} is read by this command; choose another path")
    if all(place.with_name(name).exists() for name in ARTIFACT):
        raise OutputError(f"cannot write {path}: {place.parent} is an artifact; choose another folder")
    if place.is_fifo():
        os.close(_open_pipe(place))
    if place.exists() and not place.is_file():  # a device, which stays
        return
    folder = next(parent for parent in Path(path).absolute().parents if parent.exists())
    if not folder.is_dir():
        raise OutputError(f"cannot write {path}: {folder} is not a folder; choose another path")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write {path}: no permission to write in {folder}; choose another path")


def _is_same(place: Path, other: str | os.PathLike[str]) -> bool:
    """Tell whether two paths are one regular file, by whatever names."""
    try:
        return place.is_file() and os.path.samefile(place, other)
    except OSError:
        return False


def _open_pipe(path: Path) -> int:
    """Open what is no regular file to be written, without waiting for somebody who reads it."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        reason = "nobody reads this pipe" if error.errno == errno.ENXIO else error.strerror
        raise OutputError(f"cannot write {path}: {reason}; choose another path") from None
    os.set_blocking(handle, True)
    return handle


def write_remedy(error: OSError) -> str:
    """Say what to do about a file that could not be written."""
    if error.errno == errno.EFBIG:
        return "raise the limit on file sizes (ulimit -f)"
    return (
        "free some space or write elsewhere" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "choose another path"
    )


def write_atomically(path: str | Path, data: str | bytes, *, make_folders: bool = False) -> None:
    """Write a file so that it appears whole or not at all.

    Parameters
    ----------
    path : str or Path
        The file; a device, or a pipe that somebody reads, is written to and not replaced.
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
            with os.fdopen(_open_pipe(path), "wb") as stream:
                stream.write(payload)
            return
        folder = path.absolute().parent
        if make_folders:
            folder.mkdir(parents=True, exist_ok=True)
        with temporary_file(folder, path.name) as partial:
            partial.write_bytes(payload)
            partial.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; {write_remedy(error)}") from None


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Wait until no other process is here with the same lock file, which stays: a lock on a removed file is none.

    Raises
    ------
    OutputError
        If the file cannot be made.
    """
    try:
        file = path.open("a", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; {write_remedy(error)}") from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def irregular_kind(path: str | os.PathLike[str]) -> str | None:
    """Say what is at a path if that is no regular file, nor a link to one: a pipe may block, a device never end.

    None where a regular file, a folder or nothing is found: to open the latter two fails at once, and says why.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return None
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return None
    return next((name for test, name in _KINDS if test(mode)), "something else")


def require_regular(path: str | os.PathLike[str], refusal: type[TvmExtError]) -> None:
    """Refuse what is no regular file before it is opened; see :func:`irregular_kind`.

    Parameters
    ----------
    path : path
        What is to be read.
    refusal : type of TvmExtError
        The class to raise.

    Raises
    ------
    TvmExtError
        Of the class ``refusal``, if there is a pipe, a socket or a device.
    """
    kind = irregular_kind(path)
    if kind is not None:
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
