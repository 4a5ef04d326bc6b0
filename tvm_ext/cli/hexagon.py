"""``tvm-ext hexagon``: kernels and models of Hexagon DSPs, run under an emulator."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from tvm_ext.cli.common import Shapes, input_shape_option, json_flag, print_json, step_display


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Run models for Hexagon DSPs under an emulator, without a vendor's SDK."""


@command.command()
@json_flag
def doctor(as_json: bool) -> None:
    """Say which programs are there, and the one command that installs what is missing."""
    from tvm_ext.backends.hexagon.toolchain import complaint, installed
    from tvm_ext.errors import MissingPackageError

    found = installed()
    if as_json:
        rows = [
            {"name": item.tool.name, "path": item.path, "version": list(item.version), "fault": item.fault}
            for item in found
        ]
        print_json({"tools": rows, "complaint": complaint(found)})
    else:
        for item in found:
            state = item.fault or f"{item.path}, version {'.'.join(map(str, item.version))}"
            click.echo(f"  {item.tool.name:12} {item.tool.purpose}: {state}")
    if complaint(found):
        raise MissingPackageError(complaint(found))
    if not as_json:
        click.echo("Hexagon code can be compiled and run here")


_NOT_HEXAGON = "target {!r} is not a Hexagon processor; give one such as hexagon-v67"


def _check_processor(target: str) -> None:
    """Refuse other targets, those included that this machine would refuse for reasons of their own."""
    from tvm_ext.backends.hexagon.target import is_hexagon
    from tvm_ext.errors import TargetError
    from tvm_ext.target import resolve_target

    try:
        accepted = is_hexagon(resolve_target(target))
    except TargetError:
        if "hexagon" in target.lower():
            raise
        accepted = False
    if not accepted:
        raise TargetError(_NOT_HEXAGON.format(target))


@command.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--target", help="Processor to compile a MODEL file for (default: hexagon-v67).")
@input_shape_option
@click.option("--input", "inputs", multiple=True, metavar="[NAME=]FILE", help=".npy of one input, or .npz of several.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of random inputs.")
@click.option("--cycles", is_flag=True, help="Follow every packet through the cycle model, too: takes much longer.")
@click.option("--nodes", "of_nodes", is_flag=True, help="List the nodes of the model, in order, instead of kernels.")
@click.option("--picture", type=click.Path(path_type=Path), metavar="FILE.png", help="Draw the packets of every call.")
@json_flag
def profile(
    model: Path,
    target: str | None,
    input_shapes: Shapes,
    inputs: tuple[str, ...],
    seed: int,
    cycles: bool,
    of_nodes: bool,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Run MODEL (a file, or a folder that `compile` wrote) and list what its kernels execute, the most first."""
    from tvm_ext.backends.hexagon.model.compiled import HexagonModel, load_hexagon
    from tvm_ext.backends.hexagon.model.picture import draw_layers
    from tvm_ext.backends.hexagon.model.profile import by_kernel, by_node, totals
    from tvm_ext.bench.chart import check_chart
    from tvm_ext.compiler import compile
    from tvm_ext.errors import OptionError, TargetError
    from tvm_ext.frontend import ImportedModel, import_model
    from tvm_ext.inputs import input_files, random_inputs, read_inputs
    from tvm_ext.system.files import check_output

    if target is not None and model.is_dir():
        raise TargetError(
            f"--target {target}: {model} is compiled already; leave the option out, or give the model's file"
        )
    if input_shapes and model.is_dir():
        raise OptionError(
            f"--input-shape: {model} is compiled already, for the shapes that it has; leave the option out"
        )
    target = target or "hexagon-v67"
    if not model.is_dir():
        _check_processor(target)
    if picture is not None:
        check_chart(picture)
        check_output(picture, [model, *input_files(inputs)])
    subject = load_hexagon(model) if model.is_dir() else import_model(model, input_shapes=input_shapes or None)
    arrays = read_inputs(subject.inputs, inputs) if inputs else random_inputs(subject.inputs, seed)
    with step_display(quiet=as_json) as report:
        compiled = compile(subject, target, progress=report) if isinstance(subject, ImportedModel) else subject
    if not isinstance(compiled, HexagonModel):
        raise TargetError(_NOT_HEXAGON.format(target))
    _, layers = compiled.profile(arrays, cycles)
    if picture is not None:
        draw_layers(layers, picture)
        click.echo(f"{picture}: packets of every call, drawn", err=as_json)
    total = totals(layers)
    if as_json:
        print_json({"total": total, "nodes": by_node(layers), "calls": [asdict(layer) for layer in layers]})
        return
    click.echo(
        f"{model}: {total['packets']:,} packets in {len(layers)} calls; {total['vector_share']:.0%} of instructions "
        f"are HVX's, {total['filled']:.0%} of the slots are filled, {total['bytes']:,} bytes are moved"
    )
    if total["scalar_packets"]:
        click.echo(f"  on the scalar core: {total['scalar_share']:.0%} of the packets")
    if total["cycles"] is not None:
        click.echo(f"  {total['cycles']:,} cycles by the model, {total['cycles'] / total['packets']:.2f} a packet")
    head = "       cycles" if cycles else ""
    listed = "nodes" if of_nodes else "kernel"
    click.echo(f"  calls      packets  share  instructions   HVX  filled         bytes{head}  {listed}")
    for row in by_node(layers) if of_nodes else by_kernel(layers):
        name = ", ".join(row["nodes"]) or "(no node known)" if of_nodes else row["kernel"]
        click.echo(
            f"  {row['calls']:5} {row['packets']:12,} {row['share']:6.1%} {row['instructions']:13,} "
            f"{row['vector_share']:5.0%} {row['filled']:7.0%} {row['bytes']:13,}"
            f"{format(row['cycles'], '13,') if cycles else ''}  {name}"
        )
