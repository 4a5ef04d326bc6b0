"""``tvm-ext profile``: where the time of a run goes, kernel by kernel, and how near each is to the machine's limit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvm_ext.cli.calibrate import renew_calibration
from tvm_ext.cli.common import (
    Shapes,
    dynamic_option,
    given_options,
    json_flag,
    model_options,
    pipeline_options,
    print_json,
    size_option,
    step_display,
)

if TYPE_CHECKING:
    from tvm_ext.frontend.imported import ImportedModel
    from tvm_ext.report.profile import KernelCall, Profile


@click.command()
@model_options
@dynamic_option
@size_option
@click.option("--input", "inputs", multiple=True, metavar="[NAME=]FILE", help=".npy of one input, or .npz of several.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of random inputs.")
@click.option("--runs", default=20, show_default=True, type=click.IntRange(min=1), help="Runs that are timed.")
@click.option("--top", default=25, show_default=True, type=click.IntRange(min=1), help="Kernels to list.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Also write the page of tvm-ext inspect, with a picture."
)
@pipeline_options()
@json_flag
def command(
    model: Path,
    target: str,
    input_shapes: Shapes,
    dynamic: str | None,
    size: str | None,
    inputs: tuple[str, ...],
    seed: int,
    runs: int,
    top: int,
    output: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Time the kernels of MODEL (.onnx or .pt2) on this machine's CPU."""
    from tvm_ext.errors import OptionError
    from tvm_ext.inputs import input_files, random_inputs, read_inputs
    from tvm_ext.report.collect import inspect_model
    from tvm_ext.report.page import render
    from tvm_ext.sizes import all_extents, parse_size
    from tvm_ext.system.files import check_output, write_atomically

    if output is not None:
        check_output(output, [model, *input_files(inputs)])

    renew_calibration(target, quiet=as_json)

    if inputs and size is not None:
        raise OptionError("give --input or --size, not both: arrays have sizes already")
    wanted = None if size is None else parse_size(size)

    def arrays(model: ImportedModel) -> Any:
        if inputs:
            return read_inputs(model.inputs, inputs)
        extents = None if wanted is None else all_extents(wanted, model.inputs, model.conditions)
        return random_inputs(model.inputs, seed, extents, model.conditions)

    with step_display(quiet=as_json) as report:
        found = inspect_model(
            model,
            target,
            input_shapes=input_shapes or None,
            dynamic=dynamic,
            progress=report,
            profile_runs=runs,
            arrays=arrays,
            **given_options(options),
        )
    if output is not None:
        write_atomically(output, render(found), make_folders=True)
    assert found.profile is not None
    if as_json:
        about = {"model": found.model, "target": found.target, "versions": found.versions}
        print_json(about | found.profile.to_json())
        return
    _print(Path(found.model).name, found.target, found.profile, top)
    if output is not None:
        click.echo(f"{output}: page with a picture of the run")


def _print(model: str, target: str, profile: Profile, top: int) -> None:
    from rich.table import Table

    from tvm_ext.bench.table import wide_console

    console = wide_console()
    copies = ", ".join(f"{speed / 1e9:.0f}" for _, speed in profile.limits.bandwidths)
    console.print(
        f"[bold]{model}[/bold] for {target}: {profile.seconds * 1e3:.3f} ms a run, {profile.inside * 1e3:.3f} ms in "
        f"kernels (medians of {profile.runs} runs, {profile.threads} threads)"
    )
    console.print(
        f"limits: {profile.limits.flops / 1e9:.0f} GFLOP/s of multiply-adds, copies at {copies} GB/s (in a core's "
        "cache, in the shared one, in memory)"
    )
    table = Table()
    table.add_column("kernel")
    for title in ("calls", "ms", "share", "GOP/s", "GB/s", "of limit"):
        table.add_column(title, justify="right")
    table.add_column("schedule")
    table.add_column("nodes of the model, or operators")
    rows = profile.by_kernel()
    for call, count in rows[:top]:
        table.add_row(*_cells(call, count, profile.inside))
    console.print(table)
    if len(rows) > top:
        rest = sum(call.seconds for call, _ in rows[top:])
        console.print(f"{len(rows) - top} more kernels take {rest * 1e3:.3f} ms together")


def _cells(call: KernelCall, count: int, total: float) -> list[str]:
    from tvm_ext.report.profile import rate

    speeds = (rate(call.flops, call), rate(call.nbytes, call))
    words = call.layers or call.operators
    more = f" +{len(words) - 2}" if len(words) > 2 else ""
    return [
        call.kernel,
        str(count),
        f"{call.seconds * 1e3:.3f}",
        f"{call.seconds / total:.1%}" if total else "",
        *("n/a" if speed is None else f"{speed:.1f}" for speed in speeds),
        "n/a" if call.share is None else f"{call.share:.0%}",
        call.rule or "no rule",
        ", ".join(words[:2]) + more,
    ]
