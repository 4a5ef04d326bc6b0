"""Where the scripts write their figures: what is quoted is of all cases that a script has, never of a selection."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tvm_ext.bench.sections import update_result
from tvm_ext.system.files import check_output

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
        check_output(path, [])
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


def add_keep_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--keep``, with which a run that was stopped goes on."""
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FILE",
        help="JSON lines of rows: those there are not measured anew, others are added",
    )


def read_rows(path: Path | None) -> list[dict[str, Any]]:
    """Read rows that were kept; a file that is not there, or none, has none."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def add_row(path: Path | None, row: Mapping[str, Any]) -> None:
    """Keep one more row, if there is a file for them."""
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def kept_or(path: Path | None, key: Mapping[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Give the kept row that has the values of ``key``, or measure one and keep it."""
    for row in read_rows(path):
        if all(row.get(name) == value for name, value in key.items()):
            return row
    row = measure()
    add_row(path, row)
    return row
