"""Where an artifact may be written: a folder that is new, empty, or holds nothing but an artifact."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

from tvm_ext.errors import OutputError, TvmExtError
from tvm_ext.system.cleanup import temporary_folder
from tvm_ext.system.files import ARTIFACT, exchange


def check_destination(folder: Path, force: bool) -> None:
    """Say early whether an artifact can be written to ``folder``; a folder is made beside it to be sure.

    Raises
    ------
    OutputError
        If something is there that must not be replaced, or no folder can be made there.
    """
    as_path(folder, OutputError)
    try:
        check_existing(folder, force)
        parent = folder.absolute().parent
        while not os.path.lexists(parent) and parent != parent.parent:
            parent = parent.parent
        if not parent.is_dir():
            raise OutputError(f"cannot create {folder}: {parent} is not a folder")
        with temporary_folder(parent, folder.name):
            pass
    except OSError as error:
        raise OutputError(f"cannot create {folder}: {error.strerror or error}; give another folder") from None


def check_existing(folder: Path, force: bool) -> None:
    """Refuse what stands at the place of an artifact, unless it may be replaced.

    Raises
    ------
    OutputError
        If it is no folder, holds anything but an artifact, or ``force`` is missing.
    """
    try:
        folder.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    if folder.is_symlink():
        raise OutputError(f"{folder} is a link, which stays; give the folder that it leads to, or another name")
    if not folder.is_dir():
        raise OutputError(f"{folder} exists and is not a folder; give another name")
    if folder.is_mount() or not folder.name or folder.name == "..":
        raise OutputError(f"{folder} cannot be replaced; give a folder inside it, such as {folder / 'model'}")
    entries = sorted(entry.name for entry in folder.iterdir())
    if entries and not force:
        raise OutputError(
            f"{folder} exists already; give another folder, or --force (in Python force=True) to replace it"
        )
    known = {*ARTIFACT, *_listed(folder / ARTIFACT[1])}
    strangers = [name for name in entries if name not in known]
    if strangers:
        raise OutputError(
            f"{folder} holds more than an artifact ({strangers[0]}); it is not replaced, give another folder"
        )


def put_in_place(partial: Path, folder: Path, force: bool) -> None:
    """Rename ``partial`` to ``folder``; what was there gets the name ``partial``, and is put back if that fails.

    Raises
    ------
    OutputError
        If something is there that must not be replaced: it may have come after :func:`check_destination`.
    OSError
        If the system refuses.
    """
    try:
        partial.rename(folder)  # over nothing but an empty folder
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
    check_existing(folder, force)
    if exchange(folder, partial):
        return
    aside = partial.with_name(f"{partial.name}-old")  # where it is not lost if this process is killed now
    folder.rename(aside)
    try:
        partial.rename(folder)
    except BaseException:
        if not folder.exists():
            aside.rename(folder)
        raise
    aside.rename(partial)


def _listed(metadata: Path) -> set[str]:
    """Names of the files that an artifact says it is made of, and of those that its ``Makefile`` builds of them."""
    try:
        files = {str(name) for name in json.loads(metadata.read_text(encoding="utf-8"))["files"]}
        if "Makefile" not in files:
            return files
        sources = {name[:-2] for name in files if name.endswith(".c")}
        programs = {name[:-2] for name in files if name.endswith(".h")} & sources
        built = {f"{name}.o" for name in sources} | programs | {f"lib{name}.a" for name in programs}
        return files | built
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return set()


def as_path(folder: Any, refusal: type[TvmExtError]) -> Path:
    """Make a path of what a caller gave, if it is one under which TVM can read and write files."""
    if not isinstance(folder, str | os.PathLike) or isinstance(os.fspath(folder), bytes):
        raise refusal(f"{folder!r} is not the path of a folder; give a str or a pathlib.Path")
    path = Path(folder)
    if "\0" in str(path):
        raise refusal(f"{str(path)!r} holds a null character, which no path may; give another name")
    try:
        str(path.absolute()).encode()
    except OSError:
        raise refusal(f"{path} is relative to a folder that was deleted; give an absolute path") from None
    except UnicodeEncodeError:  # TVM's C++ side takes names as UTF-8
        if sys.getfilesystemencoding() != "utf-8":
            raise refusal(
                f"{str(path.absolute())!r} has characters that the locale's encoding, {sys.getfilesystemencoding()}, "
                f"lacks; set PYTHONUTF8=1, or give another name"
            ) from None
        raise refusal(f"{str(path.absolute())!r} is not valid UTF-8; give another name, or another folder") from None
    return path
