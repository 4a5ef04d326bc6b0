"""Compare tuners: on simulated landscapes of 26 convolutions, and on this machine, which should be quiet.

Run: python scripts/bench_tuners.py [--replay] [--loop] [--peak] [--stock] [--recipes] [--whole] [--models] [--quick]
[--json PATH]

All parts without a choice. Runs on landscapes are kept in the log, line by line, and not run again; with ``--keep`` so
is what the parts ``loop``, ``stock``, ``recipes`` and ``models`` measure, of one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np

from scripts import tuned_models, tuning_loops, tuning_recipes
from scripts.results import add_json_option, add_keep_option, kept_or, result_path, store
from tvm_ext.system.threads import physical_cores
from tvm_ext.tuners.recipes import RECIPES
from tvm_ext.tuners.replay.experiment import (
    Run,
    bootstrap_interval,
    experience,
    fewer_measurements,
    geometric_mean,
    oracle_run,
    run,
)
from tvm_ext.tuners.replay.simulator import SimulatedLandscape
from tvm_ext.tuners.replay.tasks import LAYERS, TASKS, ConvolutionTask
from tvm_ext.tuners.shared_model import Peers

Part = tuple[list[dict[str, Any]], dict[str, float]]
BUDGET = 1024
BASELINE = "autotvm_sa"
ARMS = ("sa_as", "chameleon", "ppo", "sa_as_tiles", "chameleon_tiles", "sa_as_shared", "chameleon_shared")
FIGURES = (
    ("fewer_measurements_sa_as", "sa_as_tiles", "fewer_measurements"),
    ("fewer_measurements_ppo_as", "chameleon_tiles", "fewer_measurements"),
    ("fewer_measurements_sa_as_same_model", "sa_as", "fewer_measurements"),
    ("fewer_measurements_ppo_as_same_model", "chameleon", "fewer_measurements"),
    ("fewer_measurements_sa_as_shared", "sa_as_shared", "fewer_measurements"),
    ("fewer_measurements_ppo_as_shared", "chameleon_shared", "fewer_measurements"),
    ("fewer_measurements_oracle", "oracle", "fewer_measurements"),
    ("fewer_steps_ppo", "ppo", "fewer_queries"),
)
"""Key, tuner and column; with ``_chosen_on`` behind the key, of the landscapes that the recipes were chosen on."""
CONTROLS = (
    "autotvm_sa_tiles",
    "sa_as_tiles_unrefined",
    "sa_as_refined",
    "sa_as_published",
    "sa_greedy_reduced",
    "sa_random_reduced",
    "sa_as_without_synthesis",
    "sa_as_step_1",
    "sa_as_threshold_1.5",
    "sa_as_threshold_5",
    "evolution",
    "random",
)


def replay(
    tasks: tuple[ConvolutionTask, ...], arms: tuple[str, ...], seeds: int, log: Path, recorded: bool = False
) -> list[Run]:
    """Run the baseline and the arms on tasks; the baseline to the end of the budget, the others to its speed.

    With ``recorded``, what is not in the log is left out.
    """
    known = {}
    if log.exists():
        for line in log.read_text().splitlines():
            row = Run.from_dump(json.loads(line))
            known[row.tuner, row.task, row.seed] = row
    runs = []
    peers: dict[str, Peers] = {}
    for task in tasks:
        landscape, stop_at = SimulatedLandscape(task), np.inf
        for name in (BASELINE, *arms):
            for seed in range(seeds):
                row = known.get((name, task.name, seed))
                if row is None:
                    if recorded:
                        continue
                    shared = _others(task, peers) if RECIPES[name].shares else None
                    row = run(name, landscape, seed, BUDGET, stop_at, peers=shared)
                    with log.open("a") as file:
                        file.write(json.dumps(row.dump()) + "\n")
                    print(f"{task.name:12} {name:24} seed {seed:2} {len(row.curve):5} measured", flush=True)
                runs.append(row)
            if name == BASELINE:
                stop_at = 0.99 * float(np.median([row.best() for row in runs if row.task == task.name]))
    return runs


def _others(task: ConvolutionTask, known: dict[str, Peers]) -> Peers:
    """Measurements of the layers of the other networks, made once for each network."""
    network = task.network
    if network not in known:
        known[network] = experience([SimulatedLandscape(other) for other in TASKS if other.network != network])
    return known[network]


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
                "seeds": min(len(_of(runs, name, task)) for task in ratios),
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


def replay_part(arguments: argparse.Namespace) -> Part:
    """Compare tuners on simulated landscapes.

    The recipes were chosen on the layers L1 to L8; what counts are the other landscapes.
    """
    seeds, arms = arguments.seeds, tuple(arguments.arms.split(","))
    chosen_on = LAYERS[1:7:5] if arguments.quick else LAYERS
    others = () if arguments.quick else set_difference(TASKS, LAYERS)
    if arguments.tasks:
        wanted = arguments.tasks.split(",")
        chosen_on, others = (tuple(task for task in tasks if task.name in wanted) for tasks in (chosen_on, others))
    rows: list[dict[str, Any]] = []
    summary: dict[str, float] = {"replay_tasks": len(others)}
    for label, tasks in (("other", others), ("chosen on", chosen_on)):
        if not tasks:
            continue
        runs = replay(tasks, arms, seeds, arguments.log, arguments.recorded)
        oracle = [oracle_run(SimulatedLandscape(task), BUDGET) for task in tasks]
        bound = fewer_measurements([*runs, *oracle], BASELINE, "oracle", BUDGET)
        found = compare(runs)
        found.append(
            {
                "tuner": "oracle",
                "tasks": len(bound),
                "fewer_measurements": round(geometric_mean([ratio for ratio, _ in bound.values()]), 3),
                "by_task": {task: [round(ratio, 3), reached] for task, (ratio, reached) in bound.items()},
            }
        )
        if label == "other":
            summary["replay_seeds"] = min((row["seeds"] for row in found if row["tuner"] in arms), default=0)
        for key, tuner, figure in FIGURES:
            values = [row[figure] for row in found if row["tuner"] == tuner]
            if values:
                summary[key if label == "other" else f"{key}_chosen_on"] = values[0]
        rows += [{"landscapes": label, **row} for row in found]
    if arguments.controls:
        controls = compare(replay(chosen_on, CONTROLS, seeds, arguments.log, arguments.recorded))
        rows += [{"landscapes": "chosen on", **row} for row in controls]
    for row in rows:
        print({key: value for key, value in row.items() if key != "by_task"})
    return rows, summary


def set_difference(
    first: tuple[ConvolutionTask, ...], second: tuple[ConvolutionTask, ...]
) -> tuple[ConvolutionTask, ...]:
    """Those of the first that are not in the second, in order."""
    return tuple(task for task in first if task not in second)


def loop_part(arguments: argparse.Namespace) -> Part:
    """Time the whole loop of tuning one convolution, and once TVM's own."""
    trials = arguments.trials or 64

    def stock_loop() -> dict[str, Any]:
        return tuning_loops.stock_loop(trials)

    rows = tuning_loops.loop(trials, arguments.seeds, arguments.keep)
    stock = kept_or(arguments.keep, {"stock_loop": tuning_loops.LOOP.name, "trials": trials}, stock_loop)
    summary = {
        "stock_loop_seconds_64": stock["seconds"],
        "loop_latency_vs_stock": round(stock["our_winner_us"] / stock["winner_us"], 4),
        "loop_seconds_64": _median(rows, "seconds", 2),
        "build_run_per_second": _median(rows, "trials_per_second", 2),
        "loop_load_average": _median(rows, "load_average", 2),
    }
    return [*rows, stock], summary


def peak_part(arguments: argparse.Namespace) -> Part:
    """Tune three direct convolutions on one thread: share of the multiply-add peak."""
    rows = tuning_loops.peak_shares(arguments.trials or 64, arguments.seeds)
    by_task: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_task.setdefault(row["peak_share_of"], []).append(row)
    shares = {name: _median(found, "share", 4) for name, found in by_task.items()}
    return rows, {
        "peak_share_64": min(shares.values()),
        "peak_share_64_mean": round(geometric_mean(list(shares.values())), 4),
    }


def stock_part(arguments: argparse.Namespace) -> Part:
    """Time to what TVM's own search finds, for the twelve convolutions of ResNet-18."""
    tasks = tuning_loops.RESNET18[1:2] if arguments.quick else tuning_loops.RESNET18
    rows = tuning_loops.same_best(arguments.trials or 64, tasks, arguments.keep)
    return rows, tuning_loops.summarise_same_best(rows)


def recipes_part(arguments: argparse.Namespace) -> Part:
    """Tune convolutions with tuners of several kinds, on one thread by its processor time; winners in turns."""
    layers = tuning_recipes.LAYERS[1:2] if arguments.quick else tuning_recipes.LAYERS
    seeds = 1 if arguments.quick else min(arguments.seeds, 5)
    rows = tuning_recipes.compare_recipes(arguments.trials or 64, seeds, layers, arguments.keep)
    return rows, tuning_recipes.summarise_recipes(rows)


def whole_part(arguments: argparse.Namespace) -> Part:
    """Tune ResNet-18 with TVM's own search and with ours: latencies of the whole model."""
    rows = tuning_loops.whole_model(arguments.trials or 256)
    row = rows[0]
    return rows, {
        "whole_model_vs_stock": round(row["our_ms"] / row["stock_ms"], 4),
        "whole_model_seconds_vs_stock": round(row["our_seconds"] / row["stock_seconds"], 4),
    }


def models_part(arguments: argparse.Namespace) -> Part:
    """Tune models of the zoo and compare them with onnxruntime and OpenVINO."""
    names = arguments.only or (["squeezenet", "ppocr_cls"] if arguments.quick else tuned_models.names())
    rows = tuned_models.tuned(names, arguments.trials or 128, budget=3.0, keep=arguments.keep)
    return rows, tuned_models.summarise(rows)


def _median(rows: list[dict[str, Any]], key: str, digits: int) -> float:
    return round(float(np.median([row[key] for row in rows])), digits)


PARTS: dict[str, Callable[[argparse.Namespace], Part]] = {
    "replay": replay_part,
    "loop": loop_part,
    "peak": peak_part,
    "stock": stock_part,
    "recipes": recipes_part,
    "whole": whole_part,
    "models": models_part,
}


def main() -> int:
    """Run the parts asked for; each has its own section in the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, part in PARTS.items():
        parser.add_argument(f"--{name}", action="store_true", help=(part.__doc__ or "").replace("%", "%%"))
    parser.add_argument("--quick", action="store_true", help="few layers, models, trials and seeds")
    parser.add_argument("--tasks", metavar="NAMES", help="tasks on landscapes, comma-separated; all 26 by default")
    parser.add_argument("--arms", metavar="NAMES", default=",".join(ARMS), help="tuners beside the baseline")
    parser.add_argument("--controls", action="store_true", help="run the controls, on the layers L1 to L8")
    parser.add_argument("--recorded", action="store_true", help="compare tuners by what the log holds; run nothing")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="models to tune; all by default")
    parser.add_argument("--trials", type=int, help="measurements of a search on this machine")
    parser.add_argument("--log", type=Path, default=ROOT / "docs/results/tuners_runs.jsonl")
    add_keep_option(parser)
    add_json_option(parser, "tuners")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.seeds = min(arguments.seeds, 3)
    os.environ.setdefault("TVM_NUM_THREADS", str(physical_cores()))  # TVM's own search runs with as many as ours
    wanted = [name for name in PARTS if getattr(arguments, name)] or list(PARTS)
    chosen = arguments.quick or arguments.only or arguments.tasks or arguments.arms != ",".join(ARMS)
    path = result_path("tuners", arguments.json, is_whole=not chosen)
    for name in wanted:
        rows, summary = PARTS[name](arguments)
        print(summary)
        store(path, "tuners", [{"part": name, **row} for row in rows], summary, name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
