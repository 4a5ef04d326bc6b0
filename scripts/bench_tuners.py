"""Compare tuners on simulated landscapes of 26 convolutions, and measure the tuning loop on this machine.

Run: python scripts/bench_tuners.py [--replay | --loop] [--quick] [--seeds N] [--log PATH] [--json PATH]

Runs on landscapes are kept in the log, line by line; what it holds already is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np
import tvm
from tvm import relax

from tvm_ext.bench.record import write_result
from tvm_ext.target import native_target
from tvm_ext.tuners.measure.measurer import Measurer
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuners.replay.experiment import (
    Run,
    bootstrap_interval,
    fewer_measurements,
    geometric_mean,
    run,
)
from tvm_ext.tuners.replay.simulator import SimulatedLandscape
from tvm_ext.tuners.replay.tasks import LAYERS, TASKS, ConvolutionTask
from tvm_ext.tuning import TuningResult, tune

BUDGET = 1024
BASELINE = "autotvm_sa"
ARMS = ("sa_as", "chameleon", "ppo")
CONTROLS = ("sa_greedy_reduced", "sa_random_reduced", "sa_as_without_synthesis", "sa_as_step_1", "evolution", "random")


def replay(tasks: tuple[ConvolutionTask, ...], arms: tuple[str, ...], seeds: int, log: Path) -> list[Run]:
    """Run the baseline and the arms on tasks; the baseline to the end of the budget, the others to its speed."""
    known = {}
    if log.exists():
        for line in log.read_text().splitlines():
            row = Run.from_dump(json.loads(line))
            known[row.tuner, row.task, row.seed] = row
    runs = []
    for task in tasks:
        landscape, stop_at = SimulatedLandscape(task), np.inf
        for name in (BASELINE, *arms):
            for seed in range(seeds):
                row = known.get((name, task.name, seed))
                if row is None:
                    row = run(name, landscape, seed, BUDGET, stop_at)
                    with log.open("a") as file:
                        file.write(json.dumps(row.dump()) + "\n")
                    print(f"{task.name:12} {name:24} seed {seed:2} {len(row.curve):5} measured", flush=True)
                runs.append(row)
            if name == BASELINE:
                stop_at = 0.99 * float(np.median([row.best() for row in runs if row.task == task.name]))
    return runs


def compare(runs: list[Run]) -> list[dict[str, Any]]:
    """One row a tuner: measurements, queries, final speed and failures against simulated annealing, over the tasks."""
    rows = []
    for name in dict.fromkeys(row.tuner for row in runs):
        if name == BASELINE:
            continue
        ratios = fewer_measurements(runs, BASELINE, name, BUDGET)
        values = [ratio for ratio, _ in ratios.values()]
        low, high = bootstrap_interval(values)
        rows.append(
            {
                "tuner": name,
                "tasks": len(ratios),
                "fewer_measurements": round(geometric_mean(values), 3),
                "interval": [round(low, 3), round(high, 3)],
                "reached": round(float(np.mean([reached for _, reached in ratios.values()])), 3),
                "fewer_queries": round(_ratio(runs, name, "converged_queries_per_iteration"), 2),
                "speed_after_16_iterations": round(_speed(runs, name), 4),
                "measured_after_16_iterations": round(float(np.mean([_after_16(row) for row in _of(runs, name)])), 1),
                "invalid": round(_invalid(_of(runs, name)), 4),
                "by_task": {task: [round(ratio, 3), reached] for task, (ratio, reached) in ratios.items()},
            }
        )
    return rows


def _after_16(row: Run) -> int:
    return int(row.iteration_ends[min(15, len(row.iteration_ends) - 1)])


def _invalid(runs: list[Run]) -> float:
    return sum(row.invalid for row in runs) / sum(len(row.curve) for row in runs)


def _of(runs: list[Run], name: str, task: str | None = None) -> list[Run]:
    return [row for row in runs if row.tuner == name and task in (None, row.task)]


def _tasks(runs: list[Run], name: str) -> list[str]:
    return list(dict.fromkeys(row.task for row in _of(runs, name)))


def _ratio(runs: list[Run], name: str, figure: str) -> float:
    """Geometric mean over the tasks of the baseline's median over the tuner's, in the first 16 iterations or all."""

    def median(tuner: str, task: str) -> float:
        return float(np.median([getattr(row, figure) for row in _of(runs, tuner, task)]))

    return geometric_mean([median(BASELINE, task) / median(name, task) for task in _tasks(runs, name)])


def _speed(runs: list[Run], name: str) -> float:
    """Geometric mean over the tasks of the speed after 16 iterations against the baseline's."""

    def median(tuner: str, task: str) -> float:
        return float(np.median([row.best(16) for row in _of(runs, tuner, task)]))

    return geometric_mean([median(name, task) / median(BASELINE, task) for task in _tasks(runs, name)])


def convolution(inputs: int, outputs: int, size: int) -> tvm.IRModule:
    """Make the model of one 3x3 convolution of ResNet-18 with ReLU."""
    weights = np.random.default_rng(0).standard_normal((outputs, inputs, 3, 3)).astype("float32")
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((1, inputs, size, size), "float32"))
    with builder.function("main", [data]):
        with builder.dataflow():
            result = builder.emit(relax.op.nn.conv2d(data, relax.const(weights), padding=1))
            output = builder.emit_output(relax.op.nn.relu(result))
        builder.emit_func_output(output)
    return builder.finalize()


def loop(threads: int, trials: int, seeds: int) -> list[dict[str, Any]]:
    """Tune one convolution, workers started anew each time: seconds of the whole loop, and trials a second."""
    rows = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            with Measurer(threads=threads) as measurer:
                result: TuningResult = tune(
                    convolution(64, 64, 56), native_target(), folder, trials, recipe("evolution"), seed=seed,
                    measurer=measurer,
                )  # fmt: skip
            seconds = time.perf_counter() - start
        measuring = result.seconds["build"] + result.seconds["run"]
        rows.append(
            {
                "loop": "resnet18 64x56x56 3x3",
                "seed": seed,
                "threads": threads,
                "trials": result.trials,
                "seconds": round(seconds, 2),
                "build_seconds": round(result.seconds["build"], 2),
                "run_seconds": round(result.seconds["run"], 2),
                "trials_per_second": round(result.trials / measuring, 2),
                "best_us": round(result.curve[-1][2] * 1e6, 2),
                "noise": round(float(np.median(result.noise)), 4),
                "load_average": round(os.getloadavg()[0], 2),
            }
        )
        print(rows[-1], flush=True)
    return rows


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two layers, three seeds")
    parser.add_argument("--replay", action="store_true", help="landscapes only")
    parser.add_argument("--loop", action="store_true", help="the tuning loop on this machine only")
    parser.add_argument("--tasks", metavar="NAMES", help="tasks on landscapes, comma-separated; all 26 by default")
    parser.add_argument("--arms", metavar="NAMES", default=",".join(ARMS), help="tuners beside the baseline")
    parser.add_argument("--controls", action="store_true", help="run the controls, on the layers L1 to L8")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1, help="threads of the kernels in the loop")
    parser.add_argument("--log", type=Path, default=ROOT / "docs/results/tuners_runs.jsonl")
    parser.add_argument("--json", type=Path, default=ROOT / "docs/results/tuners.json")
    arguments = parser.parse_args()
    both = arguments.replay == arguments.loop
    seeds = 3 if arguments.quick else arguments.seeds
    rows, summary = [], {}
    if both or arguments.replay:
        rows, summary = compare_on_landscapes(arguments, seeds)
    if both or arguments.loop:
        measured = loop(arguments.threads, 64, seeds)
        rows += measured
        summary["loop_seconds_64"] = round(float(np.median([row["seconds"] for row in measured])), 2)
        summary["build_run_per_second"] = round(float(np.median([row["trials_per_second"] for row in measured])), 2)
        summary["loop_load_average"] = round(float(np.median([row["load_average"] for row in measured])), 2)
    print(summary)
    write_result(arguments.json, name="tuners", rows=rows, summary=summary)
    return 0


def compare_on_landscapes(arguments: argparse.Namespace, seeds: int) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Rows and summary of the runs on landscapes."""
    layers = LAYERS[1:7:5] if arguments.quick else LAYERS
    tasks = layers if arguments.quick else (*LAYERS, *set_difference(TASKS, LAYERS))
    if arguments.tasks:
        tasks = tuple(task for task in tasks if task.name in arguments.tasks.split(","))
    rows = compare(replay(tasks, tuple(arguments.arms.split(",")), seeds, arguments.log))
    if arguments.controls:
        rows += compare(replay(layers, CONTROLS, seeds, arguments.log))
    for row in rows:
        print({key: value for key, value in row.items() if key != "by_task"})
    summary: dict[str, float] = {"replay_tasks": len(tasks), "replay_seeds": seeds}
    figures = (
        ("fewer_measurements_sa_as", "sa_as", "fewer_measurements"),
        ("fewer_measurements_ppo_as", "chameleon", "fewer_measurements"),
        ("fewer_steps_ppo", "ppo", "fewer_queries"),
    )
    for key, tuner, figure in figures:
        found = next((row for row in rows if row["tuner"] == tuner), None)
        if found is not None:
            summary[key] = found[figure]
    return rows, summary


def set_difference(
    first: tuple[ConvolutionTask, ...], second: tuple[ConvolutionTask, ...]
) -> tuple[ConvolutionTask, ...]:
    """Those of the first that are not in the second, in order."""
    return tuple(task for task in first if task not in second)


if __name__ == "__main__":
    sys.exit(main())
