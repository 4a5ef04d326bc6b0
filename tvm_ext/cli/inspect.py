"""``tvm-ext inspect``: one HTML page that shows what a compilation does to a model."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import click

from tvm_ext.cli.calibrate import renew_calibration
from tvm_ext.cli.common import (
    Shapes,
    dynamic_option,
    elapsed,
    given_options,
    json_flag,
    model_options,
    pipeline_options,
    planned_text,
    print_json,
    step_display,
)
from tvm_ext.errors import OutputError
from tvm_ext.system.files import check_output, write_atomically


@click.command()
@model_options
@dynamic_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Page to write; a file of that name is replaced. [default: MODEL.html in this folder; none with --json]",
)
@click.option(
    "--profile",
    "profile_runs",
    type=click.IntRange(min=1),
    metavar="RUNS",
    help="Also time the kernels, in that many runs.",
)
@click.option("--embeddings", is_flag=True, help="Also draw how the target's instructions fit the operators.")
@pipeline_options()
@json_flag
def command(
    model: Path,
    target: str,
    input_shapes: Shapes,
    dynamic: str | None,
    output: Path | None,
    profile_runs: int | None,
    embeddings: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Lower MODEL (.onnx or .pt2) and write a page of its operators, kernels, fusion groups, memory and phases."""
    from tvm_ext.graph.units import bytes_text, count_text
    from tvm_ext.report.collect import inspect_model
    from tvm_ext.report.page import render

    start = time.perf_counter()
    if output is None and not as_json:
        output = Path(f"{model.stem}.html")
    if output is not None:
        check_output(output, [] if model.is_dir() else [model])  # a folder is no model, which is said below
        _check_destination(output)
    renew_calibration(target, quiet=as_json)
    with step_display(quiet=as_json) as report:
        found = inspect_model(
            model,
            target,
            input_shapes=input_shapes or None,
            dynamic=dynamic,
            progress=report,
            profile_runs=profile_runs or 0,
            embeddings=embeddings,
            **given_options(options),
        )
    if output is not None:
        write_atomically(output, render(found), make_folders=True)
    if as_json:
        print_json(found.to_json())
        return
    scheduled = sum(bool(kernel.rule) for kernel in found.kernels)
    calls = sum(kernel.calls for kernel in found.kernels)
    click.echo(f"{output}: page of {model} for {found.target}, made in {elapsed(start)}")
    click.echo(f"  operators {found.operator_uses}, {count_text(found.flops['total'])}")
    click.echo(f"  kernels   {len(found.kernels)} ({calls} calls), {scheduled} scheduled by a rule")
    if found.resources is not None:
        click.echo(f"  resources {found.resources.summary.partition('. ')[0]}")
    is_open = any(re.search(r"\[.*[A-Za-z]", text) for _, text in found.inputs)
    click.echo(f"  memory    {planned_text(bytes_text(found.planned_bytes), is_open)}")


def _check_destination(path: Path) -> None:
    """Refuse a page that cannot be written before the work is done for it."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise OutputError(f"cannot write {path}: there is no folder {folder}; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write {path}: no permission to write in {folder}; choose another path")
