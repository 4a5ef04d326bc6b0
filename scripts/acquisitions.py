"""Acquisition functions on kernels of CPUs: trials until one is within 5 % of the best, learning after each.

A part of ``bench_hardware_aware.py``. Candidates are the configurations of the schedule rules' own spaces that
``pretrain_rules.py`` has measured; the rule's own choice is known from the beginning. Two cost models: that of
``evolution_expected``, which begins with the rule's estimate, and trees on tiles, which learn from nothing and are told
three random configurations first. Nothing is measured here; seeds are fixed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from scripts.results import read_rows
from scripts.rule_spaces import CLOSE
from tvm_ext.tuners.acquisition import ACQUISITIONS
from tvm_ext.tuners.cost_model import CostModel, TileModel
from tvm_ext.tuners.pretrained.model import PretrainedModel
from tvm_ext.tuners.replay.experiment import bootstrap_interval, geometric_mean

LEAST = 20
"""Kernels with fewer measurements have too few candidates."""

SEEDS = 2
TOLD = 3
MODELS: dict[str, tuple[Callable[[], CostModel], int]] = {
    "expected": (lambda: PretrainedModel(costs=True), 0),
    "tiles": (TileModel, TOLD),
}
"""Cost models, and how many random configurations they are told first."""

MEAN = "mean"
"""The best predicted, without a look at the spread."""


def acquisitions_part(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Compare acquisition functions with the best predicted, on kernels in the CPU rules' own spaces."""
    from scripts.pretrain_rules import KEPT, known_kernels, measured_kernels

    makers = measured_kernels()
    if arguments.quick:
        makers = dict(list(makers.items())[::8])
    rows = []
    for (name, target), kernel in known_kernels(read_rows(arguments.keep or KEPT), makers).items():
        if len(kernel.known) < LEAST or kernel.task.space.space.cost is None:
            continue
        row: dict[str, Any] = {"kernel": name, "target": target, "measured": len(kernel.known)}
        for model, (make, told) in MODELS.items():
            for acquisition in (MEAN, *ACQUISITIONS):
                found = [trials(kernel, make(), acquisition, seed, told) for seed in range(SEEDS)]
                row[f"{model}_{acquisition}"] = round(float(np.mean(found)), 2)
        rows.append(row)
        print(row, flush=True)
    return rows, summarise(rows)


def trials(kernel: Any, model: CostModel, acquisition: str, seed: int, told: int) -> int:
    """Count what is measured, the rule's own choice not among it, until one is close to the best."""
    space, rng = kernel.task.space.space, np.random.default_rng(seed)
    vectors = np.array([space.default, *kernel.known])
    ratios = np.array([1.0, *(ratio or np.inf for ratio in kernel.known.values())])
    features, close = model.features(space, vectors), ratios <= CLOSE * ratios[1:].min()
    order = 1 + rng.permutation(len(kernel.known))
    known, left = [0], order.tolist()
    for count in range(1, len(order) + 1):
        if count > told:
            left = _ordered(model, features, ratios, known, left, acquisition, rng)
        chosen = left.pop(0)
        if close[chosen]:
            return count
        known.append(chosen)
    raise AssertionError("the best is close to the best")


def _ordered(
    model: CostModel,
    features: np.ndarray,
    ratios: np.ndarray,
    known: list[int],
    left: list[int],
    acquisition: str,
    rng: np.random.Generator,
) -> list[int]:
    """Order what is left by what is known."""
    scores = 1.0 / ratios[known]
    if acquisition == MEAN:
        model.fit(features[known], scores)
        order = np.argsort(-model.predict(features[left]), kind="stable")
    else:
        drawn = [member.predict(features[left]) for member in model.resampled(features[known], scores)]
        order = ACQUISITIONS[acquisition](np.array(drawn, np.float64), rng)
    return [left[at] for at in order.tolist()]


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Give geometric means of trials, and how many times fewer they are than those of the best predicted."""
    summary: dict[str, Any] = {"acquisition_kernels": len(rows), "acquisition_seeds": SEEDS}
    for model in MODELS:
        plain = f"{model}_{MEAN}"
        summary[f"acquisition_trials_{plain}"] = round(geometric_mean([row[plain] for row in rows]), 2)
        for acquisition in ACQUISITIONS:
            key = f"{model}_{acquisition}"
            ratios = [row[plain] / row[key] for row in rows]
            low, high = bootstrap_interval(ratios)
            summary |= {
                f"acquisition_trials_{key}": round(geometric_mean([row[key] for row in rows]), 2),
                f"acquisition_fewer_{key}": round(geometric_mean(ratios), 3),
                f"acquisition_fewer_{key}_low": round(low, 3),
                f"acquisition_fewer_{key}_high": round(high, 3),
            }
    return summary
