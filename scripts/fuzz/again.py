"""Tries kept models again, and reduces them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scripts.fuzz import store
from scripts.fuzz.seeds import Drawn, threads_of
from scripts.fuzz.trial import Outcome
from scripts.fuzz.workers import LIMIT, SIMULATED_LIMIT, Pool


def outcome_of(path: Path, limit: float | None = None) -> Outcome:
    """Try a kept model in a process of its own."""
    model, feeds, options, _ = store.load(path)
    pool = Pool(options.threads, limit or (SIMULATED_LIMIT if options.accelerator else LIMIT))
    try:
        return pool.run(Drawn(model.SerializeToString(), feeds, options))
    finally:
        pool.close()


def outcome_of_seed(seed: int, limit: float = 60.0) -> Outcome:
    """Draw a seed's model anew and try it in a process of its own."""
    pool = Pool(threads_of(seed), limit)
    try:
        return pool.run(seed)
    finally:
        pool.close()


def try_files(paths: Sequence[Path]) -> int:
    """Try kept models; 1 when one is not right."""
    bad = 0
    for path in paths:
        outcome = outcome_of(path)
        bad += outcome.kind not in ("ok", "unspecified")
        print(f"{path.name}: {outcome.kind} {outcome.detail[:300]}", flush=True)
    return int(bad > 0)


def reduce_files(paths: Sequence[Path]) -> int:
    """Reduce kept models; each result is written beside its file as ``NAME_small.onnx``."""
    from scripts.fuzz.reduce import reduce

    for path in paths:
        model, feeds, options, about = store.load(path)
        small = reduce(Drawn(model.SerializeToString(), feeds, options))
        print(f"{path.name}: {small.text}", flush=True)
        kept = {key: value for key, value in about.items() if key not in ("options", "detail")}
        said = store.about(small.trial.options, **kept, detail=small.outcome.detail)
        store.save(path.parent, f"{path.stem}_small", small.model, small.trial.feeds, said)
    return 0
