"""Pictures that are drawn with matplotlib, without a display, and appear whole or not at all."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tvm_ext.errors import MissingPackageError
from tvm_ext.system.files import write_atomically


@contextmanager
def picture(path: str | Path, size: tuple[float, float], dpi: int = 120, make_folders: bool = False) -> Iterator[Any]:
    """Give a figure of matplotlib to draw on; afterwards it is written, as SVG or PNG by the name of the file.

    Parameters
    ----------
    path : path
    size : tuple of float
        Width and height in inches.
    dpi : int
        Pixels an inch.
    make_folders : bool
        Whether the folder of the file is made where there is none.

    Raises
    ------
    MissingPackageError
        If matplotlib is not installed.
    OutputError
        If the file cannot be written.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackageError("a picture needs matplotlib; pip install 'tvm-ext[bench]'") from None
    buffer = io.BytesIO()
    # Text stays text in an SVG, and two drawings of one thing are the same file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "tvm-ext", "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=size, dpi=dpi, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        is_svg = Path(path).suffix.lower() == ".svg"
        figure.savefig(buffer, format="svg" if is_svg else "png", metadata={"Date": None} if is_svg else None)
    write_atomically(path, buffer.getvalue(), make_folders=make_folders)
