"""Tuning on this machine: whole loops, shares of the peak, and the time to what TVM's own search finds.

Parts of ``bench_tuners.py``. TVM's search runs as it comes: strategy, builder, runner and cost model of
``tune_relax``, each run in a process of its own, as in a user's script.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.measure_callback import PyMeasureCallback

import tvm_ext
from scripts.results import kept_or
from tests.zoo import get
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.bench.peak import MultiplyAdds
from tvm_ext.options import PipelineOptions
from tvm_ext.system.tensor_intrinsics import only_tensor_intrinsics
from tvm_ext.system.threads import physical_cores, use_all_cores
from tvm_ext.tuners.measure.measurer import Measurer
from tvm_ext.tuners.measure.worker import Timing
from tvm_ext.tuners.metaschedule.builder import builder_and_runner
from tvm_ext.tuners.recipes import recipe
from tvm_ext.tuners.replay.tasks import TASKS, ConvolutionTask
from tvm_ext.tuning import TuningResult, tune
from tvm_ext.tuning.side_by_side import in_turns

Row = dict[str, Any]
Curve = list[tuple[float, float]]
"""Seconds since the tuning call, and the best latency (seconds) then."""

RESNET18 = tuple(task for task in TASKS if task.name.startswith("resnet18"))
LOOP = next(task for task in RESNET18 if task.name == "resnet18-4")
"""3 x 3 with stride 2, so that no Winograd kernel takes it: those have next to nothing to choose, this has some 2,000
configurations."""

SQUARE = tuple(task for task in RESNET18 if task.kernel == 3 and task.stride == 1 and task.size > 7)
"""The three 3 x 3 convolutions of stride 1 that are large enough for one thread to run at the peak."""


WINNER_SECONDS = 2.0
"""Each winner is timed so long, in turns with the others."""

WARM = Timing(flush=False)
"""Shares of the peak are those of kernels whose weights are in the caches, as other engines give them."""


def convolution(task: ConvolutionTask) -> tvm.IRModule:
    """Make the model of one convolution with ReLU."""
    shape = (task.outputs, task.inputs, task.kernel, task.kernel)
    weights = np.random.default_rng(0).standard_normal(shape).astype("float32")
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((1, task.inputs, task.size, task.size), "float32"))
    with builder.function("main", [data]):
        with builder.dataflow():
            result = relax.op.nn.conv2d(data, relax.const(weights), strides=task.stride, padding=task.padding)
            output = builder.emit_output(relax.op.nn.relu(builder.emit(result)))
        builder.emit_func_output(output)
    return builder.finalize()


def loop(trials: int, seeds: int, keep: Path | None = None) -> list[Row]:
    """Tune one convolution, workers started anew each time: seconds of the whole loop, and trials a second."""
    rows = []
    for seed in range(seeds):
        rows.append(kept_or(keep, {"loop": LOOP.name, "seed": seed, "asked": trials}, partial(_loop, trials, seed)))
        print(rows[-1], flush=True)
    return rows


def _loop(trials: int, seed: int) -> Row:
    threads = physical_cores()
    result, seconds, _ = ours(convolution(LOOP), trials, seed=seed, threads=threads)
    measuring = result.seconds["build"] + result.seconds["run"]
    return {
        "loop": LOOP.name,
        "seed": seed,
        "asked": trials,
        "threads": threads,
        "trials": result.trials,
        "seconds": round(seconds, 2),
        "build_seconds": round(result.seconds["build"], 2),
        "run_seconds": round(result.seconds["run"], 2),
        "trials_per_second": round(result.trials / measuring, 2),
        "best_us": round(result.curve[-1][2] * 1e6, 2),
        "noise": round(float(np.median(result.noise)), 4),
        "load_average": round(os.getloadavg()[0], 2),
    }


def stock_loop(trials: int) -> Row:
    """Tune the same convolution once as TVM does, and time what was found in turns with what ours finds."""
    with tempfile.TemporaryDirectory() as stock, tempfile.TemporaryDirectory() as own:
        curve, seconds = apart(stock_search, LOOP, trials, stock)
        if not curve:
            raise SystemExit(f"TVM's search could measure none of {trials} candidates; give it more --trials")
        ours(convolution(LOOP), trials, threads=physical_cores(), folder=own)
        found = apart(side_by_side, LOOP, {"stock": stock}, own)
    row: Row = {
        "stock_loop": LOOP.name,
        "trials": trials,
        "seconds": round(seconds, 1),
        "best_us": round(curve[-1][1] * 1e6, 1),
        "winner_us": round(found["stock"] * 1e6, 1),
        "our_winner_us": round(found["rules"] * 1e6, 1),
        "load_average": round(os.getloadavg()[0], 2),
    }
    print(row, flush=True)
    return row


def peak_shares(trials: int, seeds: int) -> list[Row]:
    """Tune direct convolutions on one thread: share of the multiply-add peak of the best candidate.

    The peak is the highest of all that are taken before and after each run: a machine whose clock changes would
    otherwise give shares of the peak that it had at another time.
    """
    target, cores = native_target(), physical_cores()
    options = PipelineOptions(winograd=False)
    multiply_adds = MultiplyAdds(target, cores)

    def peak() -> float:
        return multiply_adds.rate(0.5) / cores / 1e9

    rows: list[Row] = []
    peaks = [peak()]
    for task in SQUARE:
        for seed in range(seeds):
            result, seconds, _ = ours(convolution(task), trials, seed=seed, threads=1, options=options, timing=WARM)
            peaks.append(peak())
            kernel = next(row for row in result.kernels if "conv" in row.name)
            if kernel.best is None or kernel.before is None:
                raise SystemExit(f"{task.name}: no candidate could be measured: {kernel.error}")
            rows.append(
                {
                    "peak_share_of": task.name,
                    "seed": seed,
                    "trials": result.trials,
                    "seconds": round(seconds, 2),
                    "peak_gflops": round(peaks[-1], 1),
                    "gflops": round(task.flops / kernel.best / 1e9, 1),
                    "gflops_of_first": round(task.flops / kernel.before / 1e9, 1),
                    "load_average": round(os.getloadavg()[0], 2),
                }
            )
            print(rows[-1], flush=True)
    for row in rows:
        row["share"] = round(row["gflops"] / max(peaks), 4)
        row["share_of_first"] = round(row["gflops_of_first"] / max(peaks), 4)
    return rows


def same_best(trials: int, tasks: Sequence[ConvolutionTask] = RESNET18, keep: Path | None = None) -> list[Row]:
    """Time to what TVM's search finds in ``trials`` measurements: with our rules, and in TVM's own design space."""
    rows = []
    for task in tasks:
        rows.append(kept_or(keep, {"same_best": task.name, "trials": trials}, partial(_same_best, trials, task)))
        print(rows[-1], flush=True)
    return rows


def _same_best(trials: int, task: ConvolutionTask) -> Row:
    with (
        tempfile.TemporaryDirectory() as stock_folder,
        tempfile.TemporaryDirectory() as own_folder,
        tempfile.TemporaryDirectory() as same_folder,
    ):
        stock, stock_seconds = apart(stock_search, task, trials, stock_folder)
        goal, reached = stock[-1][1], _reached(stock, stock[-1][1])
        _, _, with_rules = ours(convolution(task), trials, threads=physical_cores(), folder=own_folder)
        same_space, _ = apart(our_search_in_stock_space, task, trials, same_folder)
        winners = apart(side_by_side, task, {"stock": stock_folder, "same_space": same_folder}, own_folder)
    row: Row = {
        "same_best": task.name,
        "trials": trials,
        "stock_best_us": round(goal * 1e6, 1),
        "stock_seconds": round(stock_seconds, 1),
        "stock_seconds_to_best": round(reached or stock_seconds, 1),
        "load_average": round(os.getloadavg()[0], 2),
    } | {f"{name}_winner_us": round(seconds * 1e6, 1) for name, seconds in winners.items()}
    for name, curve in (("rules", with_rules), ("same_space", same_space)):
        seconds = _reached(curve, goal)
        row[f"{name}_best_us"] = round(curve[-1][1] * 1e6, 1)
        row[f"{name}_reached"] = seconds is not None
        row[f"{name}_seconds_to_best"] = round(curve[-1][0] if seconds is None else seconds, 2)
        row[f"{name}_ratio"] = round(row["stock_seconds_to_best"] / row[f"{name}_seconds_to_best"], 2)
    return row


def summarise_same_best(rows: Sequence[Row]) -> dict[str, float]:
    """Geometric means of the ratios of times, over the tasks where TVM's best was reached, and how many those are.

    Latencies are those of the winners in turns, and not what the searches believed of them.
    """
    summary: dict[str, float] = {"same_best_tasks": len(rows)}
    for name, key in (("rules", "time_to_same_best"), ("same_space", "time_to_same_best_same_space")):
        ratios = [row[f"{name}_ratio"] for row in rows if row[f"{name}_reached"]]
        summary[f"{name}_reached"] = len(ratios)
        if ratios:
            summary[key] = round(geometric_mean(ratios), 2)
        summary[f"{name}_latency_vs_stock"] = round(
            geometric_mean([row[f"{name}_winner_us"] / row["stock_winner_us"] for row in rows]), 4
        )
    return summary


def whole_model(trials: int, name: str = "resnet18") -> list[Row]:
    """Tune a whole model with TVM's search, and with ours in no more time: latency of both, interleaved."""
    with tempfile.TemporaryDirectory() as folder:
        stock_seconds = apart(stock_model_search, name, folder, trials)
        imported = tvm_ext.import_model(get(name).onnx_model())
        with tempfile.TemporaryDirectory() as own:
            result, seconds, _ = ours(imported.mod, trials, threads=physical_cores(), folder=own)
            tuned = tvm_ext.compile(imported, work_dir=own)
        database = ms.database.JSONDatabase(work_dir=folder)
        target = native_target()
        executable = ms.relax_integration.compile_relax(database, imported.mod, target, {})
        machine = relax.VirtualMachine(executable, tvm.cpu())
        inputs = get(name).inputs(0)
        tensors = [tvm.runtime.tensor(inputs[spec.name]) for spec in tuned.inputs]
        other = relax.VirtualMachine(tuned.executable, tvm.cpu())
        stock, own_times = in_turns(
            [partial(machine["main"], *tensors), partial(other["main"], *tensors)], 2 * WINNER_SECONDS
        )
    row = {
        "whole_model": name,
        "trials": trials,
        "stock_seconds": round(stock_seconds, 1),
        "our_seconds": round(seconds, 1),
        "our_trials": result.trials,
        "stock_ms": round(median(stock) * 1e3, 3),
        "our_ms": round(median(own_times) * 1e3, 3),
    }
    print(row, flush=True)
    return [row]


def ours(
    mod: tvm.IRModule,
    trials: int,
    *,
    seed: int = 0,
    threads: int = 1,
    options: PipelineOptions = PipelineOptions(),  # noqa: B008
    folder: str | None = None,
    timing: Timing | None = None,
) -> tuple[TuningResult, float, Curve]:
    """Tune with our rules, workers started anew: result, seconds of the whole call, and best latency over time."""
    start = time.perf_counter()
    curve: Curve = []

    def note(result: TuningResult) -> None:
        if result.curve:
            curve.append((time.perf_counter() - start, result.curve[-1][2]))

    with tempfile.TemporaryDirectory() as own, Measurer(threads=threads, timing=timing) as measurer:
        result = tune(
            mod, native_target(), folder or own, trials, recipe("evolution"),
            seed=seed, options=options, measurer=measurer, progress=note, confirm=False,
        )  # fmt: skip
    return result, time.perf_counter() - start, curve


def stock_search(task: ConvolutionTask, trials: int, folder: str) -> tuple[Curve, float]:
    """Tune one convolution as TVM does: best latency over time, and seconds of the whole call."""
    notes = _Notes()
    ms.relax_integration.tune_relax(
        relax.get_pipeline("zero")(convolution(task)), {}, stock_target(), folder, trials,
        measure_callbacks=[*ms.measure_callback.MeasureCallback.create("default"), notes], seed=1,
    )  # fmt: skip
    return notes.curve, notes.seconds()


def side_by_side(task: ConvolutionTask, in_stock_space: dict[str, str], with_rules: str) -> dict[str, float]:
    """Compile what searches found of a convolution, and time it in turns; medians (seconds) by name.

    Parameters
    ----------
    in_stock_space : dict from str to str
        Folders of searches in TVM's design space.
    with_rules : str
        Folder of ours, in the spaces of our rules; ``rules`` in what is given back.
    """
    use_all_cores()
    mod = convolution(task)
    executables = {"rules": tvm_ext.compile(mod, work_dir=with_rules).executable}
    for name, folder in in_stock_space.items():
        database = ms.database.JSONDatabase(work_dir=folder)
        with only_tensor_intrinsics("x86"):
            executables[name] = ms.relax_integration.compile_relax(database, mod, stock_target(), {})
    data = tvm.runtime.tensor(
        np.random.default_rng(0).standard_normal((1, task.inputs, task.size, task.size)).astype("float32")
    )
    runs = [partial(relax.VirtualMachine(made, tvm.cpu())["main"], data) for made in executables.values()]
    first, *others = (run().numpy() for run in runs)
    if not all(np.allclose(first, other, rtol=1e-3, atol=1e-3) for other in others):
        raise SystemExit(f"{task.name}: what the searches found computes different results")
    laps = in_turns(runs, len(runs) * WINNER_SECONDS)
    return {name: median(found) for name, found in zip(executables, laps, strict=True)}


def our_search_in_stock_space(task: ConvolutionTask, trials: int, folder: str) -> tuple[Curve, float]:
    """Tune one convolution in TVM's design space with our strategy, builder and runner."""
    notes = _Notes()
    with Measurer() as measurer:
        builder, runner = builder_and_runner(measurer)
        with only_tensor_intrinsics("x86"):
            ms.relax_integration.tune_relax(
                relax.get_pipeline("zero")(convolution(task)), {}, stock_target(), folder, trials,
                num_trials_per_iter=16, builder=builder, runner=runner, cost_model=ms.cost_model.RandomModel(),
                measure_callbacks=[*ms.measure_callback.MeasureCallback.create("default"), notes],
                strategy=tvm_ext.tuners.evolution(), seed=1,
            )  # fmt: skip
    return notes.curve, notes.seconds()


def stock_model_search(name: str, folder: str, trials: int) -> float:
    """Tune a model of the zoo as TVM does; seconds of the whole call."""
    mod = tvm_ext.import_model(get(name).onnx_model()).mod
    notes = _Notes()
    ms.relax_integration.tune_relax(
        relax.get_pipeline("zero")(mod), {}, stock_target(), folder, trials, num_trials_per_iter=16, seed=1
    )
    return notes.seconds()


def stock_target() -> tvm.target.Target:
    """Give the target of this machine with the number of cores, which TVM's design space needs."""
    return tvm.target.Target({**native_target().export(), "num-cores": physical_cores()})


@derived_object
class _Notes(PyMeasureCallback):
    """Notes the best latency over time, for one task."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.curve = time.perf_counter(), []

    def seconds(self) -> float:
        return time.perf_counter() - self.start

    def apply(
        self,
        task_scheduler: Any,
        task_id: int,
        measure_candidates: Sequence[Any],
        builder_results: Sequence[Any],
        runner_results: Sequence[Any],
    ) -> None:
        times = [median(map(float, row.run_secs)) for row in runner_results if row.run_secs is not None]
        best = min([*times, *(latency for _, latency in self.curve[-1:])], default=None)
        if best is not None:
            self.curve.append((self.seconds(), best))


def _reached(curve: Curve, goal: float) -> float | None:
    return next((seconds for seconds, latency in curve if latency <= goal), None)


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call in a process of its own, which imports everything anew."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()
