"""Kill tuning runs at random moments, two on one folder among them, and see what is left of their databases.

A run reports after each batch how many measurements it has stored so far. Once the runs of a folder were killed, its
database must hold as many as were reported, by all runs together; all that it held before the kill, by kernel and
trace; and no record of another kernel. TVM's own database must be able to read it. At the end a last run goes on with
the folder, and leaves no fast candidate that was not compared with the rule's own choice.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
import warnings
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

RUNS_A_FOLDER = 3
"""Rounds of kills before a new folder is begun: a small model has few candidates."""

TRIALS, BATCH = 10, 2

FIRST_SECONDS = 3.0
"""In which runs are killed that report nothing before."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--kills", type=int, default=60, help="how many runs are killed")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--log", type=Path, help="keeps the rows, line by line; those in it are not measured again")


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Kill runs; gives a row for each folder, and the sums."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tvm_ext.tuning", "tvm_ext.compiler"])
    known = arguments.log.read_text("utf-8").splitlines() if arguments.log and arguments.log.exists() else []
    rows: list[dict[str, Any]] = [json.loads(line) for line in known]
    kills = sum(row["kills"] for row in rows)
    while kills < arguments.kills:
        folder = Path(tempfile.mkdtemp(prefix="tvm-ext-kills-"))
        try:
            choose = random.Random(f"{arguments.seed}/{len(rows)}")
            row = _folder(context, folder, choose, arguments.kills - kills, len(rows))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        kills += row["kills"]
        rows.append(row)
        print(json.dumps(row), flush=True)
        if arguments.log:
            with arguments.log.open("a", encoding="utf-8") as log:
                log.write(json.dumps(row) + "\n")
    summary = {
        "tune_kills": kills,
        "tune_kills_two_runs": sum(row["kills_two_runs"] for row in rows),
        "tune_kills_confirming": sum(row["kills_confirming"] for row in rows),
        "records_reported": sum(row["reported"] for row in rows),
        "records_cut": sum(row["cut"] for row in rows),
        "records_lost": sum(row["lost"] for row in rows),
        "confirmations_missing": sum(row["unconfirmed"] for row in rows),
    }
    return rows, summary


def _folder(context: Any, folder: Path, choose: random.Random, most: int, number: int) -> dict[str, Any]:
    row = {"folder": number, "kills": 0, "kills_two_runs": 0, "kills_confirming": 0, "lost": 0}
    started = 0
    held: Counter[tuple[str, str]] = Counter()
    for _ in range(RUNS_A_FOLDER):
        two = choose.random() < 0.5
        processes = []
        for _ in range(2 if two else 1):
            started += 1
            processes.append((_start(context, folder, started, 100 * number + started), started))
        moments = [(choose.randrange(TRIALS // BATCH + 2), choose.random(), *run) for run in processes]
        for batches, share, process, run in sorted(moments, key=lambda moment: moment[:2]):
            if _killed(process, folder, run, batches, share):
                row["kills"] += 1
                row["kills_two_runs"] += two
                row["kills_confirming"] += _said(folder, run)[-1:] == ["searched"]
            elif process.exitcode != 0:
                raise RuntimeError(f"a run ended with {process.exitcode} before it was killed")
        found, faults = _stored(folder)
        row["lost"] += faults + sum((held - found).values()) + max(0, _reported(folder) - found.total())
        held = found
        if row["kills"] >= most:
            break
    # Where all were killed before they stored anything, there must be something to go on with.
    last = _start(context, folder, started + 1, 0, trials=0 if held else TRIALS)
    last.join(600)
    found, faults = _stored(folder)
    row["lost"] += faults + sum((held - found).values()) + (last.exitcode != 0)
    damaged = [path.read_text("utf-8").count("\n") for path in folder.glob("*.damaged")]
    row |= {
        "reported": _reported(folder),
        "stored": found.total(),
        "cut": sum(damaged),
        "unconfirmed": int("is due" in _said(folder, started + 1)),
    }
    return row


def _killed(process: BaseProcess, folder: Path, run: int, batches: int, share: float) -> bool:
    """Kill a run some time after it reported so many batches; tells whether it was still there."""
    begin = time.monotonic()
    while process.is_alive() and len(_said(folder, run)) < batches:
        time.sleep(0.002)
    batch = (time.monotonic() - begin) / max(1, batches)
    process.join(share * (batch if batches else FIRST_SECONDS))
    if process.exitcode is not None or process.pid is None:
        return False
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    return True


def _start(context: Any, folder: Path, run: int, seed: int, trials: int = TRIALS) -> BaseProcess:
    process = context.Process(target=_tune, args=(str(folder), run, seed, trials))
    process.start()
    return process


def _said(folder: Path, run: int) -> list[str]:
    path = folder / f"said-{run}"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def _reported(folder: Path) -> int:
    """Sum what all runs said that they had stored."""
    numbers = [[int(line) for line in path.read_text().split() if line.isdigit()] for path in folder.glob("said-*")]
    return sum(max(of_run, default=0) for of_run in numbers)


def _stored(folder: Path) -> tuple[Counter[tuple[str, str]], int]:
    """Give the records of a folder by workload and trace, and how many are wrong or cannot be read by TVM."""
    from tvm.s_tir import meta_schedule as ms

    from tvm_ext.database.files import RECORDS, WORKLOADS, lines_of
    from tvm_ext.database.folders import open_database

    with warnings.catch_warnings(record=True) as repaired:
        warnings.simplefilter("always")
        database = open_database(folder)
    stock = ms.database.JSONDatabase(str(folder / WORKLOADS), str(folder / RECORDS))
    hashes = [json.loads(line)[0] for line in lines_of(folder / WORKLOADS)]
    rows = [json.loads(line) for line in lines_of(folder / RECORDS)]
    found = Counter((str(hashes[number]), json.dumps(record[0])) for number, record in rows)
    return found, abs(len(database) - len(rows)) + abs(len(stock) - len(rows)) + len(repaired)


def _tune(folder: str, run: int, seed: int, trials: int) -> None:
    """Tune a model of two small kernels, and say after each batch what is stored; runs in a process of its own."""
    import numpy as np
    from tvm import relax

    from tvm_ext.backends.cpu.target import native_target
    from tvm_ext.database.folders import record_count
    from tvm_ext.tuners.measure.measurer import Measurer
    from tvm_ext.tuners.measure.worker import Timing
    from tvm_ext.tuners.recipes import recipe
    from tvm_ext.tuning import kernels_to_tune, open_database, tune
    from tvm_ext.tuning.confirmation import Confirmation

    builder = relax.BlockBuilder()
    values = np.random.default_rng(0).standard_normal
    first, second = (relax.const(values(shape).astype("float32")) for shape in ((32, 16, 3, 3), (64, 32, 1, 1)))
    x = relax.Var("x", relax.TensorType((1, 16, 14, 14), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            inner = builder.emit(relax.op.nn.conv2d(x, first, padding=1, strides=2))
            result = builder.emit_output(relax.op.nn.conv2d(inner, second))
        builder.emit_func_output(result)
    mod, target, path = builder.get(), native_target(), Path(folder)
    database = open_database(path)
    tasks = kernels_to_tune(mod, target)
    known = sum(record_count(database, task.mod) for task in tasks)
    with open(path / f"said-{run}", "a", encoding="utf-8") as said:

        def say(text: object) -> None:
            said.write(f"{text}\n")
            said.flush()
            os.fsync(said.fileno())

        def progress(result: Any) -> None:
            say(result.trials)
            if result.trials >= trials:
                say("searched")

        with Measurer(workers=1, threads=1, timing=Timing(repeats=2, seconds=0.001)) as measurer:
            tune(
                mod, target, path, known + trials, recipe("random"),
                seed=seed, batch=BATCH, measurer=measurer, progress=progress,
            )  # fmt: skip
        say("done")
        if Confirmation([task.space for task in tasks], open_database(path), path).is_due:
            say("is due")
