"""Random models that NNSmith draws, in all combinations of options: how many were tried, and how many were not right.

Goes on behind the last seed of a file of counts (``--rows``), so that many sessions add up to one figure; what failed
on an earlier commit is tried again on this one. With ``--go-on`` what the result file holds is counted, too: the seeds
that failed then are drawn anew, as nothing else of that campaign is kept.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tvm_ext.bench.sections import read_sections


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument(
        "--rows", type=Path, nargs="+", required=True, help="files of counts; the first is gone on with"
    )
    parser.add_argument("--failures", type=Path, required=True, help="folder of kept models, old ones and new ones")
    parser.add_argument("--go-on", action="store_true", help="add to the figures that the result file holds")
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
        outputs["outputs"] += sum(row["outputs"].values())
        outputs["outputs_rounding"] += row["outputs"].get("rounding", 0)
        outputs["outputs_unspecified"] += row["outputs"].get("unspecified", 0)
    left = []
    for note in (note for row in rows for note in row["notable"]):
        path = arguments.failures / f"{note['kind']}_{note['seed']}.onnx"
        now = again.outcome_of(path) if path.exists() else None
        kind, detail = (note["kind"], note["detail"]) if now is None else (now.kind, now.detail)
        total[note["kind"]] -= 1
        total[kind] += 1
        if kind in (*campaign.BAD, *campaign.REFUSALS):
            left.append({"seed": note["seed"], "kind": kind, "detail": detail})
    earlier: dict[str, Any] = {"rows": [], "summary": {}}
    if arguments.go_on:
        earlier = _earlier(arguments.json)
        total.update(_counts(earlier))
        for name in ("outputs", "outputs_rounding", "outputs_unspecified"):
            outputs[name] += earlier["summary"][f"random_{name}"]
        for row in _left(earlier):
            now = again.outcome_of_seed(row["seed"])
            if now.kind == "skipped":  # could not be drawn: what was found stays
                left.append(row)
                continue
            total[row["kind"]] -= 1
            total[now.kind] += 1
            if now.kind in (*campaign.BAD, *campaign.REFUSALS):
                left.append({"seed": row["seed"], "kind": now.kind, "detail": now.detail})
    models = sum(total[kind] for kind in campaign.COUNTED)
    refused = sum(total[kind] for kind in campaign.REFUSALS)
    commits = list(dict.fromkeys(row["commit"] for row in rows))
    kept = [row for row in earlier["rows"] if "seeds" in row]
    kept += [{"commit": commit, **_sum([row for row in rows if row["commit"] == commit])} for commit in commits]
    return kept + left, {
        "random_models": models,
        "random_wrong": total["wrong"],
        "random_crashes": total["crash"] + total["error"],
        "random_hangs": total["hang"],
        "random_refused_share": round(refused / max(models, 1), 4),
        "random_unspecified": total["unspecified"],
        "random_outputs": outputs["outputs"],
        "random_outputs_rounding": outputs["outputs_rounding"],
        "random_outputs_unspecified": outputs["outputs_unspecified"],
        "random_stock_asked": total["stock_asked"],
        "random_stock_agrees": total["stock_agrees"],
    }


def _earlier(path: Path) -> dict[str, Any]:
    """Read the newest figures of random models that a result file holds, of whatever kind of machine."""
    sections = [section for section in read_sections(path, "trust") if section["part"] == "random_models"]
    if not sections:
        sys.exit(f"{path} holds no figures of random models to go on from; leave --go-on out")
    return max(sections, key=lambda section: str(section["date"]))


def _left(section: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in section["rows"] if "seed" in row]


def _counts(section: dict[str, Any]) -> Counter[str]:
    """Count the outcomes behind a summary: after what had failed was tried again."""
    summary = section["summary"]
    counts = Counter(row["kind"] for row in _left(section))
    counts["unspecified"] = summary["random_unspecified"]
    counts["ok"] = summary["random_models"] - counts.total()
    counts["stock_asked"], counts["stock_agrees"] = summary["random_stock_asked"], summary["random_stock_agrees"]
    return counts


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
