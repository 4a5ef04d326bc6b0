"""Options and helpers that the commands share."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

Shapes = dict[str, list[int | str]]


class InputShape(click.ParamType):
    """``NAME:1,3,224,224``, or ``NAME:n,3,224,224`` for an open batch; the name may itself hold colons."""

    name = "NAME:DIMS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, list[int | str]]:
        """Parse one occurrence of the option."""
        if isinstance(value, tuple):
            return value
        name, separator, dims = str(value).rpartition(":")
        # An x between numbers separates them; anywhere else it belongs to a name.
        parts = re.split(r",|(?<=\d)x(?=\d)", dims) if dims.strip() else []
        shape = [_extent(part.strip()) for part in parts]
        if not separator or not name or None in shape:
            self.fail(
                f"{value!r} is not of the form NAME:1,3,224,224 with whole numbers from 0 on, or a name such as n for "
                "a batch that stays open",
                param,
                ctx,
            )
        return name, [extent for extent in shape if extent is not None]


def _extent(text: str) -> int | str | None:
    """Read an extent, a number or the name of an open one; None for anything else."""
    if re.fullmatch(r"[0-9]+", text):
        return int(text)
    return text if re.fullmatch(r"[A-Za-z_][A-Za-z_0-9]*", text) else None


def _collect_shapes(
    ctx: click.Context, param: click.Parameter, value: tuple[tuple[str, list[int | str]], ...]
) -> Shapes:
    shapes: Shapes = {}
    for name, shape in value:
        if name in shapes:
            raise click.BadParameter(f"input {name!r} is given twice", ctx, param)
        shapes[name] = shape
    return shapes


model_argument = click.argument("model", type=click.Path(path_type=Path))
target_option = click.option(
    "--target",
    default="native",
    show_default=True,
    help='What to compile for: "native" (this CPU), a TVM target kind or tag, or a JSON dictionary.',
)
input_shape_option = click.option(
    "--input-shape",
    "input_shapes",
    type=InputShape(),
    multiple=True,
    callback=_collect_shapes,
    help="Shape of an input whose dimensions the model leaves open; repeat for further inputs. A name in place of the "
    "batch (x:n,3,224,224) keeps it open.",
)
json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout instead of text.")


work_dir_option = click.option(
    "--work-dir",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Use the fastest schedules of this tuning database (see tvm-ext tune).",
)


def kernel_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that decide which kernels there are; they arrive as keyword arguments of those names."""
    command = click.option(
        "--winograd/--no-winograd",
        default=True,
        help="Let 3 x 3 convolutions use Winograd's algorithm where it is faster (it rounds somewhat less well).",
    )(command)
    command = click.option(
        "--fuse",
        type=click.Choice(["stock", "mapping-type"]),
        default="stock",
        show_default=True,
        help="Who decides which operators become one kernel: TVM's patterns, or a planner that combines operators by "
        "how their elements map to each other.",
    )(command)
    return click.option(
        "--rewrite",
        type=click.Choice(["off", "strict", "fast"]),
        default="off",
        show_default=True,
        help="Rewrite arithmetic so that it takes fewer operations: strict keeps the values up to rounding, fast may "
        "overflow where the original does not.",
    )(command)


def pipeline_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the ``tvm_ext`` pipeline to a command; they arrive as keyword arguments of those names."""
    command = work_dir_option(kernel_options(command))
    command = click.option(
        "--flush-denormals/--no-flush-denormals",
        default=True,
        help="Take numbers below 1.2e-38, with which many processors compute very slowly, for zero.",
    )(command)
    command = click.option(
        "--fuse-profiles",
        type=click.Path(path_type=Path, dir_okay=False),
        help="File of measured latencies for --fuse mapping-type; what is not in it is measured and added.",
    )(command)
    command = click.option(
        "--disable",
        default="",
        metavar="PHASES",
        help="Phases of the pipeline to leave out, comma-separated.",
    )(command)
    return click.option(
        "--dump-dir",
        type=click.Path(path_type=Path),
        help="Write the module after each phase into this folder.",
    )(command)


@contextmanager
def step_display(quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show the running step and its time on stderr, when it is a terminal; gives a function to call with each step."""
    if quiet or not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("start")
        yield lambda step: progress.update(task, description=step)


def print_json(value: Any) -> None:
    """Print a value as indented JSON on stdout."""
    click.echo(json.dumps(value, indent=2))


def elapsed(start: float) -> str:
    """Spell the seconds since ``start`` (of ``time.perf_counter``)."""
    return f"{time.perf_counter() - start:.1f} s"
