"""``tvm-ext inspect``: one HTML page that shows what a compilation does to a model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from tvm_ext.cli.common import (
    Shapes,
    elapsed,
    input_shape_option,
    json_flag,
    model_argument,
    pipeline_options,
    print_json,
    step_display,
    target_option,
    write_atomically,
)


@click.command()
@model_argument
@target_option
@input_shape_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Page to write; a file of that name is replaced. [default: MODEL.html in this folder; none with --json]",
)
@pipeline_options
@json_flag
def command(model: Path, target: str, input_shapes: Shapes, output: Path | None, as_json: bool, **options: Any) -> None:
    """Lower MODEL (.onnx or .pt2) and write a page of its operators, kernels, fusion groups, memory and phases."""
    from tvm_ext.graph.units import bytes_text, count_text
    from tvm_ext.report.collect import inspect_model
    from tvm_ext.report.page import render

    start = time.perf_counter()
    with step_display(quiet=as_json) as report:
        found = inspect_model(model, target, input_shapes=input_shapes or None, progress=report, **options)
    if output is None and not as_json:
        output = Path(f"{model.stem}.html")
    if output is not None:
        write_atomically(output, render(found))
    if as_json:
        print_json(found.to_json())
        return
    scheduled = sum(bool(kernel.rule) for kernel in found.kernels)
    calls = sum(kernel.calls for kernel in found.kernels)
    click.echo(f"{output}: page of {model} for {found.target}, made in {elapsed(start)}")
    click.echo(f"  operators {found.nodes}, {count_text(found.flops['total'])}")
    click.echo(f"  kernels   {len(found.kernels)} ({calls} calls), {scheduled} scheduled by a rule")
    click.echo(f"  memory    {bytes_text(found.planned_bytes)} planned for intermediate tensors")
