"""Figures of this machine that ``tvm-ext calibrate`` measured: where they are kept, and when they are used."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_ext.errors import TvmExtWarning, warn
from tvm_ext.system.files import write_atomically
from tvm_ext.system.host import machine as this_machine

FORMAT = 1
"""Of the file; figures of another format mean something else."""

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


def calibration_path() -> Path | None:
    """Return the file of the figures; None if none is to be read."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return Path(named) if named else None
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "tvm-ext" / "machine.json"


def identity() -> dict[str, Any]:
    """Return what a machine is told by from others, whose figures are not its own."""
    known = this_machine()
    return {key: known[key] for key in ("cpu", "family", "cores", "isa")}


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write the figures of this machine.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    document = {
        "format": FORMAT,
        "machine": identity(),
        "date": calibration.date,
        "figures": dict(calibration.figures),
    }
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
    if path is None:
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        fault = _fault(document, names)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        fault = f"it cannot be read ({' '.join(str(error).split())})"
    if fault:
        warn(f"the calibration {path} is not used: {fault}; {REMEDY}", TvmExtWarning)
        return None
    return Calibration(document["figures"], document["date"])


REMEDY = "run 'tvm-ext calibrate' to measure this machine anew, or remove the file"


def _fault(document: Any, names: Collection[str]) -> str:
    """Say why the figures of a file are not to be used; nothing if they are."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        return f"it is not of format {FORMAT}"
    if document.get("machine") != identity():
        return "it is of another machine"
    figures = document.get("figures")
    if not isinstance(figures, dict) or set(figures) != set(names):
        return "it does not have the figures of this version"
    for name, value in figures.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            return f"its {name} is {value!r}, expected a positive number"
    return "" if isinstance(document.get("date"), str) else "it has no date"
