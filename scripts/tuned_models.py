"""Models of the zoo, tuned: tvm_ext with and without tuning, onnxruntime and OpenVINO side by side.

A part of ``bench_tuners.py``.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
import tvm
from tvm import relax

import tvm_ext
from scripts.results import kept_or
from tests.zoo import ZOO, get
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.backends.registry import backend_of
from tvm_ext.bench import compare
from tvm_ext.bench.contender import Contender
from tvm_ext.errors import TvmExtError, first_line
from tvm_ext.system.threads import physical_cores
from tvm_ext.tuners.measure.measurer import Measurer
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuning import tune

PEERS = ("onnxruntime", "openvino")
BATCH = 8
PAIRED_SECONDS = 3.0
FEWEST_PAIRS = 10


def names() -> list[str]:
    """List the models that can be had here, tiny ones left out."""
    return [name for name, entry in ZOO.items() if entry.kind != "tiny" and not entry.missing()]


def tuned(models: Sequence[str], trials: int, budget: float, keep: Path | None = None) -> list[dict[str, Any]]:
    """Tune models and measure them, but for those that were kept; one that fails is left out, and said.

    Parameters
    ----------
    models : sequence of str
    trials : int
    budget : float
        Seconds of timed runs for each engine.
    keep : path, optional
        Where rows are kept.
    """
    rows = []
    for name in models:
        asked = {"tuned_model": name, "asked": trials}
        try:
            row = kept_or(keep, asked, lambda asked=asked: asked | _tuned(asked["tuned_model"], trials, budget))
        except (TvmExtError, RuntimeError, ValueError, OSError) as error:
            print(f"{name}: left out: {first_line(error)}", flush=True)
            continue
        rows.append(row)
        print({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}, flush=True)
    return rows


def _tuned(name: str, trials: int, budget: float) -> dict[str, Any]:
    entry, target = get(name), native_target()
    with tempfile.TemporaryDirectory() as folder, Measurer(threads=physical_cores()) as measurer:
        start = time.perf_counter()
        imported = tvm_ext.import_model(entry.onnx_model(), input_shapes=entry.input_shapes())
        result = tune(
            imported, target, folder, trials, recipe(backend_of(target).tuner, batch=BATCH, initial=BATCH),
            batch=BATCH, measurer=measurer,
        )  # fmt: skip
        seconds = time.perf_counter() - start
        engines = [
            Contender("tvm_ext", "tuned", {"work_dir": folder}),
            Contender("tvm_ext", "untuned"),
            *(Contender(peer) for peer in PEERS),
        ]
        ratio = paired(imported, folder, entry.inputs(0))
        measured = compare(entry.onnx_model(), engines, inputs=entry.inputs(0), budget=budget, noise=False)
    row: dict[str, Any] = {
        "kernels": len(result.kernels),
        "kernels_left_alone": sum(kernel.left_alone for kernel in result.kernels),
        "trials": result.trials,
        "tuning_seconds": round(seconds, 1),
        "load_average": round(os.getloadavg()[0], 2),
    }
    for engine in engines:
        row[f"{engine.label}_ms"] = measured[engine.label].median_ms
    row["tuned_vs_untuned"] = ratio
    row["relative_error"] = measured["tuned"].relative_error
    row["agrees"] = row["relative_error"] is not None and row["relative_error"] <= entry.tolerance
    row["notes"] = [*result.notes, *measured.notes]
    peers = [row[f"{peer}_ms"] for peer in PEERS if row[f"{peer}_ms"]]
    if row["tuned_ms"] and peers:
        row["vs_best_peer"] = row["tuned_ms"] / min(peers)
    return row


def paired(imported: Any, folder: str, inputs: Mapping[str, np.ndarray], rounds: int = 3) -> float:
    """Latency of the tuned model over that of the untuned one, in one process, run by run in turns.

    Two processes differ by several percent in where their tensors lie; the median of three pairs of compilations does
    by less than one.
    """
    ratios = []
    for number in range(rounds):
        machines = {}
        for kind in ("tuned", "untuned") if number % 2 else ("untuned", "tuned"):
            compiled = tvm_ext.compile(imported, **({"work_dir": folder} if kind == "tuned" else {}))
            machines[kind] = relax.VirtualMachine(compiled.executable, tvm.cpu())["main"]
            tensors = [tvm.runtime.tensor(inputs[spec.name]) for spec in compiled.inputs]
        found = []
        end = time.perf_counter() + PAIRED_SECONDS
        while time.perf_counter() < end or len(found) < FEWEST_PAIRS:
            seconds = {}
            for kind, run in machines.items():
                start = time.perf_counter()
                run(*tensors)
                seconds[kind] = time.perf_counter() - start
            found.append(seconds["tuned"] / seconds["untuned"])
        ratios.append(median(found[3:]))
    return float(median(ratios))


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Geometric means over the models whose outputs agree with the others', and how many these are."""
    disagree = [row for row in rows if not row["agrees"]]
    rows = [row for row in rows if row["agrees"]]

    def ratio(engine: str) -> float:
        pairs = [(row["tuned_ms"], row[f"{engine}_ms"]) for row in rows if row["tuned_ms"] and row[f"{engine}_ms"]]
        return round(geometric_mean([tuned_ms / other for tuned_ms, other in pairs]), 4)

    return {
        "tuned_models": len(rows),
        "tuned_models_that_disagree": len(disagree),
        "tuned_vs_best_peer": round(geometric_mean([row["vs_best_peer"] for row in rows if "vs_best_peer" in row]), 4),
        "tuned_vs_onnxruntime": ratio("onnxruntime"),
        "tuned_vs_untuned": round(geometric_mean([row["tuned_vs_untuned"] for row in rows]), 4),
    }
