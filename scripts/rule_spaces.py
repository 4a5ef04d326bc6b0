"""Trials that tuners take in the schedule rules' own spaces, with and without the cost model that ships.

A part of ``bench_hardware_aware.py``. The kernels are ResNet-18's convolutions and products of transformers, none of
which the cost model was trained on. A configuration is timed once, in turns with the rule's own choice and by the
processor time of one thread, so that other work disturbs little; what is kept in the file is not measured anew.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tvm

from scripts.results import add_row, read_rows
from tvm_ext.tuners.pretrained.artefact import Pretrained
from tvm_ext.tuners.recipe import Recipe
from tvm_ext.tuners.recipes import RECIPES, PretrainedRecipe
from tvm_ext.tuners.replay.experiment import geometric_mean
from tvm_ext.tuners.space import ConfigSpace
from tvm_ext.tuners.tuner import Measurement

TRIALS, SEEDS, BATCH = 48, 3, 8
KEPT = Path(__file__).resolve().parents[1] / "docs/results/rule_spaces_tuned.jsonl"

PRODUCTS = ((128, 384, 384), (128, 384, 1536), (128, 1536, 384), (128, 312, 624), (49, 256, 768))
"""Rows, depth and columns."""


def held_out() -> dict[str, Callable[[], tvm.IRModule]]:
    """Name the kernels that are tuned."""
    from scripts.pretrain_loops import convolution, product
    from tvm_ext.tuners.replay.tasks import TASKS

    made: dict[str, Callable[[], tvm.IRModule]] = {}
    for task in TASKS:
        if task.network == "resnet18":
            shape = (task.inputs, task.outputs, task.size, task.kernel, task.stride, task.padding)
            made[task.name] = partial(convolution, *shape)
    return made | {"product_" + "_".join(map(str, shape)): partial(product, *shape) for shape in PRODUCTS}


def arms() -> dict[str, Recipe]:
    """Give the tuners: from nothing, with what the rule estimates, and with trees as well."""
    pretrained = RECIPES["evolution_pretrained"]
    assert isinstance(pretrained, PretrainedRecipe)
    return {
        "nothing": RECIPES["evolution_shared"],
        "cost": replace(pretrained, artefact=Pretrained({})),
        "trees": pretrained,
    }


def rule_spaces_part(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Trials to within 5 % of the best in the rules' own spaces, with and without the cost model that ships."""
    os.environ["TVM_NUM_THREADS"] = "1"  # before the first kernel runs
    from scripts.pretrain_rules import known_kernels

    keep = arguments.keep or KEPT
    makers = held_out()
    chosen = dict(list(makers.items())[1:14:12]) if arguments.quick else makers
    found = known_kernels(read_rows(keep), chosen, ["native"])
    runs = []
    for seed in range(1 if arguments.quick else SEEDS):
        for (name, _), kernel in found.items():
            for begins in (True, False):
                for arm, recipe in arms().items():
                    curve = _run(name, kernel, recipe, seed, begins, keep)
                    runs.append({"kernel": name, "arm": arm, "seed": seed, "begins": begins, "curve": curve})
            print(f"seed {seed}: {name}, {len(kernel.known)} measured", flush=True)
    rows = [_row(name, kernel, [run for run in runs if run["kernel"] == name]) for (name, _), kernel in found.items()]
    for row in rows:
        print(row)
    return rows, _summary(rows)


def _run(name: str, kernel: Any, recipe: Recipe, seed: int, begins: bool, keep: Path) -> list[float]:
    """Let a tuner search; gives the least time so far after each trial, as a multiple of the rule's own choice's."""
    space = kernel.task.space.space
    if not begins:
        space = ConfigSpace(space.knobs, None, space.cost, space.family, space.context, space.processor)
    tuner = replace(recipe, batch=BATCH, initial=BATCH).tuner(space, seed)
    own, curve = tuple(kernel.task.space.space.default or ()), []
    while len(curve) < TRIALS and (batch := tuner.suggest(TRIALS - len(curve))):
        ratios = []
        for vector in batch:
            if vector != own and vector not in kernel.known:
                kernel.measure(vector)
                row = {"kernel": name, "target": "native", "choices": kernel.choices(vector)}
                add_row(keep, row | {"ratio": kernel.known[vector]})
            ratios.append(1.0 if vector == own else kernel.known[vector])
        tuner.update([Measurement(vector, ratio) for vector, ratio in zip(batch, ratios, strict=True)])
        curve += [np.inf if ratio is None else ratio for ratio in ratios]
    return np.minimum.accumulate(curve).tolist()


def _row(name: str, kernel: Any, runs: list[dict[str, Any]]) -> dict[str, Any]:
    best = min([1.0, *(ratio for ratio in kernel.known.values() if ratio is not None)])
    row: dict[str, Any] = {
        "kernel": name,
        "configurations": kernel.task.space.space.size,
        "measured": len(kernel.known) + 1,
        "best": round(best, 4),
    }
    for arm in arms():
        for begins, label in ((True, arm), (False, f"{arm}_without_default")):
            curves = [run["curve"] for run in runs if (run["arm"], run["begins"]) == (arm, begins)]
            trials = [next((at + 1 for at, ratio in enumerate(c) if ratio <= 1.05 * best), TRIALS) for c in curves]
            row[f"trials_{label}"] = median(trials)
            row[f"final_{label}"] = round(best / median(curve[-1] for curve in curves), 4)
    return row


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    summary: dict[str, Any] = {"rule_spaces_kernels": len(rows), "rule_spaces_trials": TRIALS}
    summary["rule_spaces_rule_speed"] = round(float(np.mean([row["best"] for row in rows])), 3)
    for arm in arms():
        for label in (arm, f"{arm}_without_default"):
            trials = geometric_mean([row[f"trials_{label}"] for row in rows])
            summary[f"rule_spaces_to_5_percent_{label}"] = round(trials, 2)
            summary[f"rule_spaces_final_{label}"] = round(float(np.mean([row[f"final_{label}"] for row in rows])), 4)
    return summary
