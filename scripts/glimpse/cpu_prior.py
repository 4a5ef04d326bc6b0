"""Whether a prior that was learnt of other CPUs and networks says more of a kernel than its schedule rule does.

A part of ``bench_hardware_aware.py``. The prior generator of ``train.py`` is trained on what ``pretrain_rules.py`` has
measured of the schedule rules' own spaces, for AVX-512, AVX2 and SSE4, without one network and one instruction set (or
without the network alone), and orders the measured configurations of the kernels left out. Compared is the best of the
first of them with the best of as many random ones, of those that the rule's own estimate likes best, and of a prior
that was trained on what the estimate leaves unsaid. Nothing is measured here; the seed is fixed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from math import comb
from typing import Any

import numpy as np

from scripts.results import read_rows
from scripts.rule_spaces import LEAST, expected_trials, trials_in_order
from tvm_ext.tuners.glimpse.blueprint import Blueprint
from tvm_ext.tuners.glimpse.networks import Network
from tvm_ext.tuners.pretrained.model import PretrainedModel
from tvm_ext.tuners.replay.experiment import bootstrap_interval, geometric_mean
from tvm_ext.tuners.shared_model import SLOWEST, SharedModel, structure

FIRST = 4
"""Configurations of a set of first ones: of the 20 or so of a kernel that were measured."""

FEWEST = 48
"""With fewer measurements of a structure of spaces nothing is trained for it."""

EPOCHS, HIDDEN = 300, 32
"""There are about a thousand examples, which are looked at all at once."""

NETWORKS = {
    "squeezenet": "16_64_55_1 64_16_55_1 64_256_13_1 48_192_13_1 48_192_13_3 32_32_27_3",
    "inception": "192_64_28_1 96_128_28_3 16_32_28_5 512_128_14_1 160_320_14_3 320_384_8_3 96_160_17_3 192_384_9_3",
    "resnet50": "128_128_28_3_2 256_64_56_1 128_512_28_1",
    "tinybert": "128_312_312 128_312_1200 128_64_128_12",
    "vit": "196_192_576 64_384_1536 17_256_256",
}
"""Kernels that are layers of each; those of AlexNet and VGG-16 are tasks of the replay, the rest are MobileNet's."""


def network_of(kernel: str) -> str:
    """Name the network that a kernel of ``pretrain_loops.py`` is a layer of."""
    from tvm_ext.tuners.replay.tasks import TASKS

    numbers = kernel.partition("_")[2]
    for task in TASKS:
        row = (task.inputs, task.outputs, task.size, task.kernel, task.stride, task.padding)
        if task.network != "resnet18" and numbers == "_".join(map(str, row)):
            return task.network
    return next((name for name, kernels in NETWORKS.items() if numbers in kernels.split()), "mobilenet")


def cpu_prior_part(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Compare a prior for CPUs with the rule's estimate, on networks and instruction sets that it has never seen."""
    from scripts.pretrain_rules import KEPT, known_kernels, measured_kernels

    makers = measured_kernels()
    if arguments.quick:
        makers = dict(list(makers.items())[::4])
    found = known_kernels(read_rows(arguments.keep or KEPT), makers)
    kernels = {key: kernel for key, kernel in found.items() if kernel.known}
    rows: list[dict[str, Any]] = []
    for left_out in ("both", "network"):
        rows += _compared(kernels, left_out)
    return rows, summarise(rows)


def _compared(kernels: dict[tuple[str, str], Any], left_out: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    folds = sorted({(network_of(name), target if left_out == "both" else "") for name, target in kernels})
    for network, instructions in folds:
        inside = [
            key for key in kernels if network_of(key[0]) == network and (not instructions or key[1] == instructions)
        ]
        known = [
            kernel
            for (name, target), kernel in kernels.items()
            if network_of(name) != network and target != instructions
        ]
        for name, target in inside:
            kernel = kernels[name, target]
            space = kernel.task.space.space
            alike = [
                other
                for other in known
                if structure(other.task.space.space) == structure(space)
                and (other.task.space.space.cost is None) == (space.cost is None)
            ]
            if len(kernel.known) < LEAST:
                continue
            row = {"left_out": left_out, "network": network, "kernel": name, "target": target}
            rows.append(row | _judged(kernel, alike))
            print(rows[-1], flush=True)
    return rows


class Prior:
    """A prior generator for spaces of one structure.

    Parameters
    ----------
    kernels : sequence of RuleKernel
        What it is trained on.
    corrects : bool
        Whether it learns what the rule's estimate leaves unsaid of the speeds, instead of the speeds.
    """

    def __init__(self, kernels: Sequence[Any], corrects: bool) -> None:
        from scripts.glimpse.train import fit_prior  # needs PyTorch

        self.corrects = corrects
        sheets = np.array(sorted({kernel.task.space.space.processor for kernel in kernels}))
        fields = tuple(f"processor {number}" for number in range(sheets.shape[1]))
        self.blueprint = Blueprint.fit(fields, sheets) if len(sheets) > 1 else None
        inputs, speeds, counting, works = [], [], [], []
        for kernel in kernels:
            vectors, ratios = measured(kernel)
            worked = np.isfinite(ratios)
            if not worked.any():
                continue
            speed = np.maximum(np.log(ratios[worked].min()) - np.log(ratios), SLOWEST)
            counting.append(speed)
            if corrects:
                missed = speed - estimated(kernel, vectors)
                speed = missed - np.median(missed[worked])
            inputs.append(self.inputs(kernel, vectors))
            speeds.append(np.where(worked, speed, 0.0))
            works.append(worked)
        self.network: Network = fit_prior(
            np.concatenate(inputs),
            np.concatenate(speeds),
            np.concatenate(works),
            EPOCHS,
            HIDDEN,
            np.concatenate(counting),
        )

    def inputs(self, kernel: Any, vectors: np.ndarray) -> np.ndarray:
        """Give numbers of vectors (n x knobs), of the kernel and of the processor."""
        space = kernel.task.space.space
        beside = list(space.context)
        if self.blueprint is not None:
            beside += self.blueprint.embed(np.array([space.processor]))[0].tolist()
        parts = [SharedModel().features(space, vectors), np.tile(np.array(beside, np.float32), (len(vectors), 1))]
        if self.corrects:
            parts.append(estimated(kernel, vectors)[:, None])
        return np.concatenate(parts, axis=1).astype(np.float32)

    def density(self, kernel: Any, vectors: np.ndarray) -> np.ndarray:
        """Give how likely vectors (n x knobs) are to be the best (n), in logarithms."""
        outputs = self.network(self.inputs(kernel, vectors)).astype(np.float64)
        speeds = outputs[:, 0] + (estimated(kernel, vectors) if self.corrects else 0.0)
        return speeds - np.logaddexp(0.0, -outputs[:, 1])


def measured(kernel: Any) -> tuple[np.ndarray, np.ndarray]:
    """Give vectors that were measured, without the rule's own choice, and their times (n); infinite where one fails."""
    return np.array(list(kernel.known)), np.array([ratio or np.inf for ratio in kernel.known.values()])


def estimated(kernel: Any, vectors: np.ndarray) -> np.ndarray:
    """Give the logarithms of speeds (n) that the rule's estimate says."""
    space, model = kernel.task.space.space, PretrainedModel(costs=True)
    return model.features(space, vectors)[:, -1].astype(np.float64)


def _judged(kernel: Any, alike: Sequence[Any]) -> dict[str, Any]:
    """Give of each order of what was measured the best of the first, relative to the best of all, and trials."""
    vectors, ratios = measured(kernel)
    speeds = ratios.min() / ratios
    row: dict[str, Any] = {
        "measured": len(ratios),
        "trained_on": sum(len(other.known) for other in alike),
        "random_first": round(expected_best(speeds, FIRST), 4),
        "random": round(expected_trials(ratios), 2),
    }
    orders: dict[str, np.ndarray] = {}
    costs = kernel.task.space.space.cost is not None
    if costs:
        orders["estimate"] = estimated(kernel, vectors)
    if row["trained_on"] >= FEWEST:
        orders["prior"] = Prior(alike, corrects=False).density(kernel, vectors)
        if costs:
            orders["both"] = Prior(alike, corrects=True).density(kernel, vectors)
    for name, worth in orders.items():
        order = np.argsort(-worth, kind="stable")[:FIRST]
        row |= {f"{name}_first": round(float(speeds[order].max()), 4), name: trials_in_order(ratios, worth)}
    return row


def expected_best(speeds: np.ndarray, count: int) -> float:
    """Give the mean of the best of ``count`` random ones over all choices of them."""
    ranked, number = np.sort(speeds), len(speeds)
    if count >= number:
        return float(ranked[-1])
    ways = [comb(at, count - 1) for at in range(number)]
    return float(np.dot(ranked, ways) / comb(number, count))


def summarise(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Give geometric means over the kernels of the best of the first, relative to the others', and of trials."""
    summary: dict[str, Any] = {"cpu_prior_first_count": FIRST}
    rows = list(rows)
    for left_out, ending in (("both", ""), ("network", "_network")):
        asked = [row for row in rows if row["left_out"] == left_out and "prior" in row]
        costed = [row for row in asked if "estimate" in row]
        unseen = sum(row["left_out"] == left_out and "prior" not in row for row in rows)
        summary |= {f"cpu_prior_kernels{ending}": len(asked), f"cpu_prior_unseen{ending}": unseen}
        summary[f"cpu_prior_estimated_kernels{ending}"] = len(costed)
        for first, second, of in (
            ("prior", "random", asked),
            ("prior", "estimate", costed),
            ("both", "estimate", costed),
        ):
            if not of:
                continue
            ratios = [row[f"{first}_first"] / max(row[f"{second}_first"], 1e-3) for row in of]
            low, high = bootstrap_interval(ratios)
            key = f"cpu_{first}_first_over_{second}{ending}"
            summary |= {
                key: round(geometric_mean(ratios), 4),
                f"{key}_low": round(low, 4),
                f"{key}_high": round(high, 4),
            }
        for name in ("random", "estimate", "prior", "both"):
            if costed:
                summary[f"cpu_{name}_trials{ending}"] = round(geometric_mean([row[name] for row in costed]), 2)
    return summary
