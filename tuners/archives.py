"""Archives of NumPy that trained parts are kept in, and what reading a damaged one may raise."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

DAMAGES = (OSError, KeyError, ValueError, TypeError, IndexError, EOFError, zipfile.BadZipFile, zlib.error)
"""What reading a damaged file may raise."""


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a file by their names; raises one of :data:`DAMAGES` where that cannot be done."""
    with path.open("rb") as opened:
        if not zipfile.is_zipfile(opened):  # NumPy would take it for a pickle, and advise to read it as one
            raise ValueError("it is no archive of NumPy, .npz")
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
