"""Single operators and tiny graphs on one thread: tvm_ext against onnxruntime, in turns in one process.

Whole models hide an operator that is slow behind those that are not. The cases are in ``scripts/operators``: they are
not those that the zoo's models need most, and include sizes that no kernel was tuned for.

Run on a quiet machine: python scripts/bench_operators.py [--quick] [--only NAME ...] [--json PATH]. Runs with --quick
or --only are for the screen: figures that are quoted are of all cases. A case whose results differ ends the run with an
error, once all are measured, and nothing is written.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np
import onnx
import tvm

from scripts.operators import FAMILIES
from scripts.operators.case import Case
from scripts.results import add_json_option, add_keep_option, kept_or, result_path, store
from tvm_ext.bench.course import output_errors, runtime_saturates
from tvm_ext.bench.peers import onnxruntime_engine, tvm_ext_engine
from tvm_ext.bench.plan import ROUNDS, turn_order
from tvm_ext.bench.protocol import Job
from tvm_ext.bench.worker import describe, time_runs
from tvm_ext.relax_utils import plain
from tvm_ext.target import resolve_target

ENGINES = ("tvm_ext", "onnxruntime")
QUICK = (
    "conv_batch_16", "depthwise_7x7", "max_13x13", "odd_sizes", "one_row_transposed", "lstm_256", "tanh",
    "reducesum_rows_of_1000", "layer_norm", "to_channels_last", "gather_rows", "resize_linear_2", "qlinear_conv",
)  # fmt: skip

LARGEST_ERROR = 1e-4
"""Of floats, relative to the deviation of the reference. Bytes may be one step away; other integers are the same."""

LIMITS = (10, 25)
"""Percent: cases that are slower by more are counted."""

WORST = 5
"""How many of the slowest cases the summary names."""


def measure(family: str, case: Case, seconds: float) -> dict[str, Any]:
    """Compile a case in both engines, compare what they compute, and time them in turns.

    Parameters
    ----------
    family : str
        What the row says it belongs to.
    case : Case
        What to measure.
    seconds : float
        How long each engine runs in all.

    Returns
    -------
    dict
        Medians and minima (microseconds) of both, the ratios of them, how far the results differ and whether they
        agree, and the seconds of the compilation. Where an engine fails, what it said is there in their place.
    """
    row: dict[str, Any] = {"case": case.name, "family": family}
    try:
        return row | _measured(case, seconds)
    except Exception as error:  # whatever an engine raises; the other cases go on
        return row | {"agrees": False, "failed": describe(error)}


def _measured(case: Case, seconds: float) -> dict[str, Any]:
    model, inputs = case.build()
    with tempfile.TemporaryDirectory(prefix="bench-operators-") as folder:
        path = Path(folder) / f"{case.name}.onnx"
        onnx.save(model, path)
        reference = onnxruntime_engine.Engine(_job(path, inputs, {"exact": True} if runtime_saturates(path) else {}))
        theirs = onnxruntime_engine.Engine(_job(path, inputs, {}))
        ours = tvm_ext_engine.Engine(_job(path, inputs, {}))
    for engine in (reference, theirs, ours):
        engine.run()
    error, agrees = difference(ours.outputs(), reference.outputs())
    laps = in_turns([ours.run, theirs.run], seconds)
    middle, least = [median(runs) for runs in laps], [min(runs) for runs in laps]
    return {
        **{f"{engine}_us": value * 1e6 for engine, value in zip(ENGINES, middle, strict=True)},
        **{f"{engine}_min_us": value * 1e6 for engine, value in zip(ENGINES, least, strict=True)},
        "vs_onnxruntime": middle[0] / middle[1],
        "vs_onnxruntime_min": least[0] / least[1],
        "error": error if math.isfinite(error) else "inf",
        "agrees": agrees,
        "compile_seconds": ours.facts["compile_seconds"],
    }


def _job(path: Path, inputs: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> Job:
    target = tvm.target.Target({**resolve_target(None).export(), "num-cores": 1})
    return {
        "model": str(path),
        "kind": "onnx",
        "inputs": dict(inputs),
        "dimensions": {},
        "importing": {},
        "ranges": {},
        "threads": 1,
        "target": json.dumps({key: plain(value) for key, value in target.export().items() if key != "tag"}),
        "device": "cpu",
        "options": dict(options),
    }


def difference(results: Sequence[np.ndarray], reference: Sequence[np.ndarray]) -> tuple[float, bool]:
    """Tell how far results differ from a reference at most, and whether they agree.

    Returns
    -------
    tuple of float and bool
        Of floats the difference is relative to the standard deviation of the reference, and :data:`LARGEST_ERROR` is
        allowed; of bytes it is in steps, of which one is; other integers and truth values have to be the same. Another
        number, type or shape of results is infinitely far.
    """
    if [array.dtype for array in results] != [array.dtype for array in reference]:
        return math.inf, False
    largest, agrees = 0.0, True
    for result, expected in zip(results, reference, strict=True):
        absolute, relative = output_errors([result], [expected])
        is_float = expected.dtype.kind == "f"
        error = relative if is_float else absolute
        allowed = LARGEST_ERROR if is_float else float(expected.dtype in (np.int8, np.uint8))
        largest, agrees = max(largest, error), agrees and error <= allowed
    return largest, agrees


def in_turns(runs: Sequence[Callable[[], None]], seconds: float) -> list[list[float]]:
    """Time functions in turns, each for so long in all: whatever slows the machine down slows all of them.

    Parameters
    ----------
    runs : sequence of callable
        Each makes one run.
    seconds : float
        How long each of them is timed; at least one run a turn is.

    Returns
    -------
    list of list of float
        Of each function the seconds of its runs. An untimed run at the start of a turn brings the caches back.
    """
    share = seconds / ROUNDS
    counts = [max(1, int(share / max(min(time_runs(run, 1, 0.0, 3)), 1e-7))) for run in runs]
    laps: list[list[float]] = [[] for _ in runs]
    for round_number in range(ROUNDS):
        for index in turn_order(len(runs), round_number):
            laps[index] += time_runs(runs[index], 1, share / 10, counts[index])
    return laps


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures of merit over all cases that agree."""
    counted = [row for row in rows if row["agrees"]]
    summary: dict[str, Any] = {"operators": len(counted), "operators_that_disagree": len(rows) - len(counted)}
    if not counted:
        return summary
    ratios = {row["case"]: row["vs_onnxruntime"] for row in counted}
    worst = sorted(ratios, key=lambda name: ratios[name], reverse=True)[:WORST]
    summary["operators_vs_onnxruntime"] = geometric_mean(ratios.values())
    summary["operators_vs_onnxruntime_min"] = geometric_mean(row["vs_onnxruntime_min"] for row in counted)
    summary["operators_worst"] = ratios[worst[0]]
    for limit in LIMITS:
        slow = [name for name, ratio in ratios.items() if ratio > 1 + limit / 100]
        summary[f"operators_{limit}_percent_slower"] = len(slow)
    summary["operators_slowest"] = {name: round(ratios[name], 3) for name in worst}
    return summary


def show(row: Mapping[str, Any]) -> None:
    """Print a line for a case."""
    if "failed" in row:
        print(f"{row['case']:32} FAILED: {row['failed']}", flush=True)
        return
    times = " ".join(f"{engine} {row[f'{engine}_us']:9.1f}" for engine in ENGINES)
    ratios = f"ratio {row['vs_onnxruntime']:5.2f}, of the least {row['vs_onnxruntime_min']:5.2f}"
    doubt = "" if row["agrees"] else "  DISAGREES"
    print(f"{row['case']:32} us: {times}  {ratios}  error {float(row['error']):.1e}{doubt}", flush=True)


def chosen_cases(names: Sequence[str] | None) -> list[tuple[str, Case]]:
    """Give the cases of these names, all without any, each with its family.

    Raises
    ------
    SystemExit
        If there is no case of a name.
    """
    cases = [(family, case) for family, members in FAMILIES.items() for case in members]
    if unknown := set(names or ()) - {case.name for _, case in cases}:
        raise SystemExit(f"no case is called {', '.join(sorted(unknown))}; --list names all")
    return [(family, case) for family, case in cases if not names or case.name in names]


def main() -> None:
    """Measure, print a line for each case, write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{len(QUICK)} cases, for the screen")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="names of cases")
    parser.add_argument("--list", action="store_true", help="print the names of all cases and end")
    parser.add_argument("--seconds", type=float, default=0.4, help="how long each engine runs a case")
    add_keep_option(parser)
    add_json_option(parser, "operators")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(f"{case.name:32} {family}" for family, case in chosen_cases(None)))
        return
    path = result_path("operators", arguments.json, is_whole=not arguments.quick and not arguments.only)
    cases = chosen_cases(arguments.only or (QUICK if arguments.quick else None))
    os.environ["TVM_NUM_THREADS"] = "1"  # before TVM's threads start, with the first run
    gc.freeze()  # what is imported by now need not be looked through at every turn
    rows = []
    for family, case in cases:
        row = kept_or(arguments.keep, {"case": case.name}, partial(measure, family, case, arguments.seconds))
        show(row)
        rows.append(row)
    summary = summarise(rows)
    for key, value in summary.items():
        print(f"{key:32} {value if isinstance(value, dict) else format(value, '.4g')}")
    if wrong := [row["case"] for row in rows if not row["agrees"]]:
        raise SystemExit(
            f"{len(wrong)} cases fail or compute something else, and nothing is written: {', '.join(wrong)}"
        )
    store(path, "operators", rows, summary)


if __name__ == "__main__":
    main()
