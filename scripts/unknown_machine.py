"""Models compiled for a CPU of unknown name: what is lost where nothing is known but the instructions that it has.

A part of ``bench_models.py``. The same model is compiled for this machine and for a target that names its features
only, so that caches and speeds are those of the row of the instruction set; both run in turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

import tvm

from tests.zoo import ZOO
from tvm_ext.backends.cpu.here import INSTRUCTION_SETS
from tvm_ext.bench import compare
from tvm_ext.bench.contender import Contender
from tvm_ext.relax_utils import plain
from tvm_ext.target import resolve_target

MODELS = ("resnet18", "mobilenet_v2", "efficientnet_b0", "squeezenet", "ppocr_det", "tinybert", "minilm", "distilbert")
BASE = {"x86_64": "x86-64", "aarch64": "generic"}
"""By architecture: the CPU that every one of it is."""


def unknown_target(threads: int) -> dict[str, Any]:
    """Describe this machine's CPU by its instructions alone."""
    codegen = tvm.target.codegen
    base = BASE[codegen.llvm_get_system_triple().partition("-")[0]]
    plain_cpu = tvm.target.Target({"kind": "llvm", "mcpu": base})
    here, everywhere = (
        {str(name) for name in codegen.llvm_get_cpu_features(cpu)} for cpu in (resolve_target(None), plain_cpu)
    )
    more = sorted(name for name in here - everywhere if name.startswith(INSTRUCTION_SETS))
    return {"kind": "llvm", "mcpu": base, "mattr": [f"+{name}" for name in more], "num-cores": threads}


def measure(names: Sequence[str], threads: int, budget: float) -> list[dict[str, Any]]:
    """Measure models compiled both ways, and print a line for each.

    Parameters
    ----------
    names : sequence of str
        Models of the zoo.
    threads : int
        Threads of both.
    budget : float
        Seconds of timed runs for each.

    Returns
    -------
    list of dict
        Milliseconds of both by model, and their ratio.
    """
    target = plain(unknown_target(threads))
    contenders = [Contender("tvm_ext"), Contender("tvm_ext", "unknown", {"target": target})]
    rows = []
    for name in names:
        entry = ZOO[name]
        if reason := entry.missing():
            print(f"{name}: left out, {reason}")
            continue
        result = compare(
            entry.onnx_model(), contenders, inputs=entry.inputs(0), threads=threads, budget=budget, noise=False
        )
        ours, unknown = result["tvm_ext"], result["unknown"]
        row = {"model": name, "threads": threads, "tvm_ext_ms": ours.median_ms, "unknown_ms": unknown.median_ms}
        if ours.error or unknown.error:
            row["error"] = ours.error or unknown.error
        if ours.median_ms and unknown.median_ms:
            row["unknown_vs_known"] = unknown.median_ms / ours.median_ms
        rows.append(row)
        print(" ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return rows


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Figure of merit: the geometric mean over the models."""
    ratios = [row["unknown_vs_known"] for row in rows if "unknown_vs_known" in row]
    if not ratios:
        return {"unknown_machine_models": 0}
    return {
        "untuned_vs_unknown_machine": geometric_mean(ratios),
        "unknown_machine_worst": max(ratios),
        "unknown_machine_models": len(ratios),
    }
