"""Random models that NNSmith draws, in all combinations of options: how many were tried, and how many were not right.

Goes on behind the last seed of a file of counts (``--rows``), so that many sessions add up to one figure; what failed
on an earlier commit is tried again on this one.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument(
        "--rows", type=Path, nargs="+", required=True, help="files of counts; the first is gone on with"
    )
    parser.add_argument("--failures", type=Path, required=True, help="folder of kept models, old ones and new ones")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="how long new seeds are tried; 0: only what is there"
    )


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Try new seeds, try again what failed before, and sum up."""
    if os.environ.get("PYTHONHASHSEED") != "0":  # NNSmith draws from sets of names
        os.environ |= {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        os.execv(sys.executable, [sys.executable, *sys.argv])
    from scripts.fuzz import again, campaign

    if arguments.seconds > 0:
        campaign.run(arguments.rows[0], seconds=arguments.seconds, failures=arguments.failures)
    rows = [row for path in arguments.rows for row in campaign.read(path)]
    total: Counter[str] = Counter()
    outputs: Counter[str] = Counter()
    for row in rows:
        total.update(row["counts"])
        outputs.update(row["outputs"])
    left = []
    for note in (note for row in rows for note in row["notable"]):
        path = arguments.failures / f"{note['kind']}_{note['seed']}.onnx"
        now = again.outcome_of(path) if path.exists() else None
        kind, detail = (note["kind"], note["detail"]) if now is None else (now.kind, now.detail)
        total[note["kind"]] -= 1
        total[kind] += 1
        if kind in (*campaign.BAD, *campaign.REFUSALS):
            left.append({"seed": note["seed"], "kind": kind, "detail": detail})
    models = sum(total[kind] for kind in campaign.COUNTED)
    refused = sum(total[kind] for kind in campaign.REFUSALS)
    commits = list(dict.fromkeys(row["commit"] for row in rows))
    kept = [{"commit": commit, **_sum([row for row in rows if row["commit"] == commit])} for commit in commits] + left
    return kept, {
        "random_models": models,
        "random_wrong": total["wrong"],
        "random_crashes": total["crash"] + total["error"],
        "random_hangs": total["hang"],
        "random_refused_share": round(refused / max(models, 1), 4),
        "random_unspecified": total["unspecified"],
        "random_outputs": sum(outputs.values()),
        "random_outputs_rounding": outputs["rounding"],
        "random_outputs_unspecified": outputs["unspecified"],
        "random_stock_asked": total["stock_asked"],
        "random_stock_agrees": total["stock_agrees"],
    }


def _sum(rows: list[dict[str, Any]]) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(row["counts"])
    return {
        "seeds": [min(row["seeds"][0] for row in rows), max(row["seeds"][1] for row in rows)],
        "until": max(row["date"] for row in rows),
        "counts": dict(counts),
        "processor_seconds": round(sum(row["processor_seconds"] for row in rows), 1),
    }
