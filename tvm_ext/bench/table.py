"""A benchmark as text: one table, then what failed, then remarks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tvm_ext.bench.result import BenchResult, Row

if TYPE_CHECKING:
    from tvm_ext.bench.generation import GenerationResult

PLAIN_WIDTH = 120


def wide_console(stream: IO[str] | None = None) -> Console:
    """Open a console on a stream (stdout by default): a pipe is :data:`PLAIN_WIDTH` wide, as a file is no terminal."""
    console = Console(file=stream, highlight=False, soft_wrap=False)
    if not console.is_terminal:  # a pipe has no width of its own, and a table cut at 80 columns is of no use in a file
        console.width = PLAIN_WIDTH
    return console


def print_result(result: BenchResult, stream: IO[str] | None = None) -> None:
    """Print a result.

    Parameters
    ----------
    result : BenchResult
        What to print.
    stream : text file, optional
        Where to; standard output by default.
    """
    console = wide_console(stream)
    threads = f"{result.threads} thread{'s' if result.threads > 1 else ''}"
    console.print(f"[bold]{result.model}[/bold]: latency, float32, {threads}, TVM target {_brief(result.target)}")
    console.print(_fitting_table(result, console))
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


def print_generation(result: GenerationResult, stream: IO[str] | None = None) -> None:
    """Print what engines took to generate tokens, to a stream (standard output by default)."""
    console = wide_console(stream)
    threads = f"{result.threads} thread{'s' if result.threads > 1 else ''}"
    asked = f"{result.count} tokens behind {result.prompt}, weights {result.weights}, {threads}"
    console.print(f"[bold]{result.model}[/bold]: {asked}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("engine", "version", "first token ms", "tokens/s", "same tokens", "load s"):
        table.add_column(title, justify="left" if title in ("engine", "version") else "right", no_wrap=True)
    for row in result.rows:
        rate = "" if row.tokens_per_second is None else f"{row.tokens_per_second:.1f}"
        same = "" if row.same_tokens is None else str(row.same_tokens)
        load = "" if row.load_seconds is None else f"{row.load_seconds:.1f}"
        table.add_row(row.engine, row.version, _ms(row.first_token_ms) or "failed", rate, same, load)
    console.print(table)
    for row in result.rows:
        if row.error is not None:
            console.print(f"{row.engine} failed: {row.error}", style="red", markup=False)


def _brief(target: str) -> str:
    """Spell a target by what decides its speed: its kind and CPU model."""
    fields = json.loads(target)
    return " ".join(str(fields[key]) for key in ("kind", "mcpu") if key in fields)


@dataclass(frozen=True)
class Column:
    """A column: its title, what it shows of a row, and in which place it goes when the terminal is too narrow."""

    title: str
    cell: Callable[[Row], str]
    dropped: int = 0


def _columns(result: BenchResult) -> list[Column]:
    def error(row: Row) -> str:
        if row.label == result.reference:
            return "reference"
        return "-" if row.relative_error is None else f"{row.relative_error:.1e}"

    return [
        Column("engine", lambda row: row.label),
        Column("version", lambda row: row.version, dropped=1),
        Column("median ms", lambda row: _ms(row.median_ms) or "failed"),
        Column("quartiles ms", lambda row: f"{_ms(row.q1_ms)} - {_ms(row.q3_ms)}" if row.runs else "", dropped=3),
        Column("min ms", lambda row: _ms(row.min_ms), dropped=2),
        Column("x best", lambda row: "" if row.ratio_to_best is None else f"{row.ratio_to_best:.2f}"),
        Column("runs", lambda row: str(row.runs or ""), dropped=5),
        Column("error", lambda row: error(row) if row.runs else ""),
        Column("build s", _build_seconds, dropped=6),
        Column("kernels", lambda row: str(row.kernels or "")),
        Column("calls", lambda row: str(row.kernel_calls or ""), dropped=4),
        Column("plan MiB", lambda row: "" if row.planned_bytes is None else f"{row.planned_bytes / 2**20:.2f}"),
    ]


def _fitting_table(result: BenchResult, console: Console) -> Table:
    """Build the table, without its least important columns if it would not fit."""
    columns = [
        column
        for column in _columns(result)
        if column.title not in ("kernels", "calls", "plan MiB") or any(column.cell(row) for row in result.rows)
    ]
    wide = console.options.update(width=10_000)
    for limit in range(8):
        table = _table(result, [column for column in columns if not 0 < column.dropped <= limit])
        if console.measure(table, options=wide).maximum <= console.width:
            break
    return table


def _table(result: BenchResult, columns: Sequence[Column]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column.title, justify="left" if column.title in ("engine", "version") else "right", no_wrap=True
        )
    for row in result.rows:
        best = result.best is not None and row.label == result.best.label
        table.add_row(*(column.cell(row) for column in columns), style="bold green" if best else None)
    return table


def _ms(value: float | None) -> str:
    return "" if value is None else milliseconds(value)


def _build_seconds(row: Row) -> str:
    if row.compile_seconds is None:
        return ""
    return f"{(row.import_seconds or 0.0) + row.compile_seconds:.1f}"


def milliseconds(value: float) -> str:
    """Spell milliseconds with four significant digits, and never as a power of ten."""
    for limit, digits in ((0.1, 5), (1, 4), (10, 3), (100, 2), (1000, 1)):
        if value < limit:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"
