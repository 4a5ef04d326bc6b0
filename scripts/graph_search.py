"""Whole networks searched: latency with the choices that were found over that of the default.

A part of ``bench_hardware_aware.py``. What was found is confirmed by compilations of its own, which the search did not
time: the best of several noisy times is less than what it is a time of.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np

from scripts.results import add_row, read_rows
from scripts.tuning_loops import apart
from tvm_ext.errors import TvmExtError, first_line

NETWORKS = (
    "squeezenet",
    "resnet18",
    "minilm",
    "shufflenet",
    "mobilenet_v2",
    "tinybert",
    "alexnet",
    "densenet121",
    "inception_v1",
    "efficientnet_b0",
    "zfnet",
    "randwire_ws",
    "vgg16",
    "unet",
)
ROUNDS, SECONDS, FEWEST = 2, 4.0, 10


def graph_part(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Search over choices of whole networks, on one thread, by its processor time; what was tried is kept.

    Each network has a process of its own. One that fails is left out, and said; a run that was stopped goes on.
    """
    rows = {row["network"]: row for row in read_rows(arguments.keep)}
    names = arguments.networks or (NETWORKS[:1] if arguments.quick else NETWORKS)
    for name in (name for name in names if name not in rows):
        variants = 2 if arguments.quick else arguments.variants
        try:
            rows[name] = apart(_search, name, variants, arguments.folds / "networks")
        except (TvmExtError, RuntimeError, ValueError, OSError) as error:  # a process that died, too
            print(f"{name}: left out: {first_line(error)}", flush=True)
            continue
        add_row(arguments.keep, rows[name])
        print({key: value for key, value in rows[name].items() if key != "chosen"}, flush=True)
    found = [rows[name] for name in names if name in rows]
    ratios = [row["ratio"] for row in found]
    return found, {
        "graph_search_gain": round(geometric_mean(ratios), 4),
        "graph_search_best": min(ratios),
        "graph_search_worst": max(ratios),
        "graph_search_networks": len(found),
        "graph_search_changed": sum(bool(row["chosen"]) for row in found),
    }


def _search(name: str, variants: int, folder: Path) -> dict[str, Any]:
    os.environ["TVM_NUM_THREADS"] = "1"  # before the first kernel runs: processor time is that of this thread
    import tvm_ext
    from tests.zoo import get
    from tvm_ext.backends.cpu.target import native_target
    from tvm_ext.tuning.whole_network import tune_network

    entry, start = get(name), time.perf_counter()
    imported = tvm_ext.import_model(entry.onnx_model(), input_shapes=entry.input_shapes())
    inputs = entry.inputs(0)
    found = tune_network(
        imported, native_target(), folder / name, variants, inputs=inputs, clock=time.thread_time, seconds=1.0
    )
    return {
        "network": name,
        "ratio": round(_paired(imported, folder / name, inputs), 4) if found.chosen else 1.0,
        "ratio_in_search": round(found.ratio, 4),
        "offers": len(found.offers),
        "options": sum(len(offer.options) - 1 for offer in found.offers),
        "variants": len(found.trials),
        "left_out": [[dict(row.chosen), row.reason] for row in found.trials if row.ratio is None],
        "finals": [[len(row.chosen), row.ratio and round(row.ratio, 4)] for row in found.finals],
        "chosen": dict(found.chosen),
        "minutes": round((time.perf_counter() - start) / 60, 1),
    }


def _paired(imported: Any, folder: Path, inputs: Mapping[str, np.ndarray]) -> float:
    """Time networks with and without the choices, compiled anew, run by run in turns; median of the compilations."""
    import tvm

    import tvm_ext

    ratios = []
    for number in range(ROUNDS):
        machines: dict[str, Any] = {}
        for kind in ("chosen", "default") if number % 2 else ("default", "chosen"):
            compiled = tvm_ext.compile(imported, **({"work_dir": folder} if kind == "chosen" else {}))
            machines[kind] = compiled.virtual_machine["main"]
            tensors = [tvm.runtime.tensor(inputs[spec.name]) for spec in compiled.inputs]
        found, end = [], time.perf_counter() + SECONDS
        while time.perf_counter() < end or len(found) < FEWEST:
            seconds = {}
            for kind, run in machines.items():
                start = time.thread_time()
                run(*tensors)
                seconds[kind] = time.thread_time() - start
            found.append(seconds["chosen"] / seconds["default"])
        ratios.append(median(found[2:]))
    return float(median(ratios))
