"""Data sheets of GPUs, CPUs, Hexagon and VTA: rows of numbers, each kind with its own columns."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from tvm_ext.errors import TuningError

SHEETS = "datasheets.json"


@dataclass(frozen=True)
class DataSheets:
    """The data sheets of one kind of hardware.

    Attributes
    ----------
    kind : str
    fields : tuple of str
        Names of the columns; what they count in is part of the name.
    rows : mapping
        By device, in the order of the fields.
    source : str

    Raises
    ------
    TuningError
        If a row has another number of columns, or one that is no number of 0 or more; the message names it.
    """

    kind: str
    fields: tuple[str, ...]
    rows: Mapping[str, tuple[float, ...]]
    source: str = ""

    def __post_init__(self) -> None:
        for device, row in self.rows.items():
            if len(row) != len(self.fields):
                raise TuningError(
                    f"data sheet of {self.kind} {device}: {len(row)} numbers for {len(self.fields)} columns "
                    f"({', '.join(self.fields)})"
                )
            for field, value in zip(self.fields, row, strict=True):
                if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < np.inf:
                    raise TuningError(
                        f"data sheet of {self.kind} {device}: {field} is {value!r}; expected a number of 0 or more"
                    )

    def row(self, device: str) -> tuple[float, ...]:
        """Look a device up.

        Raises
        ------
        TuningError
            If it has no row; the message lists those there are.
        """
        if device not in self.rows:
            raise TuningError(f"no data sheet of {self.kind} {device!r}; there are those of {', '.join(self.rows)}")
        return self.rows[device]

    def table(self, leave_out: Sequence[str] = ()) -> np.ndarray:
        """Give the rows (devices x fields), without some devices."""
        return np.array([row for device, row in self.rows.items() if device not in leave_out], np.float64)


@lru_cache(maxsize=1)
def _shipped() -> dict[str, DataSheets]:
    text = (importlib.resources.files("tvm_ext.tuners.glimpse") / SHEETS).read_text("utf-8")
    return _parsed(text, SHEETS)


def _parsed(text: str, source: str) -> dict[str, DataSheets]:
    try:
        return {
            kind: DataSheets(
                kind,
                tuple(part["fields"]),
                {device: tuple(row) for device, row in part["rows"].items()},
                str(part["source"]),
            )
            for kind, part in json.loads(text).items()
        }
    except (json.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise TuningError(
            f"{source}: no data sheets ({type(error).__name__}: {error}); "
            "expected of each kind its source, fields and rows"
        ) from None


def data_sheets(kind: str, path: Path | None = None) -> DataSheets:
    """Give the data sheets of a kind: ``gpu``, ``cpu``, ``hexagon`` or ``vta``.

    Parameters
    ----------
    path : Path, optional
        Of a file like the one that comes with the package.

    Raises
    ------
    TuningError
        If there are none of that kind, or the file is damaged.
    """
    try:
        known = _shipped() if path is None else _parsed(path.read_text("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise TuningError(f"{path}: data sheets cannot be read ({error})") from None
    if kind not in known:
        raise TuningError(f"no data sheets of kind {kind!r}; there are {', '.join(known)}")
    return known[kind]
