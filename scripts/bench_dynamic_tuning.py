"""Tune models with open dimensions, and time them beside the untuned ones at sizes that they were not tuned for.

Run: python scripts/bench_dynamic_tuning.py [--trials N] [--keep FILE] [--json PATH]

Each model is tuned as `tvm-ext tune` does by default, for a small, a middling and a large size; both builds then run in
turns, one thread by its processor time or all threads by the clock.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np

import tvm_ext
from scripts.results import add_json_option, add_keep_option, kept_or, result_path, store
from tests.shapes.dynamic_models import MODELS
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.frontend import import_model
from tvm_ext.tuners.measure.measurer import Measurer
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuning import tune

NAMES = ("mlp", "attention_block", "pyramid", "cnn_by_shape")
SIZES, TURNS, SECONDS, TRIALS = 4, 11, 0.02, 96


def rows_of(names: tuple[str, ...], trials: int, threads: int, keep: Path | None) -> Iterator[dict[str, Any]]:
    """Tune each model; a row holds what all sizes took."""
    for name in names:
        key = {"part": "tuning", "model": name, "threads": threads, "trials": trials}
        yield kept_or(keep, key, partial(tuned_row, key))


def tuned_row(key: dict[str, Any]) -> dict[str, Any]:
    """Tune a model, and time it tuned and untuned."""
    case = MODELS[key["model"]]()
    with tempfile.TemporaryDirectory() as folder:
        imported = import_model(case.model, dynamic=case.dynamic)
        start = time.perf_counter()
        with Measurer(threads=key["threads"]) as measurer:
            found = tune(
                imported, native_target(), folder, key["trials"], recipe("evolution_expected"), measurer=measurer
            )
        seconds = time.perf_counter() - start
        models = [tvm_ext.compile(case.model, dynamic=case.dynamic, work_dir=place) for place in (folder, None)]
    changed = sum(kernel.best != kernel.before and not kernel.left_alone for kernel in found.kernels)
    feeds = [case.feeds(extents, seed) for seed, extents in enumerate(case.sizes(SIZES))]
    sizes = [in_turns(models, given, key["threads"]) for given in feeds]
    row = {**key, "kernels": len(found.kernels), "changed": changed, "seconds": round(seconds, 1), "sizes": sizes}
    print(row, flush=True)
    return row


def in_turns(models: list[Any], feeds: dict[str, np.ndarray], threads: int) -> dict[str, float]:
    """Time the tuned and the untuned model (microseconds); results are compared first."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    tuned, untuned = models
    for wanted, got in zip(untuned.run(feeds).values(), tuned.run(feeds).values(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)

    def lap(model: Any, runs: int) -> float:
        start = clock()
        for _ in range(runs):
            model.run(feeds)
        return (clock() - start) / runs

    runs = max(3, round(SECONDS / lap(untuned, 3)))
    laps = [[lap(model, runs) for model in models] for _ in range(TURNS)]
    return {
        "tuned": round(1e6 * statistics.median(row[0] for row in laps), 2),
        "untuned": round(1e6 * statistics.median(row[1] for row in laps), 2),
    }


def summary_of(rows: list[dict[str, Any]], threads: int) -> dict[str, float]:
    """Take the geometric mean over models and sizes, and the worst and the best size."""
    ratios = [size["tuned"] / size["untuned"] for row in rows for size in row["sizes"]]
    name = f"tuned_over_untuned_{threads}"
    return {
        name: round(float(np.exp(np.mean(np.log(ratios)))), 4),
        f"{name}_worst": round(max(ratios), 4),
        f"{name}_best": round(min(ratios), 4),
        f"{name}_models": len(rows),
    }


def main() -> int:
    """Tune the models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=TRIALS, help="measurements a model (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="models to tune")
    parser.add_argument("--threads", type=int, default=1, help="of the kernels (default: %(default)s)")
    add_keep_option(parser)
    add_json_option(parser, "dynamic")
    arguments = parser.parse_args()
    names, threads = tuple(arguments.only), arguments.threads
    path = result_path("dynamic", arguments.json, names == NAMES)
    os.environ["TVM_NUM_THREADS"] = str(threads)  # before the runtime begins its threads
    warnings.simplefilter("ignore")
    rows = list(rows_of(names, arguments.trials, threads, arguments.keep))
    summary = summary_of(rows, threads)
    print(summary)
    clock = "of the processor" if threads == 1 else "of the clock"
    store(path, "dynamic", rows, summary, part=f"tuning_{threads}", notes=(f"microseconds {clock}",))
    return 0


if __name__ == "__main__":
    sys.exit(main())
