"""Models as C sources beside the library: the same results, bytes as planned, time with one thread."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tvm

import tvm_ext
from scripts.results import kept_or
from tests.zoo import ZOO
from tests.zoo.entry import Entry
from tvm_ext.backends.c.compiled import CModel, build
from tvm_ext.errors import CompileError, TvmExtError

TURNS, RUNS = 7, 10
TOLERANCE = 1e-5
"""Of the largest number of an output."""


def entries(only: Sequence[str]) -> Iterator[Entry]:
    """Yield the models of the zoo that are here."""
    for entry in ZOO.values():
        if (not only or entry.name in only) and entry.missing() is None:
            yield entry


def measure_model(entry: Entry, timed: bool) -> dict[str, Any]:
    """Compile a model both ways, compare the results, and time runs that take turns."""
    inputs = entry.inputs(0)
    shapes = {name: list(array.shape) for name, array in inputs.items()}
    row: dict[str, Any] = {"name": entry.name, "kind": "c"}
    try:
        written = tvm_ext.compile(entry.onnx_model(), input_shapes=shapes, emit="c")
    except TvmExtError as error:
        return row | {"refused": str(error)[:200]}
    assert isinstance(written, CModel)
    library = tvm_ext.compile(entry.onnx_model(), input_shapes=shapes)
    with tempfile.TemporaryDirectory(prefix="tvm-ext-c-") as name:
        folder = Path(name)
        written.write_to(folder)
        start = time.perf_counter()
        try:
            build(folder)
        except CompileError as error:
            return row | {"refused": str(error)[:200]}
        row["build_seconds"] = time.perf_counter() - start
        given = [inputs[spec.name] for spec in written.inputs]
        found, expected = written.run_program(folder, given), library.run(inputs)
        row["error"] = max(_difference(found[key], array) for key, array in expected.items())
        noted = written.metadata["decisions"]["c"]
        row |= {key: noted[key] for key in ("arena", "planned", "stack", "weights", "kernels")}
        row["static"] = _static_bytes(folder)
        if timed:
            row |= _times(library, written, folder, given)
    return row


def _difference(found: np.ndarray, expected: np.ndarray) -> float:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf")
    if not expected.size:
        return 0.0
    wide, reference = found.astype("float64"), expected.astype("float64")
    if not np.array_equal(np.isnan(wide), np.isnan(reference)):
        return float("inf")
    return float(np.nanmax(np.abs(wide - reference), initial=0)) / max(float(np.nanmax(np.abs(reference))), 1e-30)


def _static_bytes(folder: Path) -> int:
    """Count what the library of the sources keeps in ``.bss``."""
    archive = next(folder.glob("lib*.a"))
    listed = subprocess.run(["size", "-A", archive], capture_output=True, text=True, check=True).stdout
    return sum(int(line.split()[1]) for line in listed.splitlines() if line.startswith(".bss"))


def _times(library: Any, written: CModel, folder: Path, given: Sequence[np.ndarray]) -> dict[str, float]:
    tvm.get_global_func("runtime.config_threadpool")(1, 1)
    machine = library.virtual_machine
    arguments = [tvm.runtime.tensor(array) for array in given]
    files = []
    for number, array in enumerate(given):
        files.append(f"input{number}.npy")
        np.save(folder / files[-1], array)
    command = [f"./{written.executable.name}", "-n", str(RUNS), *files]
    ratios, times = [], []
    for _ in range(TURNS):
        best = float("inf")
        for _ in range(RUNS):
            start = time.perf_counter()
            machine["main"](*arguments)
            best = min(best, time.perf_counter() - start)
        printed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
        seconds = float(printed.split()[0]) / 1000
        ratios.append(seconds / best)
        times.append((best, seconds))
    return {
        "library_ms": 1000 * min(best for best, _ in times),
        "c_ms": 1000 * min(seconds for _, seconds in times),
        "c_vs_library": median(ratios),
    }


def measure(
    only: Sequence[str], timed: bool, keep: Path | None = None
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Measure every model that ``keep`` has no row of; gives a row for each."""
    rows = []
    for entry in entries(only):
        rows.append(kept_or(keep, {"kind": "c", "name": entry.name}, partial(measure_model, entry, timed)))
        print(rows[-1], flush=True)
    return rows, summarise(rows)


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Count the models that are right, and take the mean of the times."""
    right = [row for row in rows if row.get("error", 1.0) <= TOLERANCE]
    summary: dict[str, float] = {
        "c_models": len(right),
        "c_wrong": sum("error" in row for row in rows) - len(right),
        "c_refused": sum("refused" in row for row in rows),
        # Beside the arena there is a pointer to weights that come from a file.
        "c_static_as_planned": float(all(0 <= row["static"] - row["arena"] <= 64 for row in rows if "static" in row)),
    }
    if compared := [row for row in rows if "arena" in row and row["planned"]]:
        summary["c_arena_over_plan"] = exp(sum(log(row["arena"] / row["planned"]) for row in compared) / len(compared))
    if timed := [row["c_vs_library"] for row in rows if "c_vs_library" in row]:
        summary["c_vs_library"] = exp(sum(map(log, timed)) / len(timed))
        summary["c_vs_library_worst"] = max(timed)
    return {key: round(value, 4) for key, value in summary.items()}
