"""``tvm-ext run``: run an artifact on given or random inputs, and compare with onnxruntime if asked."""

from __future__ import annotations

import io
import math
import time
import zipfile
from pathlib import Path
from typing import Any

import click
import numpy as np

from tvm_ext.cli.common import json_flag, print_json, size_option
from tvm_ext.system.files import check_output, write_atomically


@click.command()
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--input", "inputs", multiple=True, metavar="[NAME=]FILE", help=".npy of one input, or .npz of several.")
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Seed of the random inputs used when none are given.",
)
@size_option
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the outputs to this .npz file.")
@click.option("--device", metavar="vta://HOST:PORT", help="Run programs for VTA on the board that is served there.")
@click.option("--emulate", is_flag=True, help="Run a model that was compiled for Hexagon under an emulator.")
@click.option("--check", type=click.Path(path_type=Path), metavar="MODEL.onnx", help="Compare with onnxruntime.")
@click.option(
    "--tolerance",
    default=1e-4,
    show_default=True,
    type=click.FloatRange(min=0),
    callback=lambda ctx, param, value: _require_number(value),
    help="Largest error allowed by --check, as a share of the output's standard deviation.",
)
@json_flag
def command(
    artifact: Path,
    inputs: tuple[str, ...],
    seed: int,
    size: str | None,
    output: Path | None,
    device: str | None,
    emulate: bool,
    check: Path | None,
    tolerance: float,
    as_json: bool,
) -> None:
    """Run ARTIFACT, a folder that `tvm-ext compile` wrote."""
    from tvm_ext.artifact.compiled_model import load
    from tvm_ext.backends.hexagon.model.compiled import load_hexagon
    from tvm_ext.backends.vta.board.offloaded import open_runner
    from tvm_ext.errors import CheckError, OptionError
    from tvm_ext.inputs import input_files, random_inputs, read_inputs
    from tvm_ext.sizes import all_extents, parse_size
    from tvm_ext.verify import compare_outputs, onnxruntime_outputs, require_agreement

    if output is not None:
        check_output(output, [artifact, *input_files(inputs), *([check] if check else [])])
    compiled = load_hexagon(artifact) if emulate else load(artifact)
    if inputs and size is not None:
        raise OptionError("give --input or --size, not both: arrays have sizes already")
    if inputs:
        arrays = read_inputs(compiled.inputs, inputs)
    else:
        extents = None if size is None else all_extents(parse_size(size), compiled.inputs, compiled.conditions)
        arrays = random_inputs(compiled.inputs, seed, extents, compiled.conditions)
    if device is not None and not compiled.is_offloaded:
        raise OptionError(
            f"{artifact} has no programs for VTA to run at {device}; compile it for a board (--target vta-...)"
        )
    runner = None if device is None else open_runner(device)
    compiled.instrument = runner
    start = time.perf_counter()
    results = compiled.run(arrays)
    seconds = time.perf_counter() - start
    rows = [_summary(name, array) for name, array in results.items()]
    if output is not None:
        save_arrays(output, results)
    errors = compare_outputs(results, onnxruntime_outputs(check, arrays)) if check else []
    if as_json:
        print_json({"outputs": rows, "seconds": seconds, "check": [vars(error) for error in errors]})
    else:
        kind = "given" if inputs else f"random (seed {seed})"
        what = "under the emulator (not the processor's time)" if emulate else "(first run, not warmed up)"
        click.echo(f"{artifact}: ran on {kind} inputs in {seconds * 1e3:.2f} ms {what}")
        if runner is not None:
            click.echo(f"  {runner.programs} programs on the board at {device}, {runner.seconds * 1e3:.2f} ms there")
        for row in rows:
            click.echo(f"  {row['name']}: {row['dtype']}{row['shape']} mean {row['mean']:.6g} std {row['std']:.6g}")
        for error in errors:
            click.echo(
                f"  check {error.name}: largest absolute error {error.absolute:.3g}, "
                f"relative to the standard deviation {error.relative:.3g}"
            )
    try:
        require_agreement(errors, tolerance)
    except CheckError as error:
        rounding = compiled.metadata["decisions"].get("precision")
        if rounding is None:
            raise
        raise CheckError(
            f"{error}, and {rounding['rounded_calls']} products and convolutions of this model have operands that are "
            f"off by up to {rounding['operand_error']:.1%}, as its precision was chosen; allow more by --tolerance"
        ) from None


def _require_number(value: float) -> float:
    if math.isnan(value):
        raise click.BadParameter("nan is not a number that an error can be compared with")
    return value


def _summary(name: str, array: np.ndarray) -> dict[str, Any]:
    values = array.astype("float64") if array.size else np.zeros(1)
    return {
        "name": name,
        "shape": list(array.shape),
        "dtype": str(array.dtype),
        "mean": float(values.mean()),
        "std": float(values.std()),
    }


def save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays to an .npz file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:  # np.savez cannot take an output that is called "file"
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)
    write_atomically(path, buffer.getvalue(), make_folders=True)
