"""Where the scripts write their figures: what is quoted is of all cases that a script has, never of a selection."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tvm_ext.bench.record import check_writable
from tvm_ext.bench.sections import update_result

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"


def add_json_option(parser: argparse.ArgumentParser, name: str) -> None:
    """Add ``--json``, and note which file the figures are for."""
    parser.add_argument(
        "--json", type=Path, metavar="PATH",
        help=f"file of the figures (default: docs/results/{name}.json after a run of everything, else none)",
    )  # fmt: skip


def result_path(name: str, chosen: Path | None, is_whole: bool) -> Path | None:
    """Give the file for the figures of a run; None where there is none.

    Parameters
    ----------
    name : str
        What is measured.
    chosen : path, optional
        What the command line says.
    is_whole : bool
        Whether everything the script has is measured: a quick run, or one of chosen models, is for the screen.

    Raises
    ------
    OutputError
        If it cannot be written; before anything is measured.
    """
    path = chosen if chosen is not None or not is_whole else RESULTS / f"{name}.json"
    if path is not None:
        check_writable(path)
    return path


def store(
    path: Path | None,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    summary: Mapping[str, float],
    part: str = "",
    notes: Sequence[str] = (),
) -> None:
    """Put the figures of a part into their section of a file, if there is one."""
    if path is not None:
        update_result(path, name=name, part=part, rows=rows, summary=summary, notes=notes)
