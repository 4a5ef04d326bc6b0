"""A benchmark as text: one table, then what failed, then remarks."""

from __future__ import annotations

import json
from typing import IO

from rich.console import Console
from rich.table import Table

from tvm_ext.bench.result import BenchResult, Row

PLAIN_WIDTH = 120


def print_result(result: BenchResult, stream: IO[str] | None = None) -> None:
    """Print a result.

    Parameters
    ----------
    result : BenchResult
        What to print.
    stream : text file, optional
        Where to; standard output by default.
    """
    console = Console(file=stream, highlight=False, soft_wrap=False)
    if not console.is_terminal:  # a pipe has no width of its own, and a table cut at 80 columns is of no use in a file
        console.width = PLAIN_WIDTH
    threads = f"{result.threads} thread{'s' if result.threads > 1 else ''}"
    console.print(f"[bold]{result.model}[/bold]: latency, float32, {threads}, TVM target {_brief(result.target)}")
    console.print(_table(result))
    for row in result.rows:
        if row.error is not None:
            console.print(f"{row.label} failed: {row.error}", style="red", markup=False)
    if result.reference is not None:
        console.print(
            f"Errors are largest absolute differences from {result.reference}, divided by the standard deviation of "
            "the output.",
            markup=False,
        )
    if result.noise_ratio is not None:
        console.print(
            f"Noise: {result.noise_engine} in a second process took {result.noise_ratio:.3f} times its own median.",
            markup=False,
        )
    for note in result.notes:
        console.print(note, style="yellow" if note.startswith("warning") else None, markup=False)


def _brief(target: str) -> str:
    """Spell a target by what decides its speed: its kind and CPU model."""
    fields = json.loads(target)
    return " ".join(str(fields[key]) for key in ("kind", "mcpu") if key in fields)


def _table(result: BenchResult) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("engine")
    table.add_column("version")
    for title in ("median ms", "quartiles ms", "min ms", "x best", "runs", "error", "build s"):
        table.add_column(title, justify="right", no_wrap=True)
    compiled = any(row.kernels is not None for row in result.rows)
    if compiled:
        for title in ("kernels", "calls", "plan MiB"):
            table.add_column(title, justify="right", no_wrap=True)
    best = result.best
    for row in result.rows:
        cells = _cells(row, row.label == result.reference) + (_plan_cells(row) if compiled else [])
        table.add_row(*cells, style="bold green" if best is not None and row.label == best.label else None)
    return table


def _cells(row: Row, is_reference: bool) -> list[str]:
    if row.median_ms is None or row.q1_ms is None or row.q3_ms is None or row.min_ms is None:
        return [row.label, row.version, "failed", *[""] * 6]
    error = "reference" if is_reference else "-" if row.relative_error is None else f"{row.relative_error:.1e}"
    return [
        row.label,
        row.version,
        milliseconds(row.median_ms),
        f"{milliseconds(row.q1_ms)} - {milliseconds(row.q3_ms)}",
        milliseconds(row.min_ms),
        f"{row.ratio_to_best:.2f}",
        str(row.runs),
        error,
        "-" if row.compile_seconds is None else f"{(row.import_seconds or 0.0) + row.compile_seconds:.1f}",
    ]


def _plan_cells(row: Row) -> list[str]:
    return [
        "" if row.kernels is None else str(row.kernels),
        "" if row.kernel_calls is None else str(row.kernel_calls),
        "" if row.planned_bytes is None else f"{row.planned_bytes / 2**20:.2f}",
    ]


def milliseconds(value: float) -> str:
    """Spell milliseconds with four significant digits, and never as a power of ten."""
    for limit, digits in ((0.1, 5), (1, 4), (10, 3), (100, 2), (1000, 1)):
        if value < limit:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"
