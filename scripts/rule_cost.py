"""How well a schedule rule's estimate orders the configurations of real kernels, before any is measured.

A part of ``bench_hardware_aware.py``: random configurations of convolutions that the rule takes are compiled and timed
on one thread, by its processor time, so that other work disturbs little. Told are the rank correlation of estimate and
time, and how fast the one that the estimate likes best is, beside the fastest and the middle one.
"""

from __future__ import annotations

import argparse
import os
import time
from statistics import median
from typing import Any

import numpy as np

from scripts.results import add_row, read_rows

CONFIGURATIONS = 32
RUNS, SECONDS = 7, 0.03
LAYERS = ("resnet18-2", "resnet18-4", "resnet18-6", "vgg16-6")


def rule_cost_part(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Compare the estimates of the rule for convolutions with times, on one thread."""
    os.environ["TVM_NUM_THREADS"] = "1"  # before the first kernel runs
    rows = {row["layer"]: row for row in read_rows(arguments.keep) if "layer" in row}
    for name in LAYERS[:1] if arguments.quick else LAYERS:
        if name not in rows:
            rows[name] = _layer(name, 8 if arguments.quick else CONFIGURATIONS)
            add_row(arguments.keep, rows[name])
        print(rows[name], flush=True)
    found = list(rows.values())
    return found, {
        "rule_cost_layers": len(found),
        "rule_cost_rank_correlation": round(median(row["rank_correlation"] for row in found), 3),
        "rule_cost_rank_correlation_least": min(row["rank_correlation"] for row in found),
        "rule_cost_first": round(float(np.mean([row["first"] for row in found])), 3),
        "rule_cost_middle": round(float(np.mean([row["middle"] for row in found])), 3),
        "rule_cost_default": round(float(np.mean([row["default"] for row in found])), 3),
    }


def _layer(name: str, count: int) -> dict[str, Any]:
    from scipy.stats import spearmanr

    from scripts.tuning_loops import convolution
    from tvm_ext.backends.cpu.target import native_target
    from tvm_ext.options import PipelineOptions
    from tvm_ext.tuners.replay.tasks import TASKS
    from tvm_ext.tuning.tasks import kernels_to_tune

    layer = next(task for task in TASKS if task.name == name)
    target = native_target()
    tasks = kernels_to_tune(convolution(layer), target, options=PipelineOptions(winograd=False))
    space = max(tasks, key=lambda task: task.space.space.size).space
    if space.space.cost is None or space.space.default is None:
        raise SystemExit(f"{name}: the rule that takes this convolution estimates nothing")
    rng = np.random.default_rng(0)
    drawn = space.space.random(rng, 64 * count)
    drawn = np.concatenate([[space.space.default], drawn[np.isfinite(space.space.cost(drawn))]])[: count + 1]
    times = np.array([_seconds(space, vector, target) for vector in drawn])
    costs, best = space.space.cost(drawn), float(np.nanmin(times))
    others, works = times[1:], np.isfinite(times[1:])
    return {
        "layer": name,
        "configurations": len(drawn),
        "failed": int((~np.isfinite(times)).sum()),
        "rank_correlation": round(float(spearmanr(costs[1:][works], others[works]).statistic), 3),
        "first": round(best / float(others[works][np.argmin(costs[1:][works])]), 3),
        "middle": round(best / float(np.median(others[works])), 3),
        "default": round(best / float(times[0]), 3),
        "best_us": round(best * 1e6, 1),
    }


def _seconds(space: Any, vector: np.ndarray, target: Any) -> float:
    """Time a configuration: least of some means, in processor time of this thread; NaN where there is no kernel."""
    import tvm

    from tvm_ext.tuners.measure.code import build
    from tvm_ext.tuners.measure.measurer import arguments_of

    schedule = space.schedule(tuple(vector.tolist()))
    if schedule is None:
        return float("nan")
    run = build(schedule.mod, target)["main"]
    rng = np.random.default_rng(0)
    shapes = arguments_of(schedule.mod)
    tensors = [tvm.runtime.tensor(rng.standard_normal(shape).astype(dtype)) for shape, dtype in shapes]
    found = []
    for _ in range(RUNS):
        count, start = 0, time.thread_time()
        while time.thread_time() - start < SECONDS or not count:
            run(*tensors)
            count += 1
        found.append((time.thread_time() - start) / count)
    return min(found)
