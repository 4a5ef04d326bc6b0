"""``tvm-ext calibrate``: measure what the compiler's cost models ask of this machine, and keep it for compilations."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import click

from tvm_ext.cli.common import json_flag, print_json, step_display

_UNITS = {
    "clock": ("GHz", 1e9),
    "flops": ("GFLOP/s", 1e9),
    "bandwidth": ("GB/s", 1e9),
    "operation_seconds": ("ps", 1e-12),
    "function_seconds": ("ps", 1e-12),
    "seconds": ("µs", 1e-6),
}


@click.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write, instead of the user's cache.")
@click.option("--show", is_flag=True, help="Measure nothing: show what compilations use.")
@click.option("--reset", is_flag=True, help="Measure nothing: remove the figures; shipped ones are used.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(min=1), help="Their median counts.")
@json_flag
def command(output: Path | None, show: bool, reset: bool, rounds: int, as_json: bool) -> None:
    """Measure clock, arithmetic, bandwidths and threads of this machine, for compilations for its CPU."""
    from tvm_ext.bench.calibrate import calibrate
    from tvm_ext.bench.record import check_writable
    from tvm_ext.errors import OptionError
    from tvm_ext.schedules.cpu import RULES
    from tvm_ext.schedules.cpu.calibration import VARIABLE, Calibration, calibration_path, write_calibration
    from tvm_ext.schedules.cpu.machine import FIGURES, forget_machines, machine_of
    from tvm_ext.target import resolve_target

    if sum((show, reset, output is not None)) > 1:
        raise OptionError("--show, --reset and --output exclude each other; give one of them")
    path = output or calibration_path()
    if path is None and not show:
        raise OptionError(f"{VARIABLE} is empty, so that no figures are kept; unset it, or name a file with --output")
    if reset and path is not None:
        found = path.is_file()
        path.unlink(missing_ok=True)
        click.echo(f"{path}: {'removed' if found else 'there was none'}")
        return
    target = resolve_target(None)
    shipped = {name: float(getattr(machine_of(target), name)) for name in FIGURES}
    if show:
        calibrated = machine_of(target).calibrated
        _answer(shipped, {}, f"measured on {calibrated}" if calibrated else "shipped with the package", as_json)
        return
    assert path is not None
    check_writable(path)
    with step_display(quiet=as_json) as report:
        figures = calibrate(target, RULES, rounds, report)
    write_calibration(path, Calibration(figures, datetime.now(UTC).isoformat(timespec="seconds")))
    forget_machines()
    _answer(figures, shipped, str(path), as_json)


def _answer(figures: Mapping[str, float], before: Mapping[str, float], origin: str, as_json: bool) -> None:
    if as_json:
        print_json({"figures": dict(figures), "before": dict(before), "origin": origin})
        return
    from rich.table import Table

    from tvm_ext.bench.table import wide_console

    console = wide_console()
    table = Table()
    table.add_column("figure")
    for title in ("measured", "before") if before else ("value",):
        table.add_column(title, justify="right")
    table.add_column("unit")
    for name, value in figures.items():
        unit, scale = next(row for ending, row in _UNITS.items() if name.endswith(ending))
        values = [value, before[name]] if before else [value]
        table.add_row(name, *(f"{one / scale:.3g}" for one in values), unit)
    console.print(table)
    console.print(origin, markup=False)
