"""Compile every trained ONNX file of the zoo, and loops of 80 steps; compare with onnxruntime, and take the time."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

import tvm_ext
from tests.recurrent_loops import stacked_loops
from tests.zoo import ZOO
from tvm_ext.errors import TvmExtError
from tvm_ext.inputs import random_inputs
from tvm_ext.verify import compare_outputs, onnxruntime_outputs

TOLERANCE = 1e-4
"""Of the standard deviation of an output, where the zoo does not say otherwise."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--only", nargs="*", default=None, help="names of models")
    parser.add_argument("--all", action="store_true", help="all models of the zoo, not only the trained ones")


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Measure; the time is that of ``tvm_ext.compile``, reading and importing the model included.

    Seconds are of the clock; the processor's own count beside them is what a quiet machine with one core would take.
    """
    rows = []
    for entry in ZOO.values():
        if not (arguments.all or entry.kind == "trained" or entry.name == "minilm"):
            continue
        if arguments.only is not None and entry.name not in arguments.only:
            continue
        if reason := entry.missing():
            rows.append({"file": entry.name, "state": "missing", "reason": reason})
        else:
            rows.append(_row(entry.name, entry.onnx_model(), entry.inputs(0), entry.tolerance))
        print(_line(rows[-1]), flush=True)
    if arguments.only is None or "stacked_loops" in arguments.only:
        model = stacked_loops()
        rows.append(_row("stacked_loops", model, None, TOLERANCE) | {"made_here": True})
        print(_line(rows[-1]), flush=True)
    files = [row for row in rows if not row.get("made_here")]
    compiled = [row for row in rows if "compile_seconds" in row]
    return rows, {
        "trained_files": len(files),
        "trained_files_agree": sum(row["state"] == "agrees" for row in files),
        "trained_files_wrong": sum(row["state"] == "differs" for row in rows),
        "trained_files_refused": sum(row["state"] == "refused" for row in rows),
        "trained_files_missing": sum(row["state"] == "missing" for row in rows),
        "slowest_compile_seconds": max((row["compile_seconds"] for row in compiled), default=0.0),
        "slowest_compile_cpu_seconds": max((row["compile_cpu_seconds"] for row in compiled), default=0.0),
    }


def _row(name: str, model: onnx.ModelProto, given: Mapping[str, np.ndarray] | None, tolerance: float) -> dict[str, Any]:
    row: dict[str, Any] = {"file": name, "tolerance": tolerance, "nodes": _nodes(model.graph)}
    shapes = None if given is None else {key: array.shape for key, array in given.items()}
    start, busy = time.perf_counter(), time.process_time()
    try:
        compiled = tvm_ext.compile(model, input_shapes=shapes)
    except TvmExtError as error:
        return row | {"state": "refused", "reason": str(error)}
    row["compile_seconds"] = round(time.perf_counter() - start, 2)
    row["compile_cpu_seconds"] = round(time.process_time() - busy, 2)
    inputs = random_inputs(compiled.inputs) if given is None else given
    results = compiled.run({spec.name: inputs[spec.name] for spec in compiled.inputs})
    differences = compare_outputs(results, onnxruntime_outputs(model, inputs))
    row["relative_error"] = max(difference.relative for difference in differences)
    return row | {"state": "agrees" if row["relative_error"] <= tolerance else "differs"}


def _nodes(graph: onnx.GraphProto) -> int:
    """Count the nodes of a graph, those inside other nodes included."""
    inner = sum(_nodes(item.g) for node in graph.node for item in node.attribute if item.HasField("g"))
    return len(graph.node) + inner


def _line(row: dict[str, Any]) -> str:
    if "relative_error" not in row:
        return f"{row['file']:22} {row['state']:8} {row['reason']}"
    seconds = f"{row['compile_seconds']:6.1f} s ({row['compile_cpu_seconds']:.1f} of the processor)"
    return f"{row['file']:22} {row['state']:8} {row['relative_error']:.1e} {seconds}"
