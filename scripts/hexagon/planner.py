"""The selection of layouts and instructions: against brute force, a constraint solver, and each operator by itself."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scripts.hexagon.resnet import measured_problem
from tests.layout.selection.problems import brute_force, chain
from tvm_ext.layout.selection import (
    Edge,
    SelectionProblem,
    plan_locally,
    plan_selection,
    solve_selection,
    verify_selection,
)
from tvm_ext.target import resolve_target

CHAINS = 2000
SIZES = (10, 15, 20, 25)
PART = 13
DRAWN = 2
"""Copies of each window whose costs are drawn: of those measured, one layout is nearly always the best."""


def measure(quick: bool) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Measure; ``quick`` leaves most chains and windows out."""
    chains = range(CHAINS // 20 if quick else CHAINS)
    equal = sum(plan_selection(chain(seed)).cost == brute_force(chain(seed)) for seed in chains)
    problem, rows, between_planes = measured_problem(resolve_target("hexagon-v67"))
    whole, local = plan_selection(problem), plan_locally(problem)
    verify_selection(whole, problem)
    windows = [
        problem.window(first, size) for size in SIZES for first in range(0, len(problem) - size + 1, 12 if quick else 4)
    ]
    # The solver takes most of the time: a third of the windows.
    measured = [_compare(window, number % 3 == 0) for number, window in enumerate(windows)]
    drawn = [
        _compare(_drawn(window, seed), number % 3 == 0)
        for seed in range(DRAWN)
        for number, window in enumerate(windows)
    ]
    solved = [row for row in [*measured, *drawn] if row["equals_solver"] is not None]
    names = [plan.name for plan in problem.operators[1].plans]
    least = sum(min(plan.cost for plan in operator.plans) for operator in problem.operators)
    changes = sum(max(map(max, edge.costs)) for edge in problem.edges)
    one = {
        name: problem.aggregate_cost([0, *[index] * (len(problem) - 1)]) / whole.cost
        for index, name in enumerate(names)
    }
    rows = [{"part": "costs", **row} for row in rows]
    rows += [{"part": "windows", "costs": "measured", **row} for row in measured]
    rows += [{"part": "windows", "costs": "drawn", **row} for row in drawn]
    summary = {
        "chain_equals_brute_force": equal / len(chains),
        "chains": len(chains),
        "partition_gap": max(row["gap"] for row in measured),
        "partition_gap_drawn": _mean(row["gap"] for row in drawn),
        "partition_gap_drawn_worst": max(row["gap"] for row in drawn),
        "partition_seconds": max(row["seconds"] for row in [*measured, *drawn]),
        "planner_equals_solver": _mean(row["equals_solver"] for row in solved),
        "windows_solved": len(solved),
        "global_vs_local": _geometric(row["local"] / row["global"] for row in measured),
        "global_vs_local_drawn": _geometric(row["local"] / row["global"] for row in drawn),
        "network_global_vs_local": local.cost / whole.cost,
        # No selection takes less than the least plans, and local ones take these and the dearest changes at most.
        "network_local_at_most": 1 + changes / least,
        "network_between_planes_vs_global": between_planes / whole.cost,
        "network_packets": whole.cost,
        **{f"network_all_{name}": ratio for name, ratio in one.items()},
    }
    return rows, summary


def _compare(problem: SelectionProblem, with_solver: bool) -> dict[str, Any]:
    """Compare parts of 13 operators, the whole at once, a solver, and each operator by itself."""
    start = time.process_time()
    parts = plan_selection(problem, PART)
    seconds = time.process_time() - start
    verify_selection(parts, problem)
    whole = plan_selection(problem)
    verify_selection(whole, problem)
    exact = solve_selection(problem) if with_solver else None
    return {
        "operators": len(problem),
        "first": problem.operators[0].name,
        "local": plan_locally(problem).cost,
        "parts": parts.cost,
        "global": whole.cost,
        "gap": parts.cost / whole.cost - 1,
        "equals_solver": None if exact is None else exact.cost == exact.bound == whole.cost,
        "seconds": seconds,
    }


def _drawn(problem: SelectionProblem, seed: int) -> SelectionProblem:
    """Draw every cost anew.

    Plans cost half to twice the mean of their operator's plans; a relayout, which took a hundredth of an operator where
    it was measured, takes up to half of the lesser one at its ends.
    """
    picks = random.Random(seed)
    means = [sum(plan.cost for plan in operator.plans) / len(operator.plans) for operator in problem.operators]
    operators = tuple(
        replace(operator, plans=tuple(replace(plan, cost=round(mean * 2 ** picks.uniform(-1, 1))) for plan in plans))
        for operator, mean in zip(problem.operators, means, strict=True)
        for plans in [operator.plans]
    )
    edges = tuple(
        Edge(
            edge.source,
            edge.target,
            tuple(
                tuple(
                    round(picks.uniform(0, 0.5) * min(means[edge.source], means[edge.target])) if cost else 0
                    for cost in row
                )
                for row in edge.costs
            ),
        )
        for edge in problem.edges
    )
    return SelectionProblem(operators, edges)


def _mean(values: Any) -> float:
    items: Sequence[float] = list(values)
    return sum(items) / len(items)


def _geometric(values: Any) -> float:
    return math.exp(_mean(math.log(value) for value in values))
