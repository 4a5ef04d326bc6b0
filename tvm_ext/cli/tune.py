"""``tvm-ext tune``: measure schedules of a model's kernels, keep the fastest."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvm_ext.cli.calibrate import renew_calibration
from tvm_ext.cli.common import (
    Choice,
    Shapes,
    dynamic_option,
    elapsed,
    given_options,
    json_flag,
    model_options,
    pipeline_options,
    print_json,
)
from tvm_ext.cli.vta_model import calibrate_option, check_calibration, read_calibration

if TYPE_CHECKING:
    from tvm_ext.backends.backend import CountingMeasurer
    from tvm_ext.tuners.measure.measurer import Measurer
    from tvm_ext.tuning import KernelResult, TuningResult
    from tvm_ext.tuning.whole_network import NetworkResult


NOISY = 0.05
"""Share by which two measurements of one kernel differ on a machine that is not quiet."""


@click.command()
@model_options
@dynamic_option
@click.option(
    "--work-dir",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder of the database; one that exists is gone on with.",
)
@click.option(
    "--trials",
    type=click.IntRange(min=0),
    default=256,
    show_default=True,
    help="Measurements over all kernels, those in the database included; 0 with --graph: choices of the network only.",
)
@click.option(
    "--graph",
    is_flag=True,
    help="Search first over choices of the whole network: how each convolution and product is computed, and what is "
    "fused.",
)
@click.option(
    "--variants",
    type=click.IntRange(min=1),
    default=24,
    show_default=True,
    help="Networks that --graph compiles and times, those of earlier runs included.",
)
@click.option(
    "--tuner",
    help="Which tuner searches. [default: evolution_expected on CPUs, validity_expected for VTA, evolution_shared "
    "elsewhere; evolution_pretrained with --pretrained]",
)
@click.option(
    "--pretrained",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Cost model that was trained on other networks' kernels, for a tuner whose name ends with _pretrained.",
)
@click.option(
    "--features",
    type=Choice(["knobs", "stores"]),
    default="knobs",
    show_default=True,
    help="What the cost model sees of a candidate: its choices, or also TVM's per-store features of the code.",
)
@click.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="DIM=N,...",
    help="Size of open dimensions that kernels are tuned for; give it several times for several sizes. [default: a "
    "small, a middling and a large one of the range]",
)
@click.option("--batch", type=click.IntRange(min=1), default=16, show_default=True, help="Measurements at a time.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the search.")
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Threads of the kernels. [default: TVM_NUM_THREADS, or physical cores]",
)
@click.option(
    "--compare",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Compare with the --work-dir of an earlier run.",
)
@click.option("--tracker", metavar="HOST:PORT", help="Measure on the servers of this RPC tracker (see tvm-ext serve).")
@click.option("--key", help="Key of those servers at the tracker.")
@click.option(
    "--no-confirm",
    is_flag=True,
    help="Do not time the whole network, tuned and untuned, at the end.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Compile with what was found into this folder.")
@click.option("--force", is_flag=True, help="Replace the artifact that is already in the folder.")
@click.option(
    "--chart", type=click.Path(path_type=Path), help="Draw best time against trials and seconds: .png or .svg."
)
@calibrate_option
@pipeline_options("work_dir", "dump_dir", "disable", "memory_limit")
@json_flag
def command(
    model: Path,
    target: str,
    input_shapes: Shapes,
    dynamic: str | None,
    work_dir: Path,
    trials: int,
    graph: bool,
    variants: int,
    tuner: str | None,
    pretrained: Path | None,
    features: str,
    sizes: tuple[str, ...],
    batch: int,
    seed: int,
    threads: int | None,
    compare: Path | None,
    tracker: str | None,
    key: str | None,
    no_confirm: bool,
    output: Path | None,
    force: bool,
    chart: Path | None,
    calibration: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Tune the kernels of MODEL (.onnx or .pt2), on this machine or on others."""
    from tvm_ext.artifact.destination import check_destination
    from tvm_ext.backends.registry import backend_of
    from tvm_ext.bench.chart import check_chart
    from tvm_ext.compiler import compile
    from tvm_ext.frontend import import_model
    from tvm_ext.options import PipelineOptions
    from tvm_ext.report.tuning_chart import write_tuning_chart
    from tvm_ext.sizes import parse_size
    from tvm_ext.system.files import check_output
    from tvm_ext.target import resolve_target
    from tvm_ext.tuners.recipes import recipe, with_artefact
    from tvm_ext.tuning import tune
    from tvm_ext.tuning.whole_network import tune_network

    start = time.perf_counter()
    if not trials and not graph:
        raise click.UsageError("--trials 0 leaves nothing to do; give it trials, or --graph")
    if graph and tracker is not None:
        raise click.UsageError("--graph times whole networks on this machine: leave out --tracker and --key")
    if (tracker is None) != (key is None):
        raise click.UsageError("--tracker and --key belong together: where the servers are, and which of them")
    if tracker is not None and threads is not None:
        raise click.UsageError("--threads is for this machine; give it to tvm-ext serve on the others")
    resolved = resolve_target(target)
    tuner = tuner or (backend_of(resolved).tuner if pretrained is None else "evolution_pretrained")
    row = recipe(tuner)
    if pretrained is not None:
        row = with_artefact(row, tuner, pretrained)
    if output is not None:
        check_destination(output, force)
    renew_calibration(resolved, quiet=as_json)
    if chart is not None:
        check_chart(chart)
        check_output(chart, [model])
    imported = import_model(model, input_shapes=input_shapes or None, dynamic=dynamic)
    samples = read_calibration(imported.inputs, calibration)
    pipeline = PipelineOptions.from_keywords(given_options(options))
    if output is not None and backend_of(resolved).calibrated:
        check_calibration(imported, resolved, pipeline, samples)
    network = None
    if graph:
        if threads is not None:
            os.environ["TVM_NUM_THREADS"] = str(threads)
        network = tune_network(imported, resolved, work_dir, variants, options=pipeline)
        if not as_json:
            _tell(network)
    counts = backend_of(resolved).measurer
    shown = _shown(None if counts is None else counts(resolved))
    if counts is not None and (tracker is not None or threads is not None or features != "knobs"):
        raise click.UsageError(
            f"{target} is tuned with {counts(resolved).name}: leave out --tracker, --key, --threads and --features"
        )
    if not trials:
        if output is not None:
            compile(imported, resolved, work_dir=work_dir, calibration=samples, **given_options(options)).save(
                output, force=force
            )
        if as_json:
            print_json({"network": _network_document(network)})
        return
    if not as_json:
        where = "this machine" if tracker is None else f"servers {key}"
        how = f"times on {where}" if counts is None else counts(resolved).name
        click.echo(f"{work_dir}: {model} gets up to {trials} trials for {target}, by {how}")
    with (
        _display(trials, shown, quiet=as_json) as progress,
        nullcontext() if counts is not None else _measurer(threads, tracker, key) as measurer,
    ):
        result = tune(
            imported, resolved, work_dir, trials, row,
            seed=seed, batch=batch, measurer=measurer, compare=compare, progress=progress,
            store_features=features == "stores", options=pipeline, confirm=not no_confirm,
            sizes=list(map(parse_size, sizes)),
        )  # fmt: skip
    if output is not None:
        compile(imported, resolved, work_dir=work_dir, calibration=samples, **given_options(options)).save(
            output, force=force
        )
    if chart is not None and result.curve:
        write_tuning_chart({tuner: result.curve}, chart)
    if as_json:
        print_json(_document(result) | ({"network": _network_document(network)} if network else {}))
        return
    others = f"; {result.others} records are of other kernels" if result.others else ""
    click.echo(f"{work_dir}: {result.trials} trials in {elapsed(start)}, {result.resumed} resumed{others}")
    for kernel in sorted(result.kernels, key=lambda kernel: -(kernel.best or 0.0) * kernel.calls):
        click.echo(f"  {kernel.name:40.40} {_times(kernel, shown)}")
    if (comparison := _comparison(result.kernels)) is not None:
        click.echo(
            f"  compared {comparison['kernels']} kernels: {shown(comparison['now'])} together, "
            f"{shown(comparison['earlier'])} in the earlier run, {comparison['ratio']:.2f} times as fast"
        )
    shares = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in result.seconds.items())
    click.echo(f"  time     {shares}")
    if result.network is not None and not result.network.left_alone:
        click.echo(f"  network  {result.network.sentence()}")
    if result.beside:
        ending = ", and what" if counts is None else ""
        click.echo(f"  beside   {result.beside} was tuning into this folder, too: what both measured is kept{ending}")
        if counts is None:
            click.echo("           they measured at once on one machine is less exact")
    for note in result.notes:
        click.echo(f"  note     {note}")
    if result.noise:
        noise = sorted(result.noise)[len(result.noise) // 2]
        hint = "; the machine is busy, differences below that mean nothing" if noise > NOISY else ""
        click.echo(f"  noise    the best kernels measured twice differ by {noise:.1%}{hint}")
    if chart is not None and not result.curve:
        missing = sum(kernel.best is None for kernel in result.kernels)
        reason = f"{missing} kernels were not tried" if missing else "no trial was left"
        click.echo(f"  no chart: {reason}; give it more --trials")
    if output is not None:
        click.echo(f"  compiled {output}")


LINE_SECONDS = 10.0
"""Between two lines about a run whose output is no terminal."""

LISTED = 6
"""Kernels that are named when a run begins."""


MOST_OF_A_REASON = 160
"""Characters of why a kernel could not be measured; the whole of it is in ``--json``."""


def _tell(network: NetworkResult) -> None:
    measured = sum(trial.ratio is not None for trial in network.trials)
    click.echo(f"{len(network.offers)} choices; {measured} networks timed in turns with the default")
    for trial in (row for row in network.trials if row.ratio is None):
        click.echo(f"  left out {'; '.join(map(' = '.join, trial.chosen.items()))}: {trial.reason}")
    for trial in network.finals:
        result = trial.reason if trial.ratio is None else f"{trial.ratio:.3f} of its latency"
        click.echo(f"  {len(trial.chosen)} other choice{'s'[: len(trial.chosen) != 1]}: {result}")
    for key, option in network.chosen.items():
        click.echo(f"  {key}: {option}")
    if not network.chosen:
        click.echo("  the default is the fastest: nothing is changed")


def _network_document(network: NetworkResult | None) -> dict[str, Any]:
    if network is None:
        return {}
    rows = {name: [vars(row) for row in getattr(network, name)] for name in ("offers", "trials", "finals")}
    return rows | {"chosen": dict(network.chosen), "ratio": network.ratio, "resumed": network.resumed}


def _measurer(threads: int | None, tracker: str | None, key: str | None) -> Measurer:
    from tvm_ext.system.rpc import parse_address
    from tvm_ext.tuners.measure.measurer import Measurer
    from tvm_ext.tuners.measure.remote import RemoteMeasurer

    return RemoteMeasurer(parse_address(tracker), key) if tracker and key else Measurer(threads=threads)


def _shown(counter: CountingMeasurer | None) -> Callable[[float], str]:
    """Give what spells a time; where something else is counted, such as packets, how many they are."""
    if counter is None or not counter.unit:
        return lambda seconds: f"{seconds * 1e6:.1f} µs"
    clock, unit = counter.clock, counter.unit
    return lambda seconds: f"{round(seconds * clock):,} {unit}"


def _times(kernel: KernelResult, shown: Callable[[float], str]) -> str:
    if kernel.best is None:
        reason = " ".join((kernel.error or "").split())[:MOST_OF_A_REASON]
        return f"nothing could be measured: {reason}" if kernel.trials else "not tried; give it more --trials"
    was = "" if kernel.before is None else f" (was {shown(kernel.before)})"
    if kernel.left_alone:
        was = " (its rule's own schedule: the network is slower with the fastest found)"
    earlier = "" if kernel.earlier is None else f", {shown(kernel.earlier)} in the earlier run"
    return f"{shown(kernel.best):>13}{was}{earlier}"


def _comparison(kernels: Sequence[KernelResult]) -> dict[str, Any] | None:
    """Sum the best times (seconds, times calls) of the kernels that both runs measured."""
    both = [(row.earlier * row.calls, row.best * row.calls) for row in kernels if row.earlier and row.best]
    if not both:
        return None
    earlier, now = (sum(times) for times in zip(*both, strict=True))
    return {"kernels": len(both), "earlier": earlier, "now": now, "ratio": earlier / now}


def _document(result: TuningResult) -> dict[str, Any]:
    return {
        "trials": result.trials,
        "resumed": result.resumed,
        "seconds": result.seconds,
        "noise": result.noise,
        "curve": result.curve,
        "others": result.others,
        "beside": result.beside,
        "notes": result.notes,
        "network_times": None if result.network is None else vars(result.network),
        "comparison": _comparison(result.kernels),
        "kernels": [vars(kernel) for kernel in result.kernels],
    }


@contextmanager
def _display(trials: int, shown: Callable[[float], str], quiet: bool) -> Iterator[Callable[[TuningResult], None]]:
    """Show trials done and the sum of the best times on stderr, when it is a terminal; else in lines, now and then."""
    if quiet:
        yield lambda result: None
        return
    if not sys.stderr.isatty():
        yield _Lines(trials, shown)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("kernels", total=trials)

        def show(result: TuningResult) -> None:
            bar.update(task, completed=result.trials + result.resumed, description=_latest(result, shown))

        yield show


class _Lines:
    """Says what is tried on stdout: the kernels first, then how far the run is, every :data:`LINE_SECONDS`."""

    def __init__(self, trials: int, shown: Callable[[float], str]) -> None:
        self._trials, self._shown, self._last = trials, shown, 0.0

    def __call__(self, result: TuningResult) -> None:
        if not self._last:
            named = ", ".join(kernel.name for kernel in result.kernels[:LISTED])
            more = f" and {len(result.kernels) - LISTED} more" if len(result.kernels) > LISTED else ""
            click.echo(f"  kernels  {named}{more}")
        elif time.perf_counter() - self._last < LINE_SECONDS:
            return
        else:
            done = result.trials + result.resumed
            click.echo(f"  trying   {done} of {self._trials} trials, {_latest(result, self._shown)}")
        self._last = time.perf_counter()
        sys.stdout.flush()


def _latest(result: TuningResult, shown: Callable[[float], str]) -> str:
    return shown(result.curve[-1][2]) if result.curve else "first candidates"
