"""What decides what is compiled asks no clock: a busy machine compiles the same code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PLANNERS = (
    *(
        f"tvm_ext/{room}"
        for room in ("algebra", "fusion", "graph", "layout", "memory", "passes", "quantized", "shapes")
    ),
    "schedules",
)
REPORTED = {
    "tvm_ext/memory/order.py": "how long the search took, for reports",
    "tvm_ext/fusion/profile_database.py": "how long to wait for another process that writes the file",
    "tvm_ext/fusion/relax/latency.py": "latencies of kernels, measured only where a file for them is given",
}
"""Where a clock is read and decides nothing, and what for."""


def clocks(path: Path) -> list[int]:
    """Give the lines of a file that bring in a clock, or a limit that is one."""
    lines = []
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        names += [node.attr] if isinstance(node, ast.Attribute) else []
        if {"time", "datetime", "max_time_in_seconds", "process_time"} & set(names):
            lines.append(node.lineno)
    return lines


@pytest.mark.parametrize("folder", PLANNERS)
def test_planners_ask_no_clock(folder: str) -> None:
    files = {path.relative_to(ROOT).as_posix(): path for path in sorted((ROOT / folder).rglob("*.py"))}
    assert files
    assert not {name: found for name, path in files.items() if name not in REPORTED and (found := clocks(path))}


def test_reported_times_are_there() -> None:
    assert all(clocks(ROOT / name) for name in REPORTED)
