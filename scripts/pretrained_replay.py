"""Tuners whose cost model was trained on two networks' landscapes, at work on those of the third.

The rule's own cost of a register tile is the first to be heard; trees trained on measurements of the other networks say
what it leaves out. What is measured of a network that is compared was not seen in training.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import mannwhitneyu

from tvm_ext.tuners.measurement import Measurement
from tvm_ext.tuners.pretrained.artefact import Pretrained
from tvm_ext.tuners.pretrained.model import PretrainedModel
from tvm_ext.tuners.recipes import RECIPES, PretrainedRecipe
from tvm_ext.tuners.replay.experiment import Run, bootstrap_interval, fewer_measurements, geometric_mean, run
from tvm_ext.tuners.replay.rule_cost import costed_space
from tvm_ext.tuners.replay.simulator import SimulatedLandscape
from tvm_ext.tuners.replay.tasks import LAYERS, TASKS, ConvolutionTask
from tvm_ext.tuners.shared_model import Examples, structure

BUDGET = 1024
SEEN = 1024
"""So many random configurations of each landscape are trained on, and as many of a search by annealing."""

SEED = 1000
"""Of the measurements that are trained on; those of the comparison have other seeds, and other noise."""

TO_THE_END = 3
"""Runs of so many seeds go on until they are as good as annealing at its end."""

SURE = 0.05
"""Ends that would be as low by chance more seldom than this are surely behind (Mann and Whitney's test, one-sided)."""

ROUNDS, ETA = 80, 0.2
BASELINES = {"sa": "autotvm_sa", "ppo": "ppo"}
ARMS = {"sa": "sa_as_pretrained", "ppo": "chameleon_pretrained"}


def landscape_of(task: ConvolutionTask) -> SimulatedLandscape:
    """Make a landscape whose space tells the rule's cost."""
    landscape = SimulatedLandscape(task)
    landscape.space = costed_space(task)
    return landscape


def examples(task: ConvolutionTask) -> Examples:
    """Measure a landscape at random and by annealing; gives what a pretrained model sees, and scores."""
    landscape = landscape_of(task)
    space, model = landscape.space, PretrainedModel(costs=True)
    vectors = space.random(np.random.default_rng(SEED), SEEN)
    tuner = RECIPES["autotvm_sa_tiles"].tuner(space, SEED)
    while len(tuner.measurements) < SEEN:
        batch = tuner.suggest(SEEN - len(tuner.measurements))
        seconds = landscape.measure(np.array(batch), SEED)
        tuner.update(
            [Measurement(row, float(t) if np.isfinite(t) else None) for row, t in zip(batch, seconds, strict=True)]
        )
    vectors = np.concatenate([vectors, np.array([row.vector for row in tuner.measurements])])
    return model.features(space, vectors), 1.0 / landscape.measure(vectors, SEED)


@lru_cache(maxsize=1)
def all_examples(folder: Path) -> dict[str, Examples]:
    """Measure all landscapes, or read them from the folder where that was done."""
    path = folder / "pretrained_examples.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        tables = {}
        for task in TASKS:
            tables[f"{task.name}/features"], tables[f"{task.name}/scores"] = examples(task)
            print(f"{task.name}: measured for training", flush=True)
        np.savez_compressed(path, **tables)
    with np.load(path) as file:
        return {task.name: (file[f"{task.name}/features"], file[f"{task.name}/scores"]) for task in TASKS}


def trained_without(network: str, folder: Path) -> Pretrained:
    """Train on the landscapes of the other networks."""
    path = folder / f"pretrained_without_{network}.npz"
    if not path.exists():
        model = PretrainedModel(costs=True, prior_rounds=ROUNDS, prior_eta=ETA)
        known = all_examples(folder)
        trees = model.train([known[task.name] for task in TASKS if task.network != network])
        Pretrained({structure(costed_space(TASKS[0])): trees}, {"without": network}).save(path)
    return Pretrained.load(path)


def replay(
    tasks: Sequence[ConvolutionTask], seeds: int, log: Path, baselines: Path, folder: Path, recorded: bool = False
) -> tuple[list[Run], int]:
    """Run what the log lacks; gives all runs, those of baselines too, and how many seeds all tasks have.

    The first seeds go on until annealing's final speed is reached, the others until 99 % of it. With ``recorded``, what
    is not in the log is left out.
    """
    names = {task.name for task in tasks}
    kept = [Run.from_dump(json.loads(line)) for path in (baselines, log) if path.exists() for line in _lines(path)]
    runs = [row for row in kept if row.tuner in BASELINES.values() and row.task in names]
    known = {(row.tuner, row.task, row.seed): row for row in kept if row.tuner in ARMS.values()}
    for seed, task, arm in itertools.product(range(seeds), tasks, ARMS.values()):
        row = known.get((arm, task.name, seed))
        if row is None and not recorded:
            recipe = RECIPES[arm]
            assert isinstance(recipe, PretrainedRecipe)
            recipe = replace(recipe, artefact=trained_without(task.network, folder))
            final = float(np.median([row.best() for row in _of(runs, BASELINES["sa"]) if row.task == task.name]))
            stop_at = final if seed < TO_THE_END else 0.99 * final
            row = run(arm, landscape_of(task), seed, BUDGET, stop_at, least_iterations=0, recipe=recipe)
            with log.open("a") as file:
                file.write(json.dumps(row.dump()) + "\n")
            print(f"{task.name:12} {arm:22} seed {seed:2} {len(row.curve):5} measured", flush=True)
        if row is not None:
            runs.append(row)
    counts = [
        sum(row.tuner == arm and row.task == task.name for row in runs) for arm in ARMS.values() for task in tasks
    ]
    complete = min(counts)
    return [row for row in runs if row.tuner in BASELINES.values() or row.seed < complete], complete


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def summarise(runs: Sequence[Run]) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Compare each arm with annealing and with the agent, over the tasks of the runs."""
    rows, summary = [], {}
    for name, arm in ARMS.items():
        row: dict[str, Any] = {"tuner": arm}
        for baseline, other in BASELINES.items():
            ratios = fewer_measurements([*_of(runs, other), *_of(runs, arm)], other, arm, BUDGET)
            values = [ratio for ratio, _ in ratios.values()]
            row[f"than_{baseline}"] = round(geometric_mean(values), 3)
            row[f"than_{baseline}_interval"] = [round(value, 3) for value in bootstrap_interval(values)]
            row[f"than_{baseline}_by_task"] = {task: round(ratio, 3) for task, (ratio, _) in ratios.items()}
        ends, chances = {}, {}
        for task in ratios:
            whole = [r.best() for r in _of(runs, arm) if r.task == task and r.seed < TO_THE_END]
            annealing = [r.best() for r in _of(runs, BASELINES["sa"]) if r.task == task]
            ends[task] = round(float(np.median(whole) / np.median(annealing)), 5)
            # Chance of ends as low as these or lower if annealing's and these were drawn from one urn.
            chances[task] = round(float(mannwhitneyu(whole, annealing, alternative="less").pvalue), 4)
        row |= {"ends": ends, "ends_worst": min(ends.values()), "behind": sum(end < 1 for end in ends.values())}
        row |= {"chances": chances, "surely_behind": sum(chance < SURE for chance in chances.values())}
        row["seconds_of_the_tuner"] = round(float(np.median([r.seconds for r in _of(runs, arm)])), 2)
        rows.append(row)
        # Against the stronger of the two for the agent: annealing, whatever the agent alone needs, is beside it.
        summary[f"pretrained_fewer_measurements_{name}"] = row["than_sa"]
        summary[f"pretrained_{name}_than_ppo"] = row["than_ppo"]
        summary[f"pretrained_{name}_behind"] = row["behind"]
        summary[f"pretrained_{name}_surely_behind"] = row["surely_behind"]
        summary[f"pretrained_{name}_ends_worst"] = row["ends_worst"]
    return rows, summary


def _of(runs: Sequence[Run], tuner: str) -> list[Run]:
    return [row for row in runs if row.tuner == tuner]


def pretrained_part(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Measurements to annealing's best with a cost model trained on two of three networks, on the third."""
    others = [task for task in TASKS if task not in LAYERS]
    groups = {"chosen on": LAYERS[1:7:5]} if arguments.quick else {"other": others, "chosen on": LAYERS}
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    runs: list[Run] = []
    seeds = min(arguments.seeds, 10)
    for label, tasks in groups.items():
        found, complete = replay(
            tasks, seeds, arguments.pretrained_log, arguments.baselines, arguments.folds, arguments.recorded
        )
        if not complete:
            print(f"{label}: not all tasks have a run")
            continue
        runs += found
        summary["pretrained_seeds" if label == "other" else "pretrained_seeds_chosen_on"] = complete
        more, figures = summarise(found)
        rows += [{"landscapes": label, **row} for row in more]
        ending = "" if label == "other" else "_chosen_on"
        summary |= {f"{key}{ending}": value for key, value in figures.items()}
    if len(groups) == 2 and "pretrained_seeds" in summary and "pretrained_seeds_chosen_on" in summary:
        more, figures = summarise(runs)
        rows += [{"landscapes": "all", **row} for row in more]
        summary |= {f"{key}_all": value for key, value in figures.items()}
    summary["pretrained_landscapes"] = len({row.task for row in runs})
    for row in rows:
        print({key: value for key, value in row.items() if "by_task" not in key and key not in ("ends", "chances")})
    return rows, summary
