"""Models of several samples at once: tvm_ext, onnxruntime and OpenVINO side by side, on one core and on all.

A part of ``bench_models.py``; models are exported anew for each number of samples, with shapes fixed, so that nobody
has to guess them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from scripts.results import kept_or
from tests.zoo import ZOO
from tests.zoo.torch_nets import export_onnx
from tvm_ext.bench import compare

MODELS = ("resnet18", "mobilenet_v2", "efficientnet_b0", "tinybert", "minilm")
QUICK_MODELS = ("mobilenet_v2", "tinybert")
BATCHES = (4, 16, 64)
JUDGED_BATCH = 16
PEERS = ("onnxruntime", "openvino")
LARGEST_ERROR = 1e-3


def batch_inputs(name: str, batch: int) -> dict[str, np.ndarray]:
    """Draw so many samples of the inputs of a model, each on its own."""
    samples = [ZOO[name].inputs(seed) for seed in range(batch)]
    return {key: np.concatenate([sample[key] for sample in samples]) for key in samples[0]}


def measure(
    names: Sequence[str],
    threads: Sequence[int],
    budget: float,
    batches: Sequence[int] = BATCHES,
    keep: Path | None = None,
) -> list[dict[str, Any]]:
    """Measure models, and print a line for each number of samples and of threads.

    Parameters
    ----------
    names : sequence of str
        Models of the zoo that are defined in torch.
    threads : sequence of int
        Numbers of threads.
    budget : float
        Seconds of timed runs for each engine.
    batches : sequence of int
        Numbers of samples.
    keep : path, optional
        Rows that were measured before, and where to add others.

    Returns
    -------
    list of dict
        Milliseconds of each engine by model, batch and threads, and ours over those of the better peer.
    """
    rows = []
    for name in names:
        entry = ZOO[name]
        if reason := entry.missing() or ("" if entry.module else "it has no torch definition"):
            print(f"{name}: left out, {reason}")
            continue
        for batch in batches:
            inputs = batch_inputs(name, batch)
            outputs = tuple(output.name for output in entry.onnx_model().graph.output)
            model = export_onnx(entry.torch_module(), inputs, outputs)
            for count in threads:
                key = {"model": name, "batch": batch, "threads": count}
                rows.append(kept_or(keep, key, partial(_measure_one, name, batch, count, model, inputs, budget)))
    return rows


def _measure_one(
    name: str, batch: int, threads: int, model: Any, inputs: Mapping[str, np.ndarray], budget: float
) -> dict[str, Any]:
    engines = ("tvm_ext", *PEERS)
    result = compare(model, engines, inputs=inputs, threads=threads, budget=budget, noise=False)
    row: dict[str, Any] = {"model": name, "batch": batch, "threads": result.threads}
    for engine in engines:
        row[f"{engine}_ms"] = result[engine].median_ms
        if result[engine].error is not None:
            row[f"{engine}_error"] = result[engine].error
    row["relative_error"] = result["tvm_ext"].relative_error
    row["compile_seconds"] = result["tvm_ext"].compile_seconds
    peers = [row[f"{peer}_ms"] for peer in PEERS if row[f"{peer}_ms"]]
    if row["tvm_ext_ms"] and peers:
        row["vs_best_peer"] = row["tvm_ext_ms"] / min(peers)
    times = " ".join(f"{engine} {row[f'{engine}_ms']:.2f}" for engine in engines if row[f"{engine}_ms"])
    ratio = row.get("vs_best_peer", float("nan"))
    print(f"{name:16} batch {batch:3} threads {threads} {times}  vs best peer {ratio:.2f}", flush=True)
    return row


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Figures of merit on all threads, and of one: geometric means over models that agree with onnxruntime."""
    most = max((row["threads"] for row in rows), default=1)
    summary: dict[str, float] = {}
    for suffix, threads in {"": most, "_one_thread": 1}.items():
        for batch in dict.fromkeys(row["batch"] for row in rows):
            ratios = [
                row["vs_best_peer"]
                for row in rows
                if (row["batch"], row["threads"]) == (batch, threads) and "vs_best_peer" in row and agrees(row)
            ]
            if ratios:
                summary[f"batch{batch}_vs_best_peer{suffix}"] = geometric_mean(ratios)
                if batch == JUDGED_BATCH:
                    summary[f"batch{batch}_worst{suffix}"] = max(ratios)
                    summary[f"batch{batch}_models{suffix}"] = len(ratios)
    return summary


def agrees(row: Mapping[str, Any]) -> bool:
    """Whether a model computes what onnxruntime does; one that does not has no latency."""
    return row["relative_error"] is not None and row["relative_error"] <= LARGEST_ERROR
