"""Models of the zoo compiled for AArch64 and run under qemu, against onnxruntime on this machine."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tvm_ext
from tests.guarded.emulated_model import build_model_runner, missing, run_model
from tests.zoo import get
from tests.zoo.entry import Entry
from tests.zoo.quantized import quantized
from tvm_ext.errors import TvmExtError
from tvm_ext.verify import compare_outputs, onnxruntime_outputs

MODELS = (
    "tiny_cnn", "tiny_mlp", "tiny_cell", "tiny_transformer", "tiny_lstm", "silero_vad", "ppocr_cls", "shufflenet",
    "squeezenet", "mobilenet_v2",
)  # fmt: skip
"""Models in float32: every family of the zoo, tiny where emulation is slow."""

QUANTIZED = ("tiny_cnn", "mobilenet_v2")
"""Models in uint8, whose results may differ from those of this machine's own build by rounding of the last bit."""

CPUS = ("neoverse-n1", "neoverse-v1")
"""CPUs that models in uint8 are compiled for: with `sdot`, and with `sudot`; those in float32 for the first."""


def measure(only: Sequence[str] = ()) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Run the models, or some of them; one row for each model and CPU."""
    if missing():
        sys.exit(f"models for AArch64 need {missing()}")
    cases = [(get(name), CPUS[0]) for name in MODELS]
    cases += [(quantized(name), cpu) for name in QUANTIZED for cpu in CPUS]
    with tempfile.TemporaryDirectory() as folder:
        runner = build_model_runner(Path(folder))
        rows = [_row(entry, cpu, runner, Path(folder)) for entry, cpu in cases if not only or entry.name in only]
    return rows, {
        "aarch64_agree": sum(row["agrees"] for row in rows) / max(1, len(rows)),
        "aarch64_models": len({row["model"] for row in rows}),
        "aarch64_kernels": sum(row["kernels"] for row in rows),
    }


def _row(entry: Entry, cpu: str, runner: Path, folder: Path) -> dict[str, Any]:
    model, inputs = entry.onnx_model(), entry.inputs(0)
    row: dict[str, Any] = {"model": entry.name, "cpu": cpu, "tolerance": entry.tolerance, "agrees": False, "kernels": 0}
    shapes = {name: array.shape for name, array in inputs.items()}
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": cpu, "num-cores": 2}
    start = time.perf_counter()
    try:
        compiled = tvm_ext.compile(model, target, input_shapes=shapes)
        row["kernels"] = compiled.metadata["decisions"]["statistics"]["kernels"]
        artifact = compiled.save(folder / "model", force=True)
        wanted = onnxruntime_outputs(model, inputs)
        ordered = [inputs[spec.name] for spec in compiled.inputs]
        shaped = [replace(spec, shape=array.shape) for spec, array in zip(compiled.outputs, wanted, strict=True)]
        found = run_model(artifact, ordered, shaped, runner, folder)
    except (TvmExtError, AssertionError) as error:
        row["error"] = str(error)
    else:
        row["relative_error"] = max(difference.relative for difference in compare_outputs(found, wanted))
        row["agrees"] = row["relative_error"] <= entry.tolerance
    row["seconds"] = round(time.perf_counter() - start, 1)
    print(*(f"{key} {value}" for key, value in row.items()), flush=True)
    return row
