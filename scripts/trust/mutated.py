"""Damaged and odd ONNX files through the whole compiler: an error of this package, or a model that runs."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from scripts.trust.damage import damaged
from scripts.trust.isolated import run_isolated
from scripts.trust.small_models import small_models

SECONDS = 20.0
MEMORY = 4 << 30
LARGEST_RUN = 2**20
"""Elements; models with larger inputs are compiled and not run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first file")
    parser.add_argument("--workers", type=int, default=1)


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Try the files; give one row for each kind of outcome and one for each that must not be."""
    seeds = range(arguments.seed, arguments.seed + arguments.count)
    states: Counter[str] = Counter()
    faults = []
    slowest, largest, start = 0.0, 0, time.monotonic()
    for index, outcome in run_isolated(
        try_file,
        seeds,
        workers=arguments.workers,
        seconds=SECONDS,
        memory=MEMORY,
        preload=("tvm_ext.compiler", "tvm_ext.frontend.onnx.importing", "scripts.trust.mutated"),
    ):
        state, detail, damage = outcome.result or (outcome.state, outcome.detail, "")
        states[state] += 1
        slowest, largest = max(slowest, outcome.seconds), max(largest, outcome.peak_bytes)
        if state in ("other", "crashed", "hung", "memory"):
            faults.append({"seed": seeds[index], "state": state, "damage": damage, "detail": detail})
            print(f"seed {seeds[index]}: {state} {damage}: {detail}", file=sys.stderr, flush=True)
        done = sum(states.values())
        if done % 500 == 0:
            print(f"{done} in {time.monotonic() - start:.0f} s: {dict(states)}", file=sys.stderr, flush=True)
    rows: list[dict[str, Any]] = [{"outcome": state, "files": count} for state, count in sorted(states.items())]
    return rows + faults, {
        "mutated_files": sum(states.values()),
        "mutated_compiled": states["compiled"],
        "mutated_refused": states["refused"],
        "mutated_other": states["other"],
        "mutated_crashed": states["crashed"] + states["memory"],
        "mutated_hangs": states["hung"],
        "mutated_slowest_seconds": round(slowest, 2),
        "mutated_peak_gib": round(largest / 2**30, 2),
    }


def try_file(seed: int) -> tuple[str, str, str]:
    """Compile one file, and run what comes out; give state, detail and damage."""
    import numpy as np

    import tvm_ext
    from tvm_ext.errors import TvmExtError
    from tvm_ext.inputs import random_inputs

    folder = Path(tempfile.mkdtemp(prefix="mutated-"))
    damage = ""
    try:
        path, damage = damaged(seed, small_models(), folder)
        compiled = tvm_ext.compile(path)
        sizes = [np.prod([dim for dim in spec.shape if isinstance(dim, int)], dtype=object) for spec in compiled.inputs]
        if sum(sizes) <= LARGEST_RUN:
            compiled.run(random_inputs(compiled.inputs))
        return "compiled", "", damage
    except TvmExtError as error:
        message = str(error)
        if not message or "\n" in message or "Traceback" in message:
            return "other", f"{type(error).__name__} of several lines: {message[:300]!r}", damage
        return "refused", type(error).__name__, damage
    except BaseException as error:  # what this script looks for
        return "other", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", damage
    finally:
        shutil.rmtree(folder, ignore_errors=True)
