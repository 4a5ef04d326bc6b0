"""``tvm-ext memory``: how little memory a model can run in, by TVM's plan and by the ones of this package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tvm_ext.cli.calibrate import renew_calibration
from tvm_ext.cli.common import (
    Shapes,
    json_flag,
    model_options,
    print_json,
    step_display,
)

if TYPE_CHECKING:
    from tvm_ext.report.memory_pareto import ParetoPoint
    from tvm_ext.report.memory_plans import PlannedMemory


@click.command()
@model_options
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Draw bytes alive over time: .png or .svg (needs matplotlib)."
)
@click.option("--no-run", is_flag=True, help="Only plan; do not run the model to count what it takes.")
@click.option(
    "--pareto", is_flag=True, help="Measure time against bytes of several ways to compile; --plot draws the curve."
)
@json_flag
def command(
    model: Path, target: str, input_shapes: Shapes, plot: Path | None, no_run: bool, pareto: bool, as_json: bool
) -> None:
    """Plan the memory of MODEL (.onnx or .pt2): TVM's plan, one arena, the best order, concatenations taken apart."""
    from tvm_ext.bench.chart import check_chart
    from tvm_ext.frontend import import_model
    from tvm_ext.report.memory_picture import draw_memory
    from tvm_ext.report.memory_plans import NAMES, compare_plans
    from tvm_ext.system.files import check_output

    if pareto and no_run:
        raise click.UsageError("--pareto measures time, so it does not go with --no-run")
    if plot is not None:
        check_chart(plot)
        check_output(plot, [model])
    renew_calibration(target, quiet=as_json)
    with step_display(quiet=as_json) as report:
        report("import")
        imported = import_model(model, input_shapes=input_shapes or None)
        if pareto:
            from tvm_ext.report.memory_pareto import draw_pareto, measure_pareto

            points = measure_pareto(imported, target, progress=report)
        else:
            plans = compare_plans(imported, target, measure=() if no_run else NAMES, progress=report)
    if pareto:
        if plot is not None:
            draw_pareto(plot, model.name, points)
        if as_json:
            print_json({"model": str(model), "points": [point.to_json() for point in points]})
        else:
            _print_points(model, points)
        return
    if plot is not None:
        draw_memory(plot, model.name, [plan.profile for plan in plans])
    if as_json:
        print_json({"model": str(model), "plans": [plan.to_json() for plan in plans]})
        return
    _print(model, plans)
    if plot is not None:
        click.echo(f"{plot}: bytes alive over time")


def _print(model: Path, plans: tuple[PlannedMemory, ...]) -> None:
    from rich.table import Table

    from tvm_ext.bench.table import wide_console
    from tvm_ext.graph.units import bytes_text

    console = wide_console()
    console.print(f"[bold]{model.name}[/bold]: memory of intermediate tensors; weights and inputs are not counted")
    table = Table()
    table.add_column("plan")
    for title in ("alive at once", "lower bound", "planned", "results", "measured", "of stock"):
        table.add_column(title, justify="right")
    stock = plans[0].planned
    for plan in plans:
        table.add_row(
            plan.name,
            bytes_text(plan.peak),
            "" if not plan.lower_bound else "reached" if plan.optimal else bytes_text(plan.lower_bound),
            bytes_text(plan.planned),
            bytes_text(plan.results),
            "" if plan.measured is None else bytes_text(plan.measured),
            f"{plan.planned / stock:.2f}" if stock else "",
        )
    console.print(table)
    for plan in plans:
        console.print(f"{plan.name}: {plan.summary}", markup=False)
    console.print(
        "Measured: bytes taken from TVM's memory manager in one run, planned and results together.", markup=False
    )
    peak = plans[-1]
    console.print(f"Alive at the peak of '{peak.name}' (kernel {peak.profile.peak_step}):", markup=False)
    for name, kind, size in peak.profile.live_at_peak:
        console.print(f"  {bytes_text(size):>12}  {name}  {kind}", markup=False)


def _print_points(model: Path, points: tuple[ParetoPoint, ...]) -> None:
    from rich.table import Table

    from tvm_ext.bench.table import wide_console
    from tvm_ext.graph.units import bytes_text

    console = wide_console()
    console.print(f"[bold]{model.name}[/bold]: planned bytes and time; weights, inputs and results are not counted")
    table = Table()
    table.add_column("way")
    for title in ("planned", "median ms"):
        table.add_column(title, justify="right")
    table.add_column("")
    for point in points:
        mark = "no other one needs less of both" if point.best else ""
        table.add_row(point.name, bytes_text(point.planned), f"{point.milliseconds:.3f}", mark)
    console.print(table)
