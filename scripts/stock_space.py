"""TVM's own design space at equal time: what our search finds of a convolution, over what TVM's search finds.

A part of ``bench_hardware_aware.py``. TVM's search runs as it comes (evolution, boosted trees, builder and runner of
``tune_relax``, batches of 16) until the first batch that ends after the time that is set; ours has as long as that
took, and what it measures later does not count. Both have the same space, target and one thread. The fastest kernels of
both are compiled once more, compared with the unscheduled kernel, and timed in turns, by the processor time of one
thread: what counts is the ratio of these times, not what the searches believed. Beside other work seconds of the clock
are not equal for both: with ``--processor-time`` they are those of the search's processes together.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from statistics import geometric_mean, median
from typing import Any

import numpy as np
import psutil
import tvm
from tvm import relax
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.measure_callback import PyMeasureCallback

from scripts.results import add_row, read_rows
from scripts.tuning_loops import RESNET18, WARM, apart, convolution
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.system.tensor_intrinsics import only_tensor_intrinsics
from tvm_ext.system.threads import physical_cores
from tvm_ext.tuners.measure.code import build
from tvm_ext.tuners.measure.measurer import Measurer, arguments_of
from tvm_ext.tuners.metaschedule.builder import builder_and_runner
from tvm_ext.tuners.metaschedule.strategy import TunerStrategy
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuners.replay.experiment import bootstrap_interval

Row = dict[str, Any]
TRIALS = 100_000
"""More than any time allows."""

BATCH = 16
PATIENCE = 600.0
"""Seconds for building or running a candidate beside other work."""

SECONDS, FEWEST = 2.0, 10
"""Winners are timed in turns so long, and so often at least."""


def stock_space_part(arguments: argparse.Namespace) -> tuple[list[Row], dict[str, Any]]:
    """In TVM's design space at equal time, ResNet-18's convolutions: latency of what was found over TVM's."""
    rows = []
    tasks = range(2) if arguments.quick else range(len(RESNET18))
    for seed in range(min(arguments.seeds, 5)):
        for number in tasks:
            key = {
                "task": RESNET18[number].name,
                "seed": seed,
                "tuner": arguments.tuner,
                "limit": arguments.seconds,
                "clock": "processor" if arguments.processor_time else "wall",
            }
            known = [row for row in read_rows(arguments.keep) if all(row.get(name) == key[name] for name in key)]
            if known or not arguments.recorded:
                if not known:
                    known = [_pair(number, key)]
                    add_row(arguments.keep, known[0])
                rows.append(known[0])
                print(rows[-1], flush=True)
    if not rows:
        raise SystemExit("--recorded: the file of --keep holds no search like those asked for")
    return rows, summarise(rows)


CONVOLUTIONS = 12
"""Of ResNet-18; the figure of fewer has a name of its own."""


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """Geometric mean over the tasks, of the medians of their seeds; a search that found nothing has no ratio."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        if row["ratio"] is not None:
            ratios.setdefault(row["task"], []).append(row["ratio"])
    summary: dict[str, Any] = {
        "stock_space_tasks": len(ratios),
        "stock_space_seeds": min(map(len, ratios.values()), default=0),
        "stock_space_without_result": sum(row["ratio"] is None for row in rows),
        "stock_space_trials": float(median(row["our_trials"] / max(row["stock_trials"], 1) for row in rows)),
    }
    if ratios:
        values = [median(found) for found in ratios.values()]
        low, high = bootstrap_interval(values)
        name = "stock_space_equal_time" if len(values) == CONVOLUTIONS else "stock_space_equal_time_in_part"
        summary |= {
            name: round(geometric_mean(values), 4),
            "stock_space_low": round(low, 4),
            "stock_space_high": round(high, 4),
            "stock_space_best": min(values),
            "stock_space_worst": max(values),
            "stock_space_seconds": round(median(row["seconds"] for row in rows), 1),
            "stock_space_load": round(median(row["load"] for row in rows), 1),
        }
    return summary


def _pair(number: int, key: Row) -> Row:
    """Search on both sides, and time what they found in turns; each in a process of its own."""
    start = time.perf_counter()
    stock = apart(_search, number, key["seed"], key["limit"], None, key["clock"])
    own = apart(_search, number, key["seed"], stock["seconds"], key["tuner"], key["clock"])
    row = key | {
        "seconds": round(stock["seconds"], 1),
        "stock_trials": stock["trials"],
        "our_trials": own["trials"],
        "stock_failed": stock["failed"],
        "our_failed": own["failed"],
        "stock_believed_us": stock["best"] and round(stock["best"] * 1e6, 1),
        "our_believed_us": own["best"] and round(own["best"] * 1e6, 1),
        "load": round(os.getloadavg()[0], 2),
        "minutes": round((time.perf_counter() - start) / 60, 1),
    }
    if stock["kernel"] is None or own["kernel"] is None:
        return row | {"ratio": None}
    return row | apart(_side_by_side, stock["workload"], stock["kernel"], own["kernel"])


def ours(clock: str) -> Measurer:
    """Make warm workers that time as TVM's runner does, without emptying caches.

    Beside other work they are patient, and time by the processor, which is what this search can and TVM's cannot.
    """
    if clock == "wall":
        return Measurer(threads=1, timing=WARM)
    timing = replace(WARM, by_processor=True)
    return Measurer(threads=1, timing=timing, build_timeout=PATIENCE, run_timeout=PATIENCE)


def one_core_target() -> tvm.target.Target:
    """Give the target of this machine with one core, which TVM's space asks for: kernels run on one thread."""
    return tvm.target.Target({**native_target().export(), "num-cores": 1})


def _search(number: int, seed: int, limit: float, tuner: str | None, clock: str) -> Row:
    """Search for so many seconds: TVM's own way, or with a tuner of ours, whose last batch does not count if late."""
    os.environ["TVM_NUM_THREADS"] = "1"
    mod, target = relax.get_pipeline("zero")(convolution(RESNET18[number])), one_core_target()
    database = ms.database.MemoryDatabase()
    deadline = Deadline(limit, counts_late=tuner is None, clock=CLOCKS[clock])
    # Before the database is told: what comes too late is not in it.
    callbacks = [_EndsAt(deadline), *ms.measure_callback.MeasureCallback.create("default")]
    if tuner is None:
        callbacks = [*callbacks[1:], callbacks[0]]
    common: Row = {
        "measure_callbacks": callbacks, "database": database, "seed": seed + 1, "num_trials_per_iter": BATCH,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, nullcontext() if tuner is None else ours(clock) as measurer:
        if tuner is None and clock == "processor":
            # Beside other work TVM's workers are not even started within the time that candidates have.
            builder = ms.builder.LocalBuilder(max_workers=physical_cores(), timeout_sec=PATIENCE)
            common |= {"builder": builder, "runner": ms.runner.LocalRunner(timeout_sec=PATIENCE)}
        elif tuner is not None:
            builder, runner = builder_and_runner(measurer)
            common |= {
                "builder": builder,
                "runner": runner,
                "cost_model": ms.cost_model.RandomModel(),
                "strategy": TunerStrategy(recipe(tuner), seed),
            }
        try:
            with only_tensor_intrinsics("x86"):
                deadline.begin()
                ms.relax_integration.tune_relax(mod, {}, target, folder, TRIALS, **common)
        except Exception:
            if not deadline.is_over:
                raise
    found: Row = {"seconds": deadline.seconds, "trials": deadline.trials, "failed": deadline.failed}
    records = [row for row in database.get_all_tuning_records() if row.run_secs and float(row.run_secs[0]) < 1e9]
    best = min(records, key=lambda row: median(map(float, row.run_secs)), default=None)
    if best is None:
        return found | {"best": None, "kernel": None, "workload": None}
    schedule = tvm.s_tir.Schedule(best.workload.mod)
    best.trace.apply_to_schedule(schedule, remove_postproc=False)
    return found | {
        "best": float(median(map(float, best.run_secs))),
        "kernel": tvm.ir.save_json(schedule.mod),
        "workload": tvm.ir.save_json(best.workload.mod),
    }


def processor_time() -> float:
    """Seconds of the processor that this process, those it has started, and those that have ended, have taken."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + ended.ru_utime + ended.ru_stime
    for child in psutil.Process().children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "processor": processor_time}


class Over(Exception):
    """The time is up."""


class Deadline:
    """Tells when a search is over: at its first batch after ``limit`` seconds; counts trials up to then."""

    def __init__(self, limit: float, counts_late: bool, clock: Callable[[], float]) -> None:
        self.limit, self.counts_late, self.clock = limit, counts_late, clock
        self.begin()
        self.seconds, self.trials, self.failed, self.is_over = 0.0, 0, 0, False

    def begin(self) -> None:
        """Start the clock."""
        self.start = self.clock()

    def note(self, runner_results: Sequence[Any]) -> None:
        """Count a batch; raises when the time is up."""
        seconds = self.clock() - self.start
        self.is_over = seconds > self.limit
        if not self.is_over or self.counts_late:
            self.seconds = seconds
            self.trials += len(runner_results)
            self.failed += sum(row.run_secs is None for row in runner_results)
        if self.is_over:
            raise Over


@derived_object
class _EndsAt(PyMeasureCallback):
    """Ends a search at a deadline."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self.deadline = deadline

    def apply(
        self,
        task_scheduler: Any,
        task_id: int,
        measure_candidates: Sequence[Any],
        builder_results: Sequence[Any],
        runner_results: Sequence[Any],
    ) -> None:
        self.deadline.note(runner_results)


def _side_by_side(workload: str, stock: str, ours: str) -> Row:
    """Compile both kernels, compare what they compute with the unscheduled one, and time them in turns."""
    os.environ["TVM_NUM_THREADS"] = "1"
    target = one_core_target()
    texts = {"stock": stock, "ours": ours, "unscheduled": workload}
    with only_tensor_intrinsics("x86"):
        mods = {name: tvm.ir.load_json(text) for name, text in texts.items()}
        functions = {name: build(mod, target)["main"] for name, mod in mods.items()}
    rng = np.random.default_rng(0)
    shapes = arguments_of(mods["unscheduled"])
    inputs = [tvm.runtime.tensor(rng.standard_normal(shape).astype(dtype)) for shape, dtype in shapes[:-1]]
    results = {}
    for name, function in functions.items():
        output = tvm.runtime.tensor(np.zeros(*shapes[-1]))
        function(*inputs, output)
        results[name] = output.numpy()
    scale = float(np.abs(results["unscheduled"]).max())
    for name in ("stock", "ours"):
        if not np.allclose(results[name], results["unscheduled"], atol=1e-4 * scale):
            raise SystemExit(f"the kernel that the search '{name}' found computes something else than the unscheduled")
    times: dict[str, list[float]] = {"stock": [], "ours": []}
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times["ours"]) < FEWEST:
        for name, found in times.items():
            start = time.thread_time()
            functions[name](*inputs, output)
            found.append(time.thread_time() - start)
    stock_us, our_us = (median(found[2:]) * 1e6 for found in times.values())
    return {"stock_us": round(stock_us, 1), "our_us": round(our_us, 1), "ratio": round(our_us / stock_us, 4)}
