"""A campaign: seeds one batch after the other, counted batch by batch in a file that a later run goes on from."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import onnx

from scripts.fuzz import store
from scripts.fuzz.options import ACCELERATORS
from scripts.fuzz.seeds import Drawn, threads_of
from scripts.fuzz.trial import Outcome
from scripts.fuzz.workers import LIMIT, SIMULATED_LIMIT, Pool

BATCH = 100
"""Seeds of one row."""

COUNTED = ("ok", "wrong", "crash", "hang", "error", "refused", "failed", "unspecified")
"""Outcomes of seeds that have a model which the reference can run."""

REFUSALS = ("refused", "failed")

BAD = ("wrong", "crash", "hang", "error")


class NothingTried(Exception):
    """No seed has a model: a package is missing, or seeds are not what they may be. That is no success."""


def run(
    rows: Path,
    *,
    seconds: float | None,
    batches: int | None = None,
    first: int = 0,
    failures: Path,
    kind: str = "graphs",
) -> list[dict[str, Any]]:
    """Try batches of seeds until the time is over, each written to ``rows`` when it is done, and give the new rows.

    Parameters
    ----------
    rows : Path
        JSON lines; goes on behind the last seed in it.
    seconds : float, optional
        By the clock; the batch that is under way ends early, and its row says how far it came.
    batches : int, optional
        Number of batches after which it ends, too.
    first : int
        Where an empty file begins.
    failures : Path
        Folder that receives the models that are wrong, crash, hang or are refused.
    kind : str
        What is drawn, one of ``seeds.DRAWS``.

    Raises
    ------
    NothingTried
        If none of the seeds of a whole batch has a model that the reference can run.
    """
    end = None if seconds is None else time.monotonic() + seconds
    made: list[dict[str, Any]] = []
    while (end is None or time.monotonic() < end) and (batches is None or len(made) < batches):
        start = max([first, *(row["seeds"][1] for row in read(rows))])
        row = run_batch(start, start + BATCH, end, failures, kind)
        if row["seeds"][0] == row["seeds"][1]:
            break
        rows.parent.mkdir(parents=True, exist_ok=True)
        cut_off = rows.exists() and rows.read_bytes()[-1:] not in (b"", b"\n")
        with rows.open("a") as file:
            file.write(("\n" if cut_off else "") + json.dumps(row) + "\n")
        made.append(row)
        print(_line(row), flush=True)
        if row["counts"].get("skipped", 0) == BATCH:
            raise NothingTried(
                f"none of the seeds {start} to {start + BATCH - 1} has a model: {'; '.join(row['skipped'])}"
            )
    return made


def run_batch(start: int, stop: int, end: float | None, failures: Path, kind: str = "graphs") -> dict[str, Any]:
    """Try the seeds from ``start`` up to ``stop``, or until ``end`` of the monotonic clock, and count."""
    counts: Counter[str] = Counter()
    verdicts: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    notable: list[dict[str, Any]] = []
    began, used, reached = time.monotonic(), 0.0, start
    limit = SIMULATED_LIMIT if kind in ACCELERATORS else LIMIT
    pools = {threads: Pool(threads, limit, kind=kind) for threads in (1, 2)}
    try:
        for seed in range(start, stop):
            if end is not None and time.monotonic() > end:
                break
            pool = pools[threads_of(seed)]
            outcome = pool.run(seed)
            reached = seed + 1
            counts[outcome.kind] += 1
            verdicts.update(outcome.verdicts)
            used += outcome.seconds
            if outcome.kind == "skipped":
                skipped[outcome.detail] += 1
            if outcome.kind in (*BAD, *REFUSALS):
                notable.append({"seed": seed, "kind": outcome.kind, "detail": outcome.detail})
                print(f"  {seed} {outcome.kind}: {outcome.detail[:200]}", flush=True)
                if pool.drawn is not None:
                    _keep(failures, seed, pool.drawn, outcome)
            elif outcome.detail.startswith("stock TVM"):
                counts["stock_asked"] += 1
                counts["stock_agrees"] += outcome.detail.endswith("agrees")
    finally:
        for pool in pools.values():
            pool.close()
    return {
        "kind": kind,
        "seeds": [start, reached],
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "counts": dict(counts),
        "outputs": dict(verdicts),
        "seconds": round(time.monotonic() - began, 1),
        "processor_seconds": round(used, 1),
        "notable": notable,
        "skipped": [reason for reason, _ in skipped.most_common(3)],
    }


def read(rows: Path) -> list[dict[str, Any]]:
    """Read the rows of earlier runs; a line that was cut off counts for nothing."""
    found = []
    for line in rows.read_text().splitlines() if rows.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def commit() -> str:
    """Name the commit that is tried."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def _keep(failures: Path, seed: int, drawn: Drawn, outcome: Outcome) -> None:
    said = store.about(drawn.options, seed=seed, kind=outcome.kind, detail=outcome.detail)
    store.save(failures, f"{outcome.kind}_{seed}", onnx.ModelProto.FromString(drawn.model), drawn.feeds, said)


def _line(row: dict[str, Any]) -> str:
    counts = row["counts"]
    models = sum(counts.get(kind, 0) for kind in COUNTED)
    parts = ", ".join(f"{kind} {counts[kind]}" for kind in (*COUNTED, "skipped") if counts.get(kind))
    return f"seeds {row['seeds'][0]}-{row['seeds'][1]}: {models} models in {row['seconds']:.0f} s: {parts}"
