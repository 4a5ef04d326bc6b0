"""Models beside a program that keeps one core busy: threads that give way, threads bound to their cores, onnxruntime.

Run on a quiet machine of two cores or more: python scripts/bench_busy_core.py [--json PATH].
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import onnxruntime

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from scripts.results import add_json_option, result_path, store
from tests.zoo import need
from tvm_ext import compile as compile_model
from tvm_ext.system import threads

MODELS = ("mobilenet_v2", "squeezenet", "resnet18", "minilm")
RUNS, TURNS = 15, 3
BUSY = "import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"


def timed(run: Callable[[], Any]) -> float:
    """Give the median of the seconds of some runs, the first ones left out, in which threads find their places."""
    for _ in range(RUNS):
        run()
    taken = []
    for _ in range(RUNS):
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return median(taken)


def measure(name: str) -> dict[str, Any]:
    """Time one model alone and beside the program, the ways in turns."""
    entry = need(name)
    path, given = entry.onnx_path(), entry.inputs()
    model = compile_model(path, input_shapes=entry.input_shapes())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads.physical_cores()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    model.run(given)
    pool = threads._pool.bound
    assert pool is not None, "the threads are not bound: TVM_NUM_THREADS is not the number of cores"

    def ours() -> Any:
        return model.run(given)

    def bound() -> Any:
        pool._next_sample = float("inf")
        return model.run(given)

    def of_peer() -> Any:
        return session.run(None, given)

    def in_turns() -> dict[str, float]:
        found: dict[str, list[float]] = {"released": [], "bound": [], "onnxruntime": []}
        for _ in range(TURNS):
            pool._bind(time.monotonic())
            found["bound"].append(timed(bound))
            pool._bind(time.monotonic())
            found["released"].append(timed(ours))
            found["onnxruntime"].append(timed(of_peer))
        return {way: 1e3 * median(seconds) for way, seconds in found.items()}

    idle = in_turns()
    program = subprocess.Popen([sys.executable, "-c", BUSY.format(core=threads._one_of_each_core()[-1])])
    try:
        busy = in_turns()
    finally:
        program.kill()
        program.wait()
    row = {"model": name, "threads": threads.threads()}
    row |= {f"idle_{way}_ms": value for way, value in idle.items()}
    return row | {f"busy_{way}_ms": value for way, value in busy.items()}


def main() -> None:
    """Measure, print a line for each model, write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_json_option(parser, "busy_core")
    arguments = parser.parse_args()
    path = result_path("busy_core", arguments.json, is_whole=True)
    rows = []
    for name in MODELS:
        rows.append(measure(name))
        print(*(f"{key} {value:.1f}" if isinstance(value, float) else value for key, value in rows[-1].items()))

    def ratio(over: str, under: str) -> float:
        return geometric_mean(row[over] / row[under] for row in rows)

    summary = {
        "busy_vs_bound": ratio("busy_released_ms", "busy_bound_ms"),
        "busy_vs_onnxruntime": ratio("busy_released_ms", "busy_onnxruntime_ms"),
        "idle_vs_bound": ratio("idle_released_ms", "idle_bound_ms"),
        "busy_mobilenet_v2_ms": rows[0]["busy_released_ms"],
        "busy_mobilenet_v2_bound_ms": rows[0]["busy_bound_ms"],
    }
    for key, value in summary.items():
        print(f"{key:28} {value:.4g}")
    store(path, "busy_core", rows, summary)


if __name__ == "__main__":
    main()
