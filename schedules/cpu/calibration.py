"""Figures of this machine that ``tvm-ext calibrate`` measured: where they are kept, and when they are used."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_ext.errors import TvmExtWarning, warn
from tvm_ext.system.files import irregular_kind, write_atomically
from tvm_ext.system.host import machine as this_machine

FORMAT = 2
"""Of the file. The first one held the figures of one machine; it is still read."""

PLAUSIBLE = {
    "clock": (1e7, 1e11),
    "flops": (1e6, 1e15),
    "bandwidth": (1e6, 1e15),
    "function_seconds": (1e-14, 1e-3),
    "operation_seconds": (1e-14, 1e-3),
    "fork_seconds": (1e-9, 1.0),
    "call_seconds": (1e-9, 1.0),
}
"""Least and largest of a figure, by how its name ends: no machine, emulated or busy, is beyond. What a damaged file
says may be a number, and a kernel that is planned with it slow, or what is computed from it infinite."""

VARIABLE = "TVM_EXT_CALIBRATION"
"""Environment variable that names another file; none is read if it is empty."""


@dataclass(frozen=True)
class Calibration:
    """What was measured of a machine.

    Attributes
    ----------
    figures : mapping from str to float
        By the names of the fields of :class:`tvm_ext.schedules.cpu.machine.Machine`.
    date : str
        When, as ISO 8601 has it.
    """

    figures: Mapping[str, float]
    date: str


class Stale(Exception):
    """Raised inside this module: there is a file, and why its figures are not to be used."""


def calibration_path() -> Path | None:
    """Return the file of the figures; None if none is to be read."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return Path(named) if named else None
    caches = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(caches) if caches else Path.home() / ".cache") / "tvm-ext" / "machine.json"
    except RuntimeError:  # a user without a name, as in many containers, and HOME is not set
        return None


def identity() -> dict[str, Any]:
    """Return what a machine is told by from others, whose figures are not its own."""
    known = this_machine()
    return {key: known[key] for key in ("cpu", "family", "cores", "isa")}


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write the figures of this machine; those of others that are in the file stay in it.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    row = {"machine": identity(), "date": calibration.date, "figures": dict(calibration.figures)}
    try:
        others = [other for other in _rows(path) or () if other["machine"] != row["machine"]]
    except Stale:
        others = []  # it is damaged, or of another version
    document = {"format": FORMAT, "machines": [*others, row]}
    write_atomically(path, json.dumps(document, indent=1) + "\n", make_folders=True)


def read_calibration(names: Collection[str]) -> Calibration | None:
    """Read the figures of this machine, if they were measured.

    A file that is damaged, of another machine, or of another version of the package is left alone, with a warning.

    Parameters
    ----------
    names : collection of str
        The figures that there have to be.
    """
    path = calibration_path()
    try:
        return None if path is None else _read(path, names)
    except Stale as fault:
        warn(f"the calibration {path} is not used: {fault}; {REMEDY}", TvmExtWarning)
        return None


REMEDY = "run 'tvm-ext calibrate' to measure this machine anew, or remove the file"


def stale(names: Collection[str]) -> str | None:
    """Say why the file that there is does not have the figures of this machine; None if it has, or there is none."""
    path = calibration_path()
    try:
        if path is not None:
            _read(path, names)
    except Stale as fault:
        return str(fault)
    return None


def _read(path: Path, names: Collection[str]) -> Calibration | None:
    rows = _rows(path)
    if rows is None:
        return None
    mine = identity()
    row = next((row for row in rows if row["machine"] == mine), None)
    if row is None:
        raise Stale("it is of another machine")
    figures = row.get("figures")
    if not isinstance(figures, dict) or set(figures) != set(names):
        raise Stale("it does not have the figures of this version")
    for name, value in figures.items():
        least, largest = next(ends for ending, ends in PLAUSIBLE.items() if name.endswith(ending))
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= largest:
            raise Stale(f"its {name} is {value!r}, expected a number from {least:g} to {largest:g}")
    if not isinstance(row.get("date"), str):
        raise Stale("it has no date")
    return Calibration(figures, row["date"])


def _rows(path: Path) -> list[dict[str, Any]] | None:
    """Read what a file has of each machine; None where there is no file."""
    if kind := irregular_kind(path):  # a device may never end
        raise Stale(f"it is {kind}, no regular file")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise Stale(f"it cannot be read ({' '.join(str(error).split())})") from None
    form = document.get("format") if isinstance(document, dict) else None
    rows = {1: [document], FORMAT: document.get("machines")}.get(form) if isinstance(form, int) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "machine" in row for row in rows):
        raise Stale(f"it is not of format {FORMAT}")
    return rows
