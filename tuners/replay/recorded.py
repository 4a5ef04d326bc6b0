"""Landscapes of which every point was measured: a tuner can be run on them without a machine, again and again."""

from __future__ import annotations

import importlib.resources
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvm_ext.errors import TuningError
from tvm_ext.tuners.space import ConfigSpace, Knob

VTA_LAYERS = "vta_table_5_1.npz"
"""The 13 layers of Rieber's table 5.1 on VTA's cycle model, which ``scripts/vta_landscapes.py`` writes."""


@dataclass(frozen=True)
class RecordedLandscape:
    """Run times of all configurations of a space.

    Attributes
    ----------
    name : str
    space : ConfigSpace
    cycles : array
        By index of the space (uint32); 0 where a configuration does not work.
    clock : float
        Cycles a second.
    """

    name: str
    space: ConfigSpace
    cycles: np.ndarray
    clock: float = 1e8

    def __post_init__(self) -> None:
        if self.cycles.shape != (self.space.size,):
            raise TuningError(
                f"landscape {self.name} has {self.cycles.shape} times for a space of {self.space.size} configurations"
            )

    def seconds(self, vectors: np.ndarray) -> np.ndarray:
        """Give the run time (n) of vectors (n x knobs); infinite where a configuration does not work."""
        cycles = self.cycles[self.space.keys(vectors)].astype(np.float64)
        return np.where(cycles > 0, cycles / self.clock, np.inf)

    def measure(self, vectors: np.ndarray, seed: int) -> np.ndarray:
        """Give the run time (n): a model's cycles are the same every time, whatever the seed."""
        return self.seconds(vectors)

    def works(self, vectors: np.ndarray) -> np.ndarray:
        """Tell which vectors (n x knobs) work (n): an oracle that is always right."""
        return self.cycles[self.space.keys(vectors)] > 0

    @property
    def best_seconds(self) -> float:
        """Run time of the fastest configuration."""
        return float(self.cycles[self.cycles > 0].min()) / self.clock

    @property
    def valid_share(self) -> float:
        """Share of the configurations that work."""
        return float((self.cycles > 0).mean())


def save_landscapes(path: Path, landscapes: Mapping[int, RecordedLandscape], notes: Mapping[str, Any]) -> None:
    """Write landscapes, by their numbers, to one compressed file; ``notes`` say how they were made."""
    rows = [
        {
            "number": number,
            "name": row.name,
            "clock": row.clock,
            "knobs": [[knob.name, list(knob.choices)] for knob in row.space.knobs],
        }
        for number, row in landscapes.items()
    ]
    tables: dict[str, Any] = {f"cycles_{number}": row.cycles.astype(np.uint32) for number, row in landscapes.items()}
    about = json.dumps({"notes": dict(notes), "landscapes": rows})
    np.savez_compressed(path, about=np.array(about), **tables)


def load_landscapes(path: Path | None = None) -> dict[int, RecordedLandscape]:
    """Read landscapes, by their numbers; those of VTA that come with the package by default.

    Raises
    ------
    TuningError
        If the file cannot be read or is damaged.
    """
    try:
        if path is not None:
            return _read(path)
        shipped = importlib.resources.files("tvm_ext.tuners.replay") / VTA_LAYERS
        with importlib.resources.as_file(shipped) as own:
            return _read(own)
    except (OSError, EOFError, KeyError, ValueError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise TuningError(f"{path or VTA_LAYERS}: no landscapes can be read from it ({error})") from None


def _read(path: Path) -> dict[int, RecordedLandscape]:
    with np.load(path, allow_pickle=False) as file:
        found = {}
        for row in json.loads(str(file["about"]))["landscapes"]:
            knobs = [
                Knob(name, tuple(tuple(choice) if isinstance(choice, list) else choice for choice in choices))
                for name, choices in row["knobs"]
            ]
            number = int(row["number"])
            cycles = file[f"cycles_{number}"]
            found[number] = RecordedLandscape(row["name"], ConfigSpace(knobs), cycles, float(row["clock"]))
        return found
