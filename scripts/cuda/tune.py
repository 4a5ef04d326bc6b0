"""Tuners against TVM's evolutionary search on a GPU: convolutions of AlexNet, VGG-16 and ResNet-18, batch 1.

Every search makes the same number of measurements, in the same batches, with the same builder (warm workers, all cores)
and the same runner, so that what differs is where the searches look. ``metaschedule`` is TVM's evolutionary search with
its cost model in its own design space; a tuner's name alone is that tuner in the space of this package's rules,
and ``NAME@tvm`` the same tuner in TVM's space. At the end the fastest kernels of all searches of a task are compared
with the unscheduled kernel, and timed once more in turns.

Where there is no time for all, later tasks are left out: ``--seconds`` begins nothing new, and ``--keep`` goes on.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.measure_callback import PyMeasureCallback

from scripts.cuda.emulate import drawn, reference
from scripts.cuda.rehearsed_measurer import RehearsedMeasurer
from scripts.cuda.tuner_tables import summarised, table
from scripts.results import add_keep_option, add_row, read_rows
from scripts.tuning_loops import convolution
from tvm_ext.backends.cuda.toolkit import can_compile, find_toolkit
from tvm_ext.backends.registry import backend_of
from tvm_ext.options import PipelineOptions
from tvm_ext.schedules.rule import tunable_schedule
from tvm_ext.system.tensor_intrinsics import only_tensor_intrinsics
from tvm_ext.system.threads import physical_cores
from tvm_ext.target import resolve_target
from tvm_ext.tuners.initialisers import ValidityInitialiser
from tvm_ext.tuners.measure.code import build
from tvm_ext.tuners.measure.measurer import Measurer, arguments_of
from tvm_ext.tuners.metaschedule.builder import builder_and_runner
from tvm_ext.tuners.metaschedule.strategy import TunerStrategy
from tvm_ext.tuners.recipe import Recipe
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuners.replay.tasks import TASKS, ConvolutionTask
from tvm_ext.tuning import kernels_to_tune

Row = dict[str, Any]
STOCK = "metaschedule"
ARMS = (STOCK, "chameleon", "glimpse", "chameleon_validity", "chameleon@tvm", "chameleon_validity@tvm")
FIRST = ("resnet18-9", "vgg16-9", "alexnet-3", "resnet18-6", "vgg16-6", "alexnet-4")
"""Tasks that a short run has: two of each network, of different images."""

BATCH = 16
TOLERANCE = {"float32": 1e-4, "float16": 2e-2}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--tasks", nargs="+", default=FIRST, help="names of tasks, or 'all'; of few by default")
    parser.add_argument("--arms", nargs="+", default=ARMS, help="searches to compare; the first is compared with")
    parser.add_argument("--trials", type=int, default=64, help="measurements of a search")
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9, help="of the run; searches end after so many")
    parser.add_argument("--workers", type=int, help="processes that compile; the physical cores by default")
    parser.add_argument("--recorded", action="store_true", help="make figures of what --keep holds; run nothing")
    parser.add_argument("--rehearse", action="store_true", help="with the cost model in the place of the GPU")
    add_keep_option(parser)


def measure(arguments: argparse.Namespace) -> tuple[list[Row], dict[str, float]]:
    """Run the searches that are not kept yet; gives their rows."""
    if not arguments.recorded:
        _run_all(arguments)
    rows = read_rows(arguments.keep) if arguments.keep else arguments.rows
    print(table(rows, STOCK))
    summary = summarised(rows, STOCK)
    if arguments.rehearse:
        print(f"{len(rows)} rows rehearsed: no figure comes of it")
        raise SystemExit(0)
    return rows, summary


def _run_all(arguments: argparse.Namespace) -> None:
    end = time.perf_counter() + arguments.seconds
    arguments.rows = read_rows(arguments.keep)
    target, machine = _machine(arguments.rehearse)
    names = [task.name for task in TASKS] if arguments.tasks == ["all"] else list(arguments.tasks)
    by_name = {task.name: task for task in TASKS}
    if unknown := [name for name in names if name not in by_name]:
        raise SystemExit(f"there is no task {', '.join(unknown)}; there are {', '.join(by_name)}")
    with _measurer(target, arguments) as measurer:
        if not arguments.rehearse:
            print(f"workers warm after {_warm(measurer, target):.1f} s", flush=True)
        for name in names:
            _one_task(by_name[name], target, machine, measurer, arguments, end)
            if time.perf_counter() > end:
                print(f"stopped behind {name}: {arguments.seconds:g} s are over", flush=True)
                return


def _machine(rehearsed: bool) -> tuple[tvm.target.Target, str]:
    if rehearsed:
        return _target("sm_90"), "the cost model"
    device = tvm.cuda(0)
    if not device.exist:
        raise SystemExit("there is no GPU here; --rehearse goes the same way with the cost model in its place")
    if missing := can_compile():
        raise SystemExit(missing)
    arch = "sm_" + str(device.compute_version).replace(".", "")
    return _target(arch), str(device.device_name)


def _target(arch: str) -> tvm.target.Target:
    """Give the target with the limits that TVM's design space asks for."""
    limits = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 48 << 10, "thread_warp_size": 32}
    return resolve_target({"kind": "cuda", "arch": arch, **limits})


def _measurer(target: tvm.target.Target, arguments: argparse.Namespace) -> Any:
    if arguments.rehearse:
        return RehearsedMeasurer(target, find_toolkit())
    return Measurer(workers=arguments.workers)


def _doubled(x: Any) -> Any:
    return tvm.te.compute(x.shape, lambda i: x[i] * 2.0, name="y")


def _warm(measurer: Measurer, target: tvm.target.Target) -> float:
    """Have every worker compile and time something; no search is to pay for that."""
    start = time.perf_counter()
    schedules = []
    for number in range(3 * physical_cores()):
        x = tvm.te.placeholder((1024 + number,), name="x")
        func = tvm.te.create_prim_func([x, _doubled(x)])
        schedules.append(tunable_schedule(func, target, backend_of(target).rules))
    rows = [measurer.candidate(schedule.mod, target) for schedule in schedules]
    measurer.build(rows)
    measurer.run_all([(row, "cuda", arguments_of(item.mod)) for row, item in zip(rows, schedules, strict=True)])
    if faults := [row.error for row in rows if row.error]:
        raise SystemExit(f"{len(faults)} of {len(rows)} kernels for warming up failed: {faults[0]}")
    measurer.forget()
    return time.perf_counter() - start


def _one_task(
    task: ConvolutionTask, target: tvm.target.Target, machine: str, measurer: Any, arguments: Any, end: float
) -> None:
    """Run the searches of a task, and time their fastest kernels in turns."""
    options = PipelineOptions(precision=arguments.dtype)
    mod = kernels_to_tune(convolution(task), target, here=False, options=options)[0].mod
    best: dict[str, str] = {}
    rows: list[Row] = []
    for arm in arguments.arms:
        key = {
            "machine": machine, "task": task.name, "dtype": arguments.dtype, "arm": arm, "asked": arguments.trials,
            "seed": arguments.seed,
        }  # fmt: skip
        known = [row for row in arguments.rows if all(row.get(name) == value for name, value in key.items())]
        if known:
            rows.append(known[0])
        elif time.perf_counter() < end:
            rows.append(key | _search(mod, target, arm, measurer, arguments, end))
            print({name: value for name, value in rows[-1].items() if name not in ("kernel", "curve")}, flush=True)
        else:
            continue
        if rows[-1].get("kernel"):
            best[arm] = rows[-1]["kernel"]
    found = {} if arguments.rehearse else _in_turns(mod, best, target, measurer, arguments.dtype)
    for row in rows:
        if "latency_us" not in row:
            row |= {"network": task.network, "flops": task.flops} | found.get(row["arm"], {"latency_us": None})
            if row.get("best_us") is not None and row["latency_us"] is None and arguments.rehearse:
                row["latency_us"] = row["best_us"]
            add_row(arguments.keep, row)
            arguments.rows.append(row)


def _search(mod: tvm.IRModule, target: tvm.target.Target, arm: str, measurer: Any, arguments: Any, end: float) -> Row:
    """Run one search; what it found, and when."""
    if not arguments.rehearse:
        measurer.forget()
    database = ms.database.MemoryDatabase()
    notes = _Notes(end)
    builder, runner = builder_and_runner(measurer)
    tuner, _, space = arm.partition("@")
    strategy = "evolutionary" if arm == STOCK else TunerStrategy(_recipe(tuner, arguments.trials), arguments.seed)
    in_tensor_cores = arguments.dtype == "float16"
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, only_tensor_intrinsics(*(["cuda"] if in_tensor_cores else [])):
        context = ms.TuneContext(
            mod, target=target, space_generator=_space(target, arm == STOCK or space == "tvm", in_tensor_cores),
            search_strategy=strategy, task_name="main", rand_state=arguments.seed + 1, num_threads=physical_cores(),
        )  # fmt: skip
        try:
            ms.tune.tune_tasks(
                tasks=[context], task_weights=[1.0], work_dir=folder, max_trials_global=arguments.trials,
                max_trials_per_task=arguments.trials, num_trials_per_iter=BATCH, builder=builder, runner=runner,
                database=database, cost_model="xgb" if arm == STOCK else ms.cost_model.RandomModel(),
                measure_callbacks=[ms.measure_callback.AddToDatabase(), notes],
            )  # fmt: skip
        except Exception as error:
            if not notes.over:
                return {"trials": notes.trials, "fault": " ".join(str(error).split())[:300], "best_us": None}
    row: Row = {
        "trials": notes.trials, "failed": notes.failed, "seconds": round(time.perf_counter() - start, 2),
        "stopped": notes.over, "curve": notes.curve, "best_us": notes.best and round(notes.best * 1e6, 3),
        "searching": round(getattr(strategy, "search_seconds", 0.0), 2), "notes": list(getattr(strategy, "notes", ())),
    }  # fmt: skip
    records = [record for record in database.get_all_tuning_records() if _seconds(record) < 1e9]
    if records:
        record = min(records, key=_seconds)
        schedule = Schedule(mod)
        record.trace.apply_to_schedule(schedule, remove_postproc=False)
        row["kernel"] = tvm.ir.save_json(schedule.mod)
    return row


def _recipe(name: str, trials: int) -> Recipe:
    """Look a tuner up; of a validity oracle it asks for twice as many configurations as are measured beforehand."""
    row = recipe(name, batch=BATCH, initial=BATCH)
    if not isinstance(row.initialiser(), ValidityInitialiser):
        return row
    return replace(row, initialiser=partial(ValidityInitialiser, samples=2 * trials))


def _space(target: tvm.target.Target, stock: bool, tensor_cores: bool) -> ms.SpaceGenerator:
    if stock:
        kind = "cuda-tensorcore" if tensor_cores else "cuda"
        return ms.space_generator.PostOrderApply(sch_rules=kind, postprocs=kind, mutator_probs=kind)

    def rules(schedule: Schedule) -> Schedule:
        return tunable_schedule(schedule.mod["main"], target, backend_of(target).rules)

    return ms.space_generator.ScheduleFn(rules, sch_rules=[], postprocs=[], mutator_probs={})


def _seconds(record: ms.database.TuningRecord) -> float:
    return float(np.median([float(value) for value in record.run_secs])) if record.run_secs else 1e10


@derived_object
class _Notes(PyMeasureCallback):
    """Notes measurements, seconds and the best latency after each batch, and ends the search when time is over."""

    def __init__(self, end: float) -> None:
        super().__init__()
        self.start, self.end = time.perf_counter(), end
        self.trials, self.failed, self.over = 0, 0, False
        self.best: float | None = None
        self.curve: list[tuple[int, float, float | None]] = []

    def apply(
        self,
        task_scheduler: Any,
        task_id: int,
        measure_candidates: Sequence[Any],
        builder_results: Sequence[Any],
        runner_results: Sequence[Any],
    ) -> None:
        for result in runner_results:
            self.trials += 1
            if result.run_secs is None:
                self.failed += 1
                continue
            seconds = float(np.median([float(value) for value in result.run_secs]))
            self.best = seconds if self.best is None else min(self.best, seconds)
        elapsed = round(time.perf_counter() - self.start, 2)
        self.curve.append((self.trials, elapsed, self.best and round(self.best * 1e6, 3)))
        if time.perf_counter() > self.end:
            self.over = True
            raise TimeoutError("the time of the run is over")


def _in_turns(
    mod: tvm.IRModule, kernels: dict[str, str], target: tvm.target.Target, measurer: Measurer, dtype: str
) -> dict[str, Row]:
    """Compare the fastest kernels of all searches with the unscheduled one, and time them in turns."""
    if not kernels:
        return {}
    mods = {arm: tvm.ir.load_json(text) for arm, text in kernels.items()}
    arrays = drawn(mod["main"])
    expected = reference(mod["main"], arrays)[-1].astype(np.float64)
    scale = float(np.abs(expected).max()) or 1.0
    found: dict[str, Row] = {}
    for arm, made in mods.items():
        tensors = [tvm.runtime.tensor(array, tvm.cuda(0)) for array in arrays]
        with only_tensor_intrinsics(*(["cuda"] if dtype == "float16" else [])):
            build(made, target)["main"](*tensors)
        error = float(np.abs(tensors[-1].numpy().astype(np.float64) - expected).max()) / scale
        found[arm] = {"latency_us": None, "error": error}
        if not error <= TOLERANCE[dtype]:
            found[arm]["fault"] = f"differs by {error:.1e} of the largest number"
    right = [arm for arm, row in found.items() if "fault" not in row]
    rows = [measurer.candidate(mods[arm], target) for arm in right]
    (times,) = measurer.compare([(rows, "cuda", arguments_of(mod))])
    for arm, laps in zip(right, times or [], strict=bool(times)):
        found[arm]["latency_us"] = round(float(np.median(laps)) * 1e6, 3)
    return found


if __name__ == "__main__":
    os.environ.setdefault("TVM_NUM_THREADS", str(physical_cores()))
    raise SystemExit(f"run scripts/bench_cuda.py {Path(__file__).stem}")
