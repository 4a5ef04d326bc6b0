"""Options and helpers that the commands share."""

from __future__ import annotations

import difflib
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import click

from tvm_ext.options import OPT_LEVEL, PRESETS, PipelineOptions

Shapes = dict[str, list[int | str]]


class Choice(click.Choice):
    """One of several words; an error names the nearest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Check one occurrence of the option."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            near = difflib.get_close_matches(str(value), [str(choice) for choice in self.choices], n=1)
            if not near:
                raise
            said = f"{error.message.rstrip('.')}, did you mean {near[0]!r}?"
        raise click.BadParameter(said, param=param, ctx=ctx)


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
dynamic_option = click.option(
    "--dynamic",
    metavar="NAME=LOW..HIGH,...",
    help="Dimensions that stay open, by the names that the model has for them or INPUT:AXIS, with the sizes that they "
    'may have at run time: "batch=1..32,seq=1..512"; "*" for all that are open.',
)

size_option = click.option(
    "--size",
    metavar="DIM=N,...",
    help="Sizes that open dimensions have in the runs.",
)


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what a command takes that compiles a model: the model, the target, shapes of inputs."""
    return model_argument(target_option(input_shape_option(command)))


json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout instead of text.")


def pipeline_options(*left_out: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add ``-O`` and the options of the ``tvm_ext`` pipeline, but for some, to a command.

    They arrive as keyword arguments of those names, None where not given; see :func:`given_options`.
    """

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for item in reversed(fields(PipelineOptions)):
            if (
                item.name not in left_out and item.metadata["kind"] != "arrays"
            ):  # files of those are read by the command
                command = _pipeline_option(item)(command)
        return click.option(
            "-O",
            OPT_LEVEL,
            type=click.IntRange(min(PRESETS), max(PRESETS)),
            metavar="LEVEL",
            help=f"How much to try, {min(PRESETS)} to {max(PRESETS)}: sets what the options below do not say.  "
            "[default: 2]",
        )(command)

    return add


def _pipeline_option(item: Field[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make the option of a command for an option of the pipeline."""
    name, about = item.name.replace("_", "-"), item.metadata["help"]
    choices = item.metadata["choices"]
    if item.metadata["kind"] == "flag":
        default = "on" if item.default else "off"
        return click.option(f"--{name}/--no-{name}", item.name, default=None, help=f"{about}  [default: {default}]")
    if choices:
        shown = "" if item.default is None else f"  [default: {item.default}]"
        return click.option(f"--{name}", item.name, type=Choice(choices), help=about + shown)
    if item.metadata["kind"] == "path":
        return click.option(f"--{name}", item.name, type=click.Path(path_type=Path), help=about)
    return click.option(f"--{name}", item.name, metavar=item.metadata["kind"].upper(), help=about)


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the options that were not given."""
    return {name: value for name, value in options.items() if value is not None}


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


def planned_text(nbytes: str, is_open: bool) -> str:
    """Say what a memory plan reserves; of tensors with open extents each run computes where they lie."""
    return f"{nbytes} planned for intermediate tensors{', each run plans those of open extents' if is_open else ''}"


def elapsed(start: float) -> str:
    """Spell the seconds since ``start`` (of ``time.perf_counter``)."""
    return f"{time.perf_counter() - start:.1f} s"
