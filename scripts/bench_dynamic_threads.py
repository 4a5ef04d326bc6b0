"""Time models with open dimensions beside their own static builds, both on all threads that are used by default.

Run: python scripts/bench_dynamic_threads.py [--quick] [--keep FILE] [--json PATH]

Seconds of the clock, medians of turns, on a quiet machine: what ``bench_dynamic.py --part latency`` measures on one
thread does not tell whether small kernels are divided among threads where that does not pay.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np

import tvm_ext
from scripts.results import add_json_option, add_keep_option, kept_or, result_path, store
from tests.shapes.dynamic_models import MODELS
from tvm_ext.system.threads import threads

NAMES = ("mlp", "attention_block", "conformer", "lstm", "pyramid", "gru", "cnn_by_shape")
SIZES, TURNS, RUNS = 6, 15, 40


def rows_of(names: tuple[str, ...], sizes: int, keep: Path | None) -> Iterator[dict[str, Any]]:
    """Time each model at several sizes."""
    for name in names:
        case = MODELS[name]()
        model = tvm_ext.compile(case.model, dynamic=case.dynamic)
        for seed, extents in enumerate(case.sizes(sizes)):
            key = {"part": "threads", "model": name, "seed": seed}
            yield kept_or(keep, key, partial(timed_row, key, case, model, extents))


def timed_row(key: Mapping[str, Any], case: Any, model: Any, extents: Mapping[str, int]) -> dict[str, Any]:
    """Time a model at one size; results are compared first."""
    feeds = case.feeds(extents, key["seed"])
    static = tvm_ext.compile(case.model, input_shapes={name: array.shape for name, array in feeds.items()})
    for found, wanted in zip(model.run(feeds).values(), static.run(feeds).values(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)
    seconds: dict[str, list[float]] = {"dynamic": [], "static": []}
    runs: dict[str, Callable[[], Any]] = {"dynamic": lambda: model.run(feeds), "static": lambda: static.run(feeds)}
    for _ in range(TURNS):
        for name, run in runs.items():
            run()
            start = time.perf_counter()
            for _ in range(RUNS):
                run()
            seconds[name].append((time.perf_counter() - start) / RUNS)
    medians = {name: round(1e6 * statistics.median(values), 2) for name, values in seconds.items()}
    row = {**key, "sizes": dict(extents), "threads": threads(), **medians}
    print(row, flush=True)
    return row


def summary_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Take the geometric mean, and the worst size."""
    ratios = [row["dynamic"] / row["static"] for row in rows]
    return {
        "threads_over_static": round(float(np.exp(np.mean(np.log(ratios)))), 4),
        "threads_over_static_worst": round(max(ratios), 4),
        "threads_models": len({row["model"] for row in rows}),
    }


def main() -> int:
    """Time the models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one model at two sizes, for the screen")
    add_keep_option(parser)
    add_json_option(parser, "dynamic")
    arguments = parser.parse_args()
    path = result_path("dynamic", arguments.json, not arguments.quick)
    warnings.simplefilter("ignore")
    rows = list(rows_of(NAMES[:1] if arguments.quick else NAMES, 2 if arguments.quick else SIZES, arguments.keep))
    summary = summary_of(rows)
    print(summary)
    store(path, "dynamic", rows, summary, part="threads", notes=("microseconds of the clock, all threads",))
    return 0


if __name__ == "__main__":
    sys.exit(main())
