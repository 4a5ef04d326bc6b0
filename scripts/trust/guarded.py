"""Kernels of all schedule rules with every argument at the end, then at the beginning, of memory they may touch."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from tests.guarded.cases import FAMILIES, TARGETS
from tests.guarded.jobs import Job, Outcome, levels_of_this_machine, run_jobs

MODELS = ("tiny_cnn", "tiny_mlp", "tiny_cell", "tiny_transformer", "tiny_lstm", "shufflenet", "mobilenet_v2")
"""Models of the zoo whose kernels run too."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--seeds", type=int, default=16, help="graphs of each family, for each instruction set")
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--families", nargs="+", default=[*FAMILIES, *(f"zoo:{model}" for model in MODELS)])
    parser.add_argument("--levels", nargs="+", default=levels_of_this_machine(list(TARGETS)), choices=list(TARGETS))


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Run every family on every level; one row for each family."""
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    jobs = [
        Job(family, seed, level)
        for family in arguments.families
        for seed in (seeds[:1] if family.startswith("zoo:") else seeds)
        for level in arguments.levels
    ]
    outcomes: dict[str, list[Outcome]] = {}
    for outcome in run_jobs(jobs):
        outcomes.setdefault(outcome.job.family, []).append(outcome)
        for what in (*outcome.faults, outcome.wrong, outcome.refused, *outcome.unproved):
            if what:
                print(f"{outcome.job}: {what}", flush=True)
    rows = [_row(family, found) for family, found in outcomes.items()]
    return rows, {
        "guarded_cases": sum(row["kernels"] for row in rows),
        "guard_faults": sum(row["faults"] for row in rows),
        "guarded_wrong": sum(row["wrong"] for row in rows),
        "guarded_refused": sum(row["refused"] for row in rows),
        "guarded_unproved": sum(row["unproved"] for row in rows),
    }


def _row(family: str, outcomes: list[Outcome]) -> dict[str, Any]:
    print(f"{family}: {sum(len(outcome.rules) for outcome in outcomes)} kernels", flush=True)
    return {
        "family": family,
        "levels": ", ".join(dict.fromkeys(outcome.job.level for outcome in outcomes)),
        "graphs": len(outcomes),
        "kernels": sum(len(outcome.rules) for outcome in outcomes),
        "rules": dict(Counter(rule for outcome in outcomes for rule in outcome.rules).most_common()),
        "faults": sum(len(outcome.faults) for outcome in outcomes),
        "wrong": sum(bool(outcome.wrong) for outcome in outcomes),
        "refused": sum(bool(outcome.refused) for outcome in outcomes),
        "unproved": sum(len(outcome.unproved) for outcome in outcomes),
    }
