"""What every benchmark result records: the machine, the versions, the command; and how it is written."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tvm_ext.system.files import write_atomically
from tvm_ext.system.host import machine

PACKAGES = (
    "tvm-ext",
    "apache-tvm",
    "apache-tvm-ffi",
    "numpy",
    "onnx",
    "onnxruntime",
    "openvino",
    "torch",
)


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """List Python's version and that of each package of ``packages`` that is installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def command_line() -> str:
    """Return the command that started this process, without the folders of the program and of other absolute paths."""
    arguments = [Path(item).name if os.path.isabs(item) else item for item in sys.argv[1:]]
    return shlex.join([Path(sys.argv[0]).name, *arguments])


def result_document(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    summary: Mapping[str, float],
    *,
    command: str | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Put a result into the layout that all benchmarks share.

    Parameters
    ----------
    name : str
        What was measured.
    rows : sequence of mapping
        One mapping per measured case, JSON values only.
    summary : mapping of str to number
        The figures worth quoting.
    command : str, optional
        The command that repeats the measurement; that of this process if left out.
    notes : sequence of str
        Sentences a reader must know, such as warnings about a busy machine; left out of the document when empty.

    Returns
    -------
    dict
        ``name``, ``machine``, ``versions``, ``date`` (UTC, ISO 8601), ``command``, ``rows``, ``summary`` and ``notes``.
    """
    document: dict[str, Any] = {
        "name": name,
        "machine": machine(),
        "versions": versions(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command if command is not None else command_line(),
        "rows": [dict(row) for row in rows],
        "summary": dict(summary),
    }
    if notes:
        document["notes"] = list(notes)
    return document


def write_result(
    path: str | Path,
    *,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    summary: Mapping[str, float],
    command: str | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Write a result as JSON: the whole file appears at once, or nothing does.

    The parameters are those of :func:`result_document`; missing folders are made.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    document = result_document(name, rows, summary, command=command, notes=notes)
    # NaN and infinity are not JSON: a reader in another language would refuse the file.
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(path, text, make_folders=True)
