"""``tvm-ext vta run`` and ``tvm-ext vta profile``: a whole model on VTA."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvm_ext.cli.common import Shapes, input_shape_option, json_flag, model_argument, print_json, step_display

if TYPE_CHECKING:
    import numpy as np
    from tvm.target import Target

    from tvm_ext.backends.vta.model.accuracy import TensorAccuracy
    from tvm_ext.backends.vta.model.vta_model import VTAModel
    from tvm_ext.frontend import ImportedModel
    from tvm_ext.options import PipelineOptions

calibrate_option = click.option(
    "--calibrate",
    "calibration",
    multiple=True,
    metavar="[NAME=]FILE",
    help="Inputs that the ranges of integers are chosen on, .npy of one input or .npz of several, as many along the "
    "first axis as there are.",
)
vta_target_option = click.option(
    "--target", default="tvm-ext/vta-1x16x16", show_default=True, metavar="TAG", help="Which VTA: one of its tags."
)


def read_calibration(specs: tuple[Any, ...], arguments: tuple[str, ...]) -> dict[str, np.ndarray] | None:
    """Read the files of ``--calibrate``; None if there are none."""
    from tvm_ext.inputs import read_arrays

    return read_arrays(specs, arguments) if arguments else None


def check_calibration(
    imported: ImportedModel, target: Target, options: PipelineOptions, samples: dict[str, np.ndarray] | None
) -> None:
    """Move layers to integers once: calibration data that is missing, or does not fit, is told of before the search."""
    from dataclasses import replace

    import tvm

    from tvm_ext.pipeline import phase_passes

    given = None if samples is None else imported.by_parameter(samples)
    mod = imported.mod
    with target, tvm.transform.PassContext():
        for phase, phase_pass in phase_passes(target, replace(options, calibration=given)):
            mod = phase_pass(mod)
            if phase.name == "partition":
                break


def _offload(
    imported: ImportedModel, target: Target, calibration: dict[str, np.ndarray] | None, costs: str
) -> VTAModel:
    from tvm_ext.backends.vta.model.offload import offload_imported
    from tvm_ext.backends.vta.timing.costs import costs_named

    return offload_imported(imported, target, calibration, costs_named(costs))


def _resolved(target: str) -> Target:
    """Refuse other targets than VTA's, those included that this machine would refuse for reasons of their own."""
    from tvm_ext.backends.vta.config import CONFIG_OF_MODEL
    from tvm_ext.errors import TargetError
    from tvm_ext.target import resolve_target

    with contextlib.suppress(TargetError):
        resolved = resolve_target(target)
        if "vta" in resolved.keys:
            return resolved
    tags = ", ".join(f"tvm-ext/{known}" for known in CONFIG_OF_MODEL)
    raise TargetError(f"target {target!r} is not a VTA; use one of the tags {tags}")


def _plain(row: TensorAccuracy) -> dict[str, Any]:
    """Return a row as JSON can say it, which has no infinity: without errors the ratio is left out."""
    values = dict(vars(row))
    if not math.isfinite(row.signal_to_noise):
        values["signal_to_noise"] = None
    return values


@click.command()
@model_argument
@vta_target_option
@input_shape_option
@click.option("--input", "inputs", multiple=True, metavar="[NAME=]FILE", help=".npy of one input, or .npz of several.")
@calibrate_option
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of random inputs if none are given."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the outputs to this .npz file.")
@json_flag
def run(
    model: Path,
    target: str,
    input_shapes: Shapes,
    inputs: tuple[str, ...],
    calibration: tuple[str, ...],
    seed: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Run MODEL (.onnx or .pt2) with its layers on the simulated VTA, and compare with the model in floats.

    Without --calibrate the ranges of integers are chosen on the inputs themselves.
    """
    import time

    import tvm
    from tvm import relax

    from tvm_ext.backends.cpu.target import native_target
    from tvm_ext.cli.run import save_arrays
    from tvm_ext.frontend import import_model
    from tvm_ext.inputs import input_files, random_inputs, read_inputs
    from tvm_ext.system.files import check_output

    if output is not None:
        check_output(output, [model, *input_files((*inputs, *calibration))])
    resolved = _resolved(target)
    with step_display(quiet=as_json) as report:
        report("import")
        imported = import_model(model, input_shapes=input_shapes or None)
        arrays = read_inputs(imported.inputs, inputs) if inputs else random_inputs(imported.inputs, seed)
        report("move to VTA")
        samples = read_calibration(imported.inputs, calibration)
        offloaded = _offload(imported, resolved, arrays if samples is None else samples, "chisel")
        report("generate code")
        host = native_target()
        with host:
            executable = tvm.compile(offloaded.mod, host, relax_pipeline="tvm_ext")
        report("run")
        machine = relax.VirtualMachine(executable, tvm.cpu())
        start = time.perf_counter()
        result = machine["main"](*(tvm.runtime.tensor(array) for array in arrays.values()))
        seconds = time.perf_counter() - start
        values = [result.numpy()] if hasattr(result, "numpy") else [value.numpy() for value in result]
        report("compare")
        parameters = [parameter.name for parameter in offloaded.floats["main"].params]
        sample = dict(zip(parameters, arrays.values(), strict=True))
        accuracy = offloaded.accuracy([sample], [values])
    if output is not None:
        save_arrays(output, dict(zip((spec.name for spec in imported.outputs), values, strict=True)))
    steps = sum(region.steps()["gemm"] for region in offloaded.regions)
    if as_json:
        rows = {name: [_plain(row) for row in getattr(accuracy, name)] for name in ("layers", "outputs")}
        print_json({"seconds": seconds, "notes": offloaded.notes, "accuracy": rows, "gemm_steps": steps})
        return
    for note in offloaded.notes:
        click.echo(f"{model}: {note}")
    if not calibration:
        click.echo("ranges chosen on the inputs themselves; give --calibrate for those of other data")
    click.echo(f"ran in {seconds:.2f} s, {steps} steps of the matrix unit")
    click.echo(str(accuracy))


@click.command()
@model_argument
@vta_target_option
@input_shape_option
@calibrate_option
@click.option(
    "--costs", "costs_name", default="chisel", show_default=True, help="Implementation whose cycles to count."
)
@json_flag
def profile(
    model: Path,
    target: str,
    input_shapes: Shapes,
    calibration: tuple[str, ...],
    costs_name: str,
    as_json: bool,
) -> None:
    """Count the cycles of MODEL (.onnx or .pt2) on VTA, layer by layer.

    Cycles do not depend on values, so that --calibrate makes no difference but for very large biases.
    """
    from tvm_ext.backends.vta.model.node_names import layer_nodes
    from tvm_ext.backends.vta.model.profile import profile_regions
    from tvm_ext.backends.vta.timing.costs import costs_named
    from tvm_ext.frontend import import_model
    from tvm_ext.inputs import random_inputs

    costs, resolved = costs_named(costs_name), _resolved(target)
    with step_display(quiet=as_json) as report:
        report("import")
        imported = import_model(model, input_shapes=input_shapes or None)
        report("move to VTA")
        samples = read_calibration(imported.inputs, calibration) or random_inputs(imported.inputs)
        offloaded = _offload(imported, resolved, samples, costs_name)
        report("count cycles")
        names = layer_nodes(offloaded.graph)
        found = profile_regions(offloaded.regions, costs, offloaded.partition, names)
    if as_json:
        rows = [
            vars(row) | {"occupancy": row.occupancy, "roofline": row.roofline, "nodes": list(names.get(row.layer, ()))}
            for row in found.layers
        ]
        print_json(
            {
                "costs": costs.name,
                "clock_mhz": costs.clock_mhz,
                "cycles": found.cycles,
                "region_cycles": found.region_cycles,
                "seconds": found.seconds(),
                "layers": rows,
                "decisions": offloaded.decisions()["layers"],
                "notes": offloaded.notes,
            }
        )
        return
    for note in offloaded.notes:
        click.echo(f"{model}: {note}")
    click.echo(str(found))
