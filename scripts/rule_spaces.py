"""How cost models order configurations of the schedule rules' own spaces, of kernels that they have not seen.

A part of ``bench_hardware_aware.py``. Trees are trained on four fifths of the kernels that ``pretrain_rules.py`` has
measured, and order what was measured of the others: counted are trials until one is within 5 % of the best, in the
order of the trees, in that of the rule's own estimate, and at random. Nothing is measured here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

from scripts.results import read_rows
from tvm_ext.errors import TuningError
from tvm_ext.tuners.pretrained.artefact import Pretrained
from tvm_ext.tuners.pretrained.model import PretrainedModel
from tvm_ext.tuners.replay.experiment import bootstrap_interval, geometric_mean
from tvm_ext.tuning.pretraining import train_groups

FOLDS, CLOSE, LEAST = 5, 1.05, 8
"""Kernels with fewer measurements are trained on, and not compared."""


def rule_spaces_part(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Trials to within 5 % of the best in the rules' own spaces, by the rules' estimates and by trees."""
    from scripts.pretrain_rules import KEPT, known_kernels, measured_kernels

    makers = measured_kernels()
    if arguments.quick:
        makers = dict(list(makers.items())[::4])
    kernels = known_kernels(read_rows(arguments.keep or KEPT), makers)
    rows = list(_compared({key: kernel for key, kernel in kernels.items() if kernel.known}))
    for row in rows:
        print(row)
    return rows, summarise(rows)


def _compared(kernels: dict[tuple[str, str], Any]) -> Iterator[dict[str, Any]]:
    from scripts.pretrain_rules import groups_of

    names = sorted({name for name, _ in kernels})
    for fold in range(FOLDS):
        out = set(names[fold::FOLDS])
        trained, _ = train_groups(groups_of(kernel for (name, _), kernel in kernels.items() if name not in out))
        artefact = Pretrained(trained)
        for (name, kind), kernel in kernels.items():
            space, known = kernel.task.space.space, kernel.known
            if name not in out or len(known) < LEAST:
                continue
            try:
                trees = artefact.of(space)
            except TuningError:
                continue
            # Not the rule's own choice, which is tried first anyway.
            vectors, ratios = np.array(list(known)), np.array([ratio or np.inf for ratio in known.values()])
            row = {"kernel": name, "target": kind, "measured": len(known), "best": round(float(ratios.min()), 4)}
            row |= {"rule": round(min(1.0, float(ratios.min())), 4), "random": round(expected_trials(ratios), 2)}
            models = {"trees": PretrainedModel(costs=trees.costs, trained=trees)}
            if trees.costs:
                models["estimate"] = PretrainedModel(costs=True)
            for label, model in models.items():
                predicted = model.predict(model.features(space, vectors))
                row |= {
                    label: trials_in_order(ratios, predicted),
                    f"{label}_rank": rank_correlation(-ratios, predicted),
                }
            yield row


def trials_in_order(ratios: np.ndarray, predicted: np.ndarray) -> int:
    """Count trials, best predicted first, until one is close to the best; equals are tried in the given order."""
    order = np.argsort(-predicted, kind="stable")
    return int(np.argmax(ratios[order] <= CLOSE * ratios.min())) + 1


def expected_trials(ratios: np.ndarray) -> float:
    """Give how many trials it takes in the mean of all orders."""
    close = int((ratios <= CLOSE * ratios.min()).sum())
    return (len(ratios) + 1) / (close + 1)


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Give Spearman's correlation; 0 where all of one are equal."""
    from scipy.stats import rankdata

    one, other = rankdata(first), rankdata(second)
    return round(float(np.corrcoef(one, other)[0, 1]), 3) if np.ptp(one) and np.ptp(other) else 0.0


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Give geometric means of trials over the kernels, and means of correlations."""
    estimated = [row for row in rows if "estimate" in row]
    ratios = [row["estimate"] / row["trees"] for row in estimated]
    low, high = bootstrap_interval(ratios)
    return {
        "rule_spaces_kernels": len(rows),
        "rule_spaces_measurements": sum(row["measured"] for row in rows),
        "rule_spaces_rule_speed": round(float(np.mean([row["rule"] for row in rows])), 3),
        "rule_spaces_trials": round(geometric_mean([row["trees"] for row in rows]), 2),
        "rule_spaces_trials_random": round(geometric_mean([row["random"] for row in rows]), 2),
        "rule_spaces_trials_estimated": round(geometric_mean([row["trees"] for row in estimated]), 2),
        "rule_spaces_trials_estimate": round(geometric_mean([row["estimate"] for row in estimated]), 2),
        "rule_spaces_fewer_than_estimate": round(geometric_mean(ratios), 3),
        "rule_spaces_fewer_low": round(low, 3),
        "rule_spaces_fewer_high": round(high, 3),
        "rule_spaces_rank": round(float(np.mean([row["trees_rank"] for row in rows])), 3),
        "rule_spaces_rank_estimated": round(float(np.mean([row["trees_rank"] for row in estimated])), 3),
        "rule_spaces_rank_estimate": round(float(np.mean([row["estimate_rank"] for row in estimated])), 3),
    }
