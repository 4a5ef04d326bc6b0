"""``tvm-ext compile``: from a model file to an artifact folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    planned_text,
    print_json,
    step_display,
)
from tvm_ext.cli.vta_model import calibrate_option, read_calibration


def _with_calibration(
    model: Path,
    input_shapes: Shapes,
    dynamic: str | None,
    calibration: tuple[str, ...],
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Import the model, whose inputs must be known to read the files of ``--calibrate``."""
    from tvm_ext.frontend import import_model

    report("import")
    imported = import_model(model, input_shapes=input_shapes or None, dynamic=dynamic)
    return {"model": imported, "calibration": read_calibration(imported.inputs, calibration)}


def _check_unused(names: list[str]) -> None:
    """Refuse options that mean nothing for a decoder."""
    from tvm_ext.errors import OptionError

    if names:
        raise OptionError(f"{names[0].replace('_', '-')} is not for decoders; leave it out")


def _compile_decoder(
    folder: Path, target: Any, output: Path, force: bool, as_json: bool, options: dict[str, Any]
) -> None:
    """Compile a checkpoint to an artifact that `tvm-ext generate` takes."""
    from tvm_ext.generation.generator import Generator
    from tvm_ext.graph.units import bytes_text

    start = time.perf_counter()
    with step_display(quiet=as_json) as report:
        generator = Generator.compile(folder, target, progress=report, **options)
        report("write")
        generator.save(output, force)
    metadata = generator.model.metadata
    if as_json:
        print_json(metadata)
        return
    facts = metadata["decoder"]
    click.echo(f"{output}: compiled {folder} for {metadata['target']['kind']} in {elapsed(start)}")
    click.echo(f"  weights  {facts['weights']}, {bytes_text(facts['bytes_per_token'])} read for a token")
    click.echo(f"  cache    {facts['context']} tokens")


@click.command()
@model_options
@dynamic_option
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Folder to write.")
@click.option(
    "--emit",
    type=Choice(["library", "c"]),
    default="library",
    show_default=True,
    help="What to make: a library that TVM's runtime runs, or C sources that need neither TVM nor a heap.",
)
@click.option("--force", is_flag=True, help="Replace the artifact that is already in the folder.")
@click.option(
    "--weights",
    metavar="FORMAT",
    help="For a decoder: float32, bfloat16, int8, int4, int4-128, int4-32-asymmetric.  [default: float32]",
)
@click.option("--context", type=click.IntRange(min=1), help="For a decoder: tokens that its cache has room for.")
@calibrate_option
@pipeline_options()
@json_flag
def command(
    model: Path,
    target: str,
    input_shapes: Shapes,
    dynamic: str | None,
    output: Path,
    emit: str,
    force: bool,
    weights: str | None,
    context: int | None,
    calibration: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Compile MODEL (.onnx, .pt2, or a decoder's checkpoint folder) to an artifact folder, or to C sources."""
    import tvm

    from tvm_ext.artifact.destination import check_destination
    from tvm_ext.artifact.shared_object import find_compiler
    from tvm_ext.backends.registry import backend_of
    from tvm_ext.compiler import LIBRARY, check_emit, compile
    from tvm_ext.errors import OptionError
    from tvm_ext.graph.origins import with_nodes
    from tvm_ext.graph.units import bytes_text
    from tvm_ext.inputs import describe
    from tvm_ext.target import resolve_target

    start = time.perf_counter()
    check_destination(output, force)
    resolved = resolve_target(target)
    check_emit(emit, resolved)
    renew_calibration(resolved, quiet=as_json)
    given = given_options(options)
    if (model / "config.json").is_file():
        refused = {
            "--input-shape": input_shapes,
            "--dynamic": dynamic,
            "--emit": emit != LIBRARY,
            "--calibrate": calibration,
        }
        _check_unused([*(name for name, value in refused.items() if value), *(f"--{name}" for name in given)])
        _compile_decoder(
            model, resolved, output, force, as_json, given_options({"weights": weights, "context": context})
        )
        return
    if weights is not None or context is not None:
        raise OptionError(f"--weights and --context are for decoders, and {model} is no checkpoint's folder")
    if backend_of(resolved).standalone is None and emit == LIBRARY:
        find_compiler(str((resolved.host or resolved).attrs.get("mtriple", "")))  # it would be missed at the end only
    with step_display(quiet=as_json) as report:
        source: dict[str, Any] = {"model": model, "input_shapes": input_shapes or None, "dynamic": dynamic}
        if calibration:
            source = _with_calibration(model, input_shapes, dynamic, calibration, report)
        compiled = compile(target=resolved, progress=report, emit=emit, **source, **given)
        report("write")
        compiled.save(output, force=force)
    if as_json:
        print_json(compiled.metadata)
        return
    statistics = compiled.metadata["decisions"]["statistics"]
    wanted = target if target in tvm.target.list_tags() else compiled.metadata["target"]["kind"]
    click.echo(f"{output}: compiled {model} for {wanted} in {elapsed(start)}")
    for title, specs in (("inputs", compiled.inputs), ("outputs", compiled.outputs)):
        click.echo(f"  {title:8} {', '.join(map(describe, specs))}")
    if statistics:
        click.echo(f"  kernels  {statistics['kernels']} ({statistics['kernel_calls']} calls)")
        is_open = any(isinstance(extent, str) for spec in compiled.inputs for extent in spec.shape)
        planned = planned_text(f"{statistics['planned_bytes'] / 2**20:.2f} MiB", is_open)
        click.echo(f"  memory   {planned}")
    rounding = compiled.metadata["decisions"].get("precision")
    if rounding is not None:
        click.echo(
            f"  rounding {rounding['rounded_calls']} products and convolutions of {options['precision']}, operands off "
            f"by up to {rounding['operand_error']:.1%}; tvm-ext bench measures the error of the outputs"
        )
    for name, decision in compiled.metadata["decisions"]["memory"].items():
        if "traffic" in decision:
            before, after = (bytes_text(decision[key]) for key in ("given_traffic", "traffic"))
            click.echo(f"  traffic  {name}: {after} past the on-chip memory, {before} in the order given")
        if "note" in decision:
            click.echo(f"  memory   {name}: {decision['note']}")
    written = compiled.metadata["decisions"].get("c")
    if written is not None:
        sizes = (bytes_text(written[key]) for key in ("arena", "stack", "weights"))
        click.echo("  c        one thread; {} static, {} of the stack, {} of constants".format(*sizes))
        click.echo(f"  c        build and run it with `{compiled.metadata['run_with']}` in {output}")
    emulated = compiled.metadata["decisions"].get("hexagon")
    if emulated is not None:
        nodes = emulated["scalar_nodes"]
        scalar = ", ".join(with_nodes(name, nodes[name]) for name in dict.fromkeys(emulated["scalar"])) or "none"
        click.echo(
            f"  hexagon  {emulated['calls']} calls of kernels, {len(emulated['scalar'])} on the scalar core: {scalar}"
        )
        click.echo(
            f"  hexagon  {bytes_text(emulated['constants'])} of constants, {bytes_text(emulated['arena'])} besides"
        )
        packets = emulated["packets"]
        before = max(packets["estimated_cycles_of_llvm"], 1)
        click.echo(
            f"  hexagon  {packets['ours']} of {packets['kernels']} kernels with packets of our own, "
            f"{packets['verified_blocks']} blocks verified: {packets['estimated_cycles'] / before:.1%} of the cycles "
            "of LLVM's, by the model"
        )
        if packets["refused"]:
            click.echo(f"  hexagon  {len(packets['refused'])} packets refused by the assembler, LLVM's used instead")
    for note in compiled.metadata["decisions"]["import"]:
        click.echo(f"  import   {note}")
