"""Models compiled with ``precision="bfloat16"`` beside the same in float32; OpenVINO both ways, by its own hint.

A part of ``bench_models.py``, for CPUs with AVX512-BF16. All four run in turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from scripts.results import kept_or
from tests.zoo import ZOO
from tvm_ext.bench import compare
from tvm_ext.bench.contender import Contender

MODELS = ("resnet50", "mobilenet_v2", "vgg16", "bert_base", "minilm", "gpt2")

CONTENDERS = (
    Contender("tvm_ext"),
    Contender("tvm_ext", "bfloat16", {"precision": "bfloat16"}),
    Contender("openvino"),
    Contender("openvino", "openvino_bfloat16", {"precision": "bf16"}),
)


def measure(names: Sequence[str], threads: int, budget: float, keep: Path | None = None) -> list[dict[str, Any]]:
    """Measure models both ways, and print a line for each.

    Parameters
    ----------
    names : sequence of str
        Models of the zoo.
    threads : int
        Threads of all.
    budget : float
        Seconds of timed runs for each.
    keep : path, optional
        JSON lines of rows: those there are not measured anew, others are added; so each may have a process of its own.

    Returns
    -------
    list of dict
        Milliseconds by model, ratios, and the error of bfloat16: its largest difference from the reference in float32,
        over the standard deviation of the output.
    """
    rows = []
    for name in names:
        entry = ZOO[name]
        if reason := entry.missing():
            print(f"{name}: left out, {reason}")
            continue
        row = kept_or(keep, {"model": name, "threads": threads}, partial(_measure_one, name, threads, budget))
        rows.append(row)
        print(" ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return rows


def _measure_one(name: str, threads: int, budget: float) -> dict[str, Any]:
    entry = ZOO[name]
    result = compare(
        entry.onnx_model(), CONTENDERS, inputs=entry.inputs(0), threads=threads, budget=budget, noise=False
    )
    row: dict[str, Any] = {"model": name, "threads": threads}
    for contender in CONTENDERS:
        measured = result[contender.label]
        row[f"{contender.label}_ms"] = measured.median_ms
        row[f"{contender.label}_error"] = measured.error or measured.relative_error
    for label, (low, high) in _RATIOS.items():
        if row[f"{low}_ms"] and row[f"{high}_ms"]:
            row[label] = row[f"{low}_ms"] / row[f"{high}_ms"]
    return row


_RATIOS = {
    "bf16_vs_fp32": ("bfloat16", "tvm_ext"),
    "openvino_bf16_vs_fp32": ("openvino_bfloat16", "openvino"),
    "bf16_vs_openvino_bf16": ("bfloat16", "openvino_bfloat16"),
}
"""By figure: whose latency over whose."""


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Figures of merit: geometric means over the models, and the largest error of bfloat16."""
    summary: dict[str, float] = {"bf16_models": sum("bf16_vs_fp32" in row for row in rows)}
    for label in _RATIOS:
        ratios = [row[label] for row in rows if label in row]
        if ratios:
            summary |= {label: geometric_mean(ratios), f"{label}_worst": max(ratios)}
    errors = [row["bfloat16_error"] for row in rows if isinstance(row["bfloat16_error"], float)]
    return summary | ({"bf16_error_worst": max(errors)} if errors else {})
