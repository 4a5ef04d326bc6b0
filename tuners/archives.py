"""Archives of NumPy that trained parts are kept in, and what reading a damaged one may raise."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from tvm_ext.errors import first_line

DAMAGES = (OSError, KeyError, ValueError, TypeError, IndexError, EOFError, zipfile.BadZipFile, zlib.error)
"""What reading a damaged file may raise."""


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a file by their names.

    Raises
    ------
    OSError
        If it cannot be opened.
    ValueError
        If it is damaged.
    """
    with path.open("rb") as opened:
        if not zipfile.is_zipfile(opened):  # NumPy would take it for a pickle, and advise to read it as one
            raise ValueError("it is no archive of NumPy, .npz")
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # by what is damaged: encryption that there is not, a header that is no Python
        raise ValueError(f"its bytes are damaged: {first_line(error)}") from None


def spelled(error: Exception) -> str:
    """Say what was wrong with a file, of what :data:`DAMAGES` lists."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"it has no {error.args[0]!r}" if isinstance(error, KeyError) and error.args else first_line(error)
