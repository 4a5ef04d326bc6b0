"""``tvm-ext bench``: one model in several engines, side by side in one run."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from tvm_ext.cli.calibrate import renew_calibration
from tvm_ext.cli.common import (
    Shapes,
    dynamic_option,
    given_options,
    model_options,
    pipeline_options,
    size_option,
)

PROGRESS_AFTER_SECONDS = 2.0


@click.command()
@model_options
@dynamic_option
@size_option
@click.option("--threads", type=click.IntRange(min=1), help="Threads of every engine. [default: physical cores]")
@click.option(
    "--repeats",
    type=click.IntRange(min=10),
    default=10,
    show_default=True,
    help="Timed runs of each engine; quick models get more, so that their median is worth something.",
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    help="Seconds for the timed runs of one engine; a slower one gets fewer runs, at least 3.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds an engine may take to compile or for one turn before it is given up.",
)
@click.option(
    "--engines",
    metavar="NAMES",
    help="Which to measure, comma-separated: tvm, tvm_ext, onnxruntime, openvino, torch and torch.compile (.pt2 only). "
    "[default: all installed]",
)
@click.option(
    "--generate",
    type=click.IntRange(min=1),
    metavar="COUNT",
    help="Generate COUNT tokens with MODEL, a decoder's checkpoint folder or what was compiled of one: time to the "
    "first token and tokens a second of tvm_ext, torch, onnxruntime and openvino, with TVM_NUM_THREADS threads each.",
)
@click.option("--prompt-length", type=click.IntRange(min=1), help="With --generate: tokens before.  [default: 32]")
@click.option("--weights", metavar="FORMAT", help="With --generate: format of the weights, as `compile` takes it.")
@pipeline_options("dump_dir")
@click.option("--seed", default=0, show_default=True, help="Seed of the random inputs.")
@click.option("--json", "json_path", metavar="PATH", help='Write the result as JSON; "-" for stdout, without a table.')
@click.option("--chart", type=click.Path(path_type=Path), help="Draw a bar chart: .png or .svg (needs matplotlib).")
def command(
    model: Path,
    target: str,
    input_shapes: Shapes,
    dynamic: str | None,
    size: str | None,
    threads: int | None,
    repeats: int,
    budget: float,
    timeout: float,
    engines: str | None,
    generate: int | None,
    prompt_length: int | None,
    weights: str | None,
    seed: int,
    json_path: str | None,
    chart: Path | None,
    **options: Any,
) -> None:
    """Compare the latency of MODEL (.onnx or .pt2): stock TVM, tvm_ext, onnxruntime, OpenVINO, torch.

    All engines compute in float32 with the same number of threads, each in its own process, in turns. With --dynamic
    all are compiled for open sizes, and run with those of --size. With a CUDA target they compute on the GPU, and each
    run is waited for once; TVM then has its DLight schedules.
    """
    from tvm_ext.bench.chart import check_chart, write_chart
    from tvm_ext.bench.compare import compare
    from tvm_ext.bench.record import result_document, write_result
    from tvm_ext.bench.table import print_result
    from tvm_ext.errors import CompileError, OptionError
    from tvm_ext.sizes import parse_size
    from tvm_ext.system.files import check_output

    if chart is not None:
        check_chart(chart)
        check_output(chart, [model])
    if json_path not in (None, "-"):
        check_output(json_path, [model])
    renew_calibration(target, quiet=json_path == "-")
    names = None if engines is None else [name.strip() for name in engines.split(",") if name.strip()]
    given = given_options(options)
    if generate is not None:
        shape = {"--input-shape": input_shapes, "--dynamic": dynamic, "--size": size}
        _refuse("--generate", shape | {"--threads": threads, "--chart": chart} | given)
        decoding = {"prompt": prompt_length or 32, "weights": weights, "target": target, "seed": seed}
        _bench_generation(model, generate, names, json_path, decoding)
        return
    for option, value in (("--prompt-length", prompt_length), ("--weights", weights)):
        if value is not None:
            raise OptionError(f"{option} is for decoders; add --generate COUNT")
    with _late_progress() as progress:
        result = compare(
            model,
            names,
            target=target,
            input_shapes=input_shapes or None,
            dynamic=dynamic,
            size=None if size is None else parse_size(size),
            seed=seed,
            threads=threads,
            repeats=repeats,
            budget=budget,
            timeout=timeout,
            progress=progress,
            options=given,
        )
    name, rows, summary = f"bench {result.model}", result.json_rows(), result.summary()
    if json_path == "-":
        click.echo(json.dumps(result_document(name, rows, summary, notes=result.notes), indent=2))
    else:
        print_result(result)
    if json_path not in (None, "-"):
        write_result(json_path, name=name, rows=rows, summary=summary, notes=result.notes)
    if chart is not None:
        write_chart(result, chart)
    if result.best is None:
        raise CompileError(f"{model}: no engine could run the model: {result.rows[0].label}: {result.rows[0].error}")


def _refuse(option: str, others: Mapping[str, Any]) -> None:
    """Refuse options that mean nothing beside one."""
    from tvm_ext.errors import OptionError

    for name, value in others.items():
        if value:
            said = name if name.startswith("--") else f"--{name.replace('_', '-')}"
            raise OptionError(f"{said} does not go with {option}; leave it out")


def _bench_generation(
    model: Path, count: int, engines: list[str] | None, json_path: str | None, options: dict[str, Any]
) -> None:
    """Let engines generate tokens, and print or write what they took."""
    from tvm_ext.bench.generation import compare_generation
    from tvm_ext.bench.record import result_document, write_result
    from tvm_ext.bench.table import print_generation

    with _late_progress() as progress:
        result = compare_generation(model, count, engines=engines, progress=progress, **options)
    name, rows, summary = f"generate {model}", result.json_rows(), result.summary()
    if json_path == "-":
        click.echo(json.dumps(result_document(name, rows, summary), indent=2))
        return
    print_generation(result)
    if json_path is not None:
        write_result(json_path, name=name, rows=rows, summary=summary)


@contextmanager
def _late_progress() -> Iterator[Callable[[str, int, int], None] | None]:
    """Show a progress bar on stderr once the work has lasted two seconds, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=2)
    task = bar.add_task("starting", total=None)
    timer = threading.Timer(PROGRESS_AFTER_SECONDS, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda text, done, total: bar.update(task, description=text, completed=done, total=total)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
