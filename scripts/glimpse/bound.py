"""How much better than transfer learning's first configurations any could be: a bound that no prior can pass.

A part of ``bench_hardware_aware.py``. The best of a hundred configurations is no faster than the best of all, which is
known of these landscapes. What transfer learning has found among its first hundred therefore bounds the gain on each.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from scripts.glimpse.landscapes import load
from scripts.results import RESULTS

GOAL = 2.18
"""Gain over transfer learning in the source's figure 4.5, where it is "up to"."""

NEAR = 0.95
LEAST = 1e-3
"""Relative speed that counts where none of the configurations works, as in ``compare.py``."""


def bound_part(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Bound the gain of first configurations over transfer learning's, by what ``--glimpse`` has measured."""
    rows = [bound_of(row) for row in measured_rows(arguments)]
    bounds, gains = column(rows, "bound"), column(rows, "gain")
    if (gains > bounds * 1.001).any():
        raise SystemExit("a gain is larger than its bound: the rows and the landscapes do not belong together")
    over_random = [row["random_bound"] for row in rows]
    first = [(row["prior_first"], row["transfer_first"]) for row in rows if row["transfer_first"] > 0]
    return rows, {
        "glimpse_first100_bound": round(mean_of(bounds), 4),
        "glimpse_first100_bound_most": round(float(bounds.max()), 3),
        "glimpse_first100_bound_reaches_goal": int((bounds >= GOAL).sum()),
        "glimpse_first100_of_bound": round(float(np.log(mean_of(gains)) / np.log(mean_of(bounds))), 3),
        "glimpse_first100_bound_over_random": round(mean_of(over_random), 3),
        "glimpse_near_best": round(float(np.median(column(rows, "near_best"))), 4),
        "transfer_first_fails": sum(row["transfer_first"] == 0 for row in rows),
        "prior_first_fails": sum(row["prior_first"] == 0 for row in rows),
        "glimpse_first1_over_transfer": round(mean_of([prior / other for prior, other in first]), 3),
        "glimpse_first1_bound": round(mean_of([1 / other for _, other in first]), 3),
    }


def measured_rows(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Read what ``--glimpse`` has measured of the first configurations."""
    path = arguments.json or RESULTS / "hardware_aware.json"
    sections = json.loads(path.read_text(encoding="utf-8"))["sections"] if path.exists() else []
    found = [row for part in sections if part["part"] == "glimpse" for row in part["rows"] if row["table"] == "first"]
    if not found:
        raise SystemExit(f"{path} has no first configurations to bound the gain of: run --glimpse before")
    return found


def bound_of(row: dict[str, Any]) -> dict[str, Any]:
    """Give the gain and the bound of one layer on one design, and the share of its valid configurations near the best.

    ``transfer_best`` and ``prior_best`` are speeds relative to the best of all.
    """
    landscape = load()[row["design"], row["layer"]]
    cycles = landscape.cycles[landscape.cycles > 0].astype(np.float64)
    transfer = max(row["transfer_best"], LEAST)
    return {
        "design": row["design"],
        "layer": row["layer"],
        "gain": round(row["prior_best"] / transfer, 4),
        "bound": round(1 / transfer, 4),
        "random_bound": round(1 / max(row["random_best"], LEAST), 4),
        "near_best": round(float((cycles.min() / cycles >= NEAR).mean()), 4),
        "prior_first": row["prior_first"],
        "transfer_first": row["transfer_first"],
    }


def column(rows: Sequence[dict[str, Any]], name: str) -> np.ndarray:
    """Give a column (n) of rows."""
    return np.array([row[name] for row in rows], np.float64)


def mean_of(values: Sequence[float] | np.ndarray) -> float:
    """Geometric mean."""
    return float(np.exp(np.mean(np.log(np.maximum(values, LEAST)))))
