"""Convolutional models of the zoo on VTA: accuracy against float32, and the whole time; writes docs/vta_models.md.

Every model is calibrated on some inputs and compared with onnxruntime on others. Models with made-up weights have no
answers that could be right: for them the relative error counts alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scripts.results import add_keep_option, add_row, read_rows
from scripts.trust.isolated import Outcome, run_isolated

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "vta_models.md"
# Calibration data must not be what is compared on.
CALIBRATION_SEED = 1000
ANSWERS_LOST, RELATIVE_ERROR = 0.01, 0.05
# A detector's answer for a pixel is whether something is there; this is the threshold that its users take.
DETECTION_THRESHOLD = 0.3
# Rank-4 inputs of convolutions are VTA's; these have clips or waves, or nothing that VTA has layers for.
LEFT_OUT = {
    "c3d": "its convolutions have three dimensions",
    "tiny_cell": "one input of a search space, no pictures",
}


@dataclass(frozen=True)
class Case:
    """What is measured of one model."""

    name: str
    calibration: int
    inputs: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help="models of that name")
    parser.add_argument("--calibration", type=int, default=8, help="inputs to calibrate on; twice as many if trained")
    parser.add_argument("--inputs", type=int, default=8, help="inputs that are compared")
    parser.add_argument("--seconds", type=float, default=1800, help="limit for one model")
    parser.add_argument("--page", type=Path, default=PAGE)
    add_keep_option(parser)
    parser.add_argument("--kept-only", action="store_true", help="measure nothing: write what --keep has")
    parser.add_argument("--note", default="", help="a paragraph for the page: what is special about these figures")


def names() -> list[str]:
    """List the convolutional models of the zoo that are here."""
    from tests.zoo import ZOO

    families = ("cnn", "irregular")
    return [e.name for e in ZOO.values() if e.family in families and e.name not in LEFT_OUT and e.missing() is None]


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Run the models, each in a process of its own, and write the page."""
    chosen = arguments.only or names()
    kept = {row["model"]: row for row in read_rows(arguments.keep)}
    missing = [name for name in chosen if name not in kept]
    if arguments.kept_only:
        chosen = [name for name in chosen if name in kept]
    cases = [Case(name, arguments.calibration, arguments.inputs) for name in chosen if name not in kept]
    for index, outcome in run_isolated(measured, cases, seconds=arguments.seconds, memory=12 << 30, calls=1):
        row = kept[cases[index].name] = _row(cases[index], outcome)
        print(json.dumps({key: value for key, value in row.items() if key != "notes"}), flush=True)
        add_row(arguments.keep, row)
    rows = [kept[name] for name in chosen]
    if not arguments.only:
        arguments.page.write_text(page(rows, missing if arguments.kept_only else [], arguments.note), encoding="utf-8")
    return rows, summary(rows)


def _row(case: Case, outcome: Outcome) -> dict[str, Any]:
    if outcome.state == "returned":
        return dict(outcome.result)
    return {"model": case.name, "state": outcome.state, "reason": outcome.detail, "seconds": round(outcome.seconds, 1)}


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Count the models, those that crashed, were refused, or lost too much."""
    ran = [row for row in rows if row["state"] == "ran"]
    return {
        "vta_models": len(ran),
        "vta_crashes": sum(row["state"] in ("crashed", "hung", "memory", "other") for row in rows),
        "vta_refused": sum(row["state"] == "refused" for row in rows),
        "vta_accuracy_lost": sum(not row["accurate"] for row in ran),
        "vta_largest_relative_error": max((row["relative_error"] for row in ran), default=0.0),
    }


def measured(case: Case) -> dict[str, Any]:
    """Measure one model; what it raises becomes its state."""
    sys.path.insert(0, str(ROOT))
    from tvm_ext.errors import TvmExtError

    start = time.monotonic()
    try:
        row = {"state": "ran", **_measure(case)}
    except TvmExtError as error:
        row = {"state": "refused", "reason": str(error)}
    except Exception:
        row = {"state": "other", "reason": traceback.format_exc(limit=-3)}
    return {"model": case.name, **row, "seconds": round(time.monotonic() - start, 1)}


def _measure(case: Case) -> dict[str, Any]:
    import tvm
    from tvm import relax

    from tests.zoo import get
    from tvm_ext.backends.cpu.target import native_target
    from tvm_ext.backends.vta.model.offload import offload_imported
    from tvm_ext.backends.vta.model.profile import profile_regions
    from tvm_ext.backends.vta.timing.costs import costs_named
    from tvm_ext.frontend import import_model
    from tvm_ext.verify import onnxruntime_outputs

    entry, costs = get(case.name), costs_named("chisel")
    imported = import_model(entry.onnx_path(), input_shapes=entry.input_shapes())
    trained = entry.kind == "trained"
    drawn = [entry.inputs(CALIBRATION_SEED + seed) for seed in range(case.calibration * (1 + trained))]
    calibration = {name: np.stack([sample[name] for sample in drawn]) for name in drawn[0]}
    target = tvm.target.Target("tvm-ext/vta-1x16x16")
    model = offload_imported(imported, target, calibration, costs)
    host = native_target()
    with host:
        executable = tvm.compile(model.mod, host, relax_pipeline="tvm_ext")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    same, total, error, signal = 0, 0, 0.0, 0.0
    for seed in range(case.inputs):
        arrays = entry.inputs(seed)
        result = machine["main"](*(tvm.runtime.tensor(array) for array in arrays.values()))
        found = [result.numpy()] if hasattr(result, "numpy") else [value.numpy() for value in result]
        expected = onnxruntime_outputs(entry.onnx_model(), arrays)
        for value, wanted in zip(found, expected, strict=True):
            error += float(np.square(value.astype(np.float64) - wanted).sum())
            signal += float(np.square(wanted.astype(np.float64)).sum())
        answers = [answers_of(case.name)(values[0]) for values in (found, expected)]
        same += int((answers[0] == answers[1]).sum())
        total += answers[0].size
    seconds = profile_regions(model.regions, costs, model.partition).seconds()
    relative, agreement = (error / signal) ** 0.5 if signal else float(error > 0), same / total
    accurate = relative <= RELATIVE_ERROR or (trained and agreement >= 1 - ANSWERS_LOST)
    return {
        "weights": "trained" if trained else "made up",
        "layers": len(model.partition.decisions),
        "on_vta": len(model.partition.on_vta),
        "regions": len(model.partition.regions),
        "inputs": case.inputs,
        "answers": total,
        "agreement": round(agreement, 5),
        "relative_error": round(relative, 5),
        "accurate": bool(accurate),
        "milliseconds": {part: round(1e3 * value, 3) for part, value in seconds.items()},
        "on_cpu_milliseconds": round(1e3 * model.partition.cpu_only_seconds, 3),
        "notes": list(model.notes),
    }


def answers_of(name: str) -> Callable[[np.ndarray], np.ndarray]:
    """Return what makes answers of an output: the largest of each row, or for a detector whether something is there."""
    if name.endswith("_det"):
        return lambda output: output > DETECTION_THRESHOLD
    return lambda output: output.reshape(-1, output.shape[-1]).argmax(axis=1)


def page(rows: list[dict[str, Any]], missing: list[str], note: str = "") -> str:
    """Write docs/vta_models.md."""
    lines = [
        "# Models on VTA",
        "",
        "Made by `python scripts/check_trust.py vta_models`. Each model is calibrated on some inputs, compiled for",
        "`tvm-ext/vta-1x16x16`, run on the simulator with others, and compared with float32 (onnxruntime). *Error* is",
        "the root of the mean square of the errors over that of the outputs; *same* is the share of equal answers: the",
        "largest of each row, for a detector each pixel being text or not. Weights that are made up have no right",
        "answers, and small differences between classes: there the error is what counts.",
        "",
        "The times are the cycle model's at 100 MHz (`chisel`), and estimates for a CPU like the Pynq's (`HostSpeed`):",
        "to start programs, to convert at the borders, for layers and for other operators on the CPU. *CPU only* is",
        "the same estimate with nothing on VTA.",
        "",
        "| model | weights | layers on VTA | regions | error | same | VTA ms | start ms | borders ms | CPU layers ms | "
        "CPU other ms | together ms | CPU only ms |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["state"] != "ran":
            lines.append(f"| {row['model']} | {row['state']}: {row['reason'].splitlines()[-1]} |" + " |" * 11)
            continue
        times = list(row["milliseconds"].values())
        same = f"{row['agreement']:.1%}" if row["weights"] == "trained" else ""
        parts = " | ".join(f"{value:.1f}" for value in [*times, sum(times), row["on_cpu_milliseconds"]])
        lines.append(
            f"| {row['model']} | {row['weights']} | {row['on_vta']} of {row['layers']} | {row['regions']} | "
            f"{row['relative_error']:.2%} | {same} | {parts} |"
        )
    lines += ["", note] if note else []
    left = [f"- `{name}`: {reason}" for name, reason in LEFT_OUT.items()]
    left += [f"- `{name}`: not measured yet" for name in missing]
    return "\n".join([*lines, "", "Left out, of the zoo's convolutional models:", "", *left, ""])
