"""Result files with one section for each kind of machine and part: a run replaces its own section and nothing else."""

from __future__ import annotations

import fcntl
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tvm_ext.bench.record import result_document
from tvm_ext.errors import OutputError
from tvm_ext.system.files import write_atomically
from tvm_ext.system.host import machine_kind


def commit() -> str | None:
    """Return the abbreviated commit of the checkout this package runs from, with ``+`` if files differ from it."""
    root = Path(__file__).resolve().parents[2]
    try:
        found = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=10"],
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def update_result(
    path: str | Path,
    *,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    summary: Mapping[str, float],
    part: str = "",
    command: str | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Write the figures of one run into a result file, in the place of those of the same part and kind of machine.

    Parameters
    ----------
    path : path
        The result file; made if it does not exist.
    name : str
        What was measured; the same for all parts of the file.
    rows, summary, command, notes
        As :func:`tvm_ext.bench.record.result_document` takes them.
    part : str
        The part of the measurement that this run made; empty where there is only one.

    Returns
    -------
    dict
        The document as written: ``name``, ``summary``, ``summary_of`` and ``sections``. The summary joins those of all
        sections; where several have a key, the kind of machine that ran last counts, and of that the newest run.
        ``summary_of`` names the kind of machine of each key. A section is a mapping with ``machine_kind``, ``part``,
        ``commit``, ``machine``, ``versions``, ``date``, ``command``, ``rows``, ``summary`` and ``notes``.

    Raises
    ------
    OutputError
        If the file cannot be written, or holds something else than a result of that name.
    """
    path = Path(path)
    measured = result_document(name, rows, summary, command=command, notes=notes)
    kind = machine_kind(measured["machine"])
    section = {"machine_kind": kind, "part": part, "commit": commit(), **measured}
    del section["name"]
    with _locked(path):
        sections = [
            other for other in read_sections(path, name) if (other["machine_kind"], other["part"]) != (kind, part)
        ]
        document = joined(name, [*sections, section])
        text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        write_atomically(path, text, make_folders=True)
    return document


def read_sections(path: Path, name: str) -> list[dict[str, Any]]:
    """Read the sections of a result file; one without sections is one section. No file: none.

    Raises
    ------
    OutputError
        If the file holds something else than a result of that name.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise OutputError(
            f"{path} cannot be read as a result file ({error}); move it away to begin a new one"
        ) from None
    if not isinstance(document, dict) or document.get("name") != name:
        raise OutputError(f"{path} is not a result of {name}; give another path")
    if "sections" in document:
        return list(document["sections"])
    del document["name"]
    return [{"machine_kind": machine_kind(document["machine"]), "part": "", "commit": None, **document}]


def joined(name: str, sections: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Make the document of some sections; see :func:`update_result`."""
    by_date = sorted(sections, key=lambda item: str(item["date"]))  # of the same second: the last of the list
    latest = by_date[-1]["machine_kind"] if by_date else ""
    summary: dict[str, float] = {}
    kinds: dict[str, str] = {}
    for item in sorted(by_date, key=lambda item: item["machine_kind"] == latest):
        summary.update(item["summary"])
        kinds.update(dict.fromkeys(item["summary"], item["machine_kind"]))
    ordered = sorted(sections, key=lambda item: (item["machine_kind"], item["part"]))
    return {"name": name, "summary": summary, "summary_of": kinds, "sections": ordered}


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock beside a file, so that two parts that end at the same time both get in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
