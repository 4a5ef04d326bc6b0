"""``tvm-ext calibrate``: measure what the compiler's cost models ask of this machine, and keep it for compilations."""

from __future__ import annotations

import fcntl
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from tvm_ext.cli.common import elapsed, json_flag, print_json, step_display
from tvm_ext.errors import TvmExtWarning

ROUNDS = 3
"""Whose median counts: what else runs on the machine can slow down all runs of one."""

DISTURBED = 0.1
"""Share of the time in which other programs had the processor, from which on the figures are doubtful."""

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
@click.option("--rounds", default=ROUNDS, show_default=True, type=click.IntRange(min=1), help="Their median counts.")
@json_flag
def command(output: Path | None, show: bool, reset: bool, rounds: int, as_json: bool) -> None:
    """Measure clock, arithmetic, bandwidths and threads of this machine, for compilations for its CPU."""
    from tvm_ext.errors import OptionError, OutputError, warn
    from tvm_ext.schedules.cpu.calibration import VARIABLE, calibration_path
    from tvm_ext.schedules.cpu.machine import FIGURES, machine_of
    from tvm_ext.system.files import check_output, irregular_kind
    from tvm_ext.target import resolve_target

    if sum((show, reset, output is not None)) > 1:
        raise OptionError("--show, --reset and --output exclude each other; give one of them")
    path = output or calibration_path()
    if path is None and not show:
        raise OptionError(
            f"no figures are kept, as {VARIABLE} is empty or this user has no home folder; set it, or name a file with "
            "--output"
        )
    if reset and path is not None:
        found = os.path.isfile(path)
        if kind := irregular_kind(path):
            raise OutputError(f"cannot remove {path}: it is {kind}; name a file in {VARIABLE}")
        try:
            path.unlink(missing_ok=True)
        except NotADirectoryError:
            pass
        except OSError as error:
            raise OutputError(f"cannot remove {path}: {error.strerror}") from None
        click.echo(f"{path}: {'removed' if found else 'there was none'}")
        return
    target = resolve_target(None)
    if show:
        used = machine_of(target)
        origin = f"measured on {used.calibrated}" if used.calibrated else "shipped with the package"
        _answer({name: getattr(used, name) for name in FIGURES}, {}, origin, as_json)
        return
    assert path is not None
    check_output(path, [])
    with step_display(quiet=as_json) as report, _no_warning():
        before = {name: float(getattr(machine_of(target), name)) for name in FIGURES}
        figures, disturbance = _measure(path, rounds, report)
    if disturbance:
        warn(disturbance, TvmExtWarning)
    _answer(figures, before, str(path), as_json)


def renew_calibration(target: Any, quiet: bool = False) -> None:
    """Measure this machine anew where figures are kept that are not of it: whoever keeps some wants to have them used.

    Nothing is done where none are kept, for a target that is not this machine's CPU, and where the file cannot be
    written, of which the compilation warns.

    Parameters
    ----------
    target : str, dict or tvm.target.Target
        What is going to be compiled for.
    quiet : bool
        Whether to show no progress.
    """
    from tvm_ext.errors import OutputError, warn
    from tvm_ext.schedules.cpu.calibration import VARIABLE, calibration_path, stale
    from tvm_ext.schedules.cpu.machine import FIGURES, is_this_cpu
    from tvm_ext.system.files import exclusive
    from tvm_ext.target import resolve_target

    path = calibration_path()
    if path is None or not os.path.isfile(path) or not is_this_cpu(resolve_target(target)) or stale(FIGURES) is None:
        return
    start = time.perf_counter()
    try:
        with exclusive(path.with_name(f"{path.name}.lock")):
            fault = stale(FIGURES)
            if fault is None:
                return  # another command has measured meanwhile
            with step_display(quiet) as report, _no_warning():
                _, disturbance = _measure(path, ROUNDS, lambda step: report(f"measure this machine anew: {step}"))
    except OutputError:
        return
    warn(
        f"the calibration {path} did not fit: {fault}; this machine was measured anew in {elapsed(start)} (set "
        f"{VARIABLE} to an empty value to compile with the shipped figures){disturbance and '; '}{disturbance}",
        TvmExtWarning,
    )


@contextmanager
def _no_warning() -> Iterator[None]:
    """Say nothing of figures that do not fit, where they are going to be replaced."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TvmExtWarning)
        yield


@contextmanager
def _alone(report: Callable[[str], None]) -> Iterator[None]:
    """Wait for other commands that measure this machine, whatever file theirs is: they would measure each other."""
    with open(__file__, "rb") as file:  # there for every command, and nothing is left behind
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("wait for another calibration")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            pass
        yield


def _measure(path: Path, rounds: int, report: Callable[[str], None]) -> tuple[dict[str, float], str]:
    """Measure this machine, and keep the figures in a file; say if other programs were in the way."""
    from tvm_ext.bench.calibrate import calibrate
    from tvm_ext.schedules.cpu import RULES
    from tvm_ext.schedules.cpu.calibration import Calibration, write_calibration
    from tvm_ext.schedules.cpu.machine import forget_machines
    from tvm_ext.system.host import waiting_seconds
    from tvm_ext.target import resolve_target

    target = resolve_target(None)
    with _alone(report):
        start, waited = time.perf_counter(), waiting_seconds()
        figures = calibrate(target, RULES, rounds, report)
        share = min(1.0, (waiting_seconds() - waited) / (time.perf_counter() - start))
    write_calibration(path, Calibration(figures, datetime.now(UTC).isoformat(timespec="seconds")))
    forget_machines()
    if share <= DISTURBED:
        return figures, ""
    return figures, (
        f"other programs had the processor for {share:.0%} of the time in which this machine was measured, so kernels "
        "may be compiled for a slower one, and not be divided among threads; run 'tvm-ext calibrate' when it is idle"
    )


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
