"""Measure models with open dimensions: right at every size, how much of their shapes is known, latency, memory.

Run: python scripts/bench_dynamic.py [--part shapes|latency|memory] [--quick] [--keep FILE] [--json PATH]

Latencies are processor time of one thread (``TVM_NUM_THREADS=1``), the best of several measurements in turns of a few
runs each, so that a busy machine disturbs them little. Memory is what a process takes more at its peak than before its
first run, at the largest sizes, one process for each model and engine.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TVM_NUM_THREADS", "1")

import numpy as np
import onnxruntime
import tvm
from numpy.typing import NDArray
from tvm import relax

import tvm_ext
from scripts.dynamic_trained import TRAINED, TRAINED_CASES
from scripts.results import add_json_option, add_keep_option, kept_or, result_path, store
from tests.shapes.dynamic_model import DynamicModel
from tests.shapes.dynamic_models import MODELS
from tvm_ext.artifact.arguments import tensors
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.compiler import lower
from tvm_ext.dynamic import OpenDimension, open_dimensions
from tvm_ext.errors import UnsupportedOperatorError
from tvm_ext.frontend import import_model
from tvm_ext.frontend.onnx.converter_types import converter_types
from tvm_ext.frontend.onnx.model import load_onnx
from tvm_ext.frontend.onnx.operator_graph import known_constants, operator_graph
from tvm_ext.frontend.onnx.prepare import prepare
from tvm_ext.frontend.onnx.support import is_supported
from tvm_ext.memory.relax.segment_code import SEGMENT_ATTRIBUTE
from tvm_ext.options import PipelineOptions
from tvm_ext.shapes.operator_graph import Graph
from tvm_ext.shapes.propagate import propagate
from tvm_ext.shapes.subgraphs import shares

TIMED = ("mlp", "attention_block", "conformer", "lstm", "pyramid", *TRAINED_CASES)
SIZES, TIMED_SIZES, RUNS, TURNS, REPEATS = 50, 6, 7, 3, 5
LONG_SECONDS = 2e-3
"""From here on a run is measured by itself, six times."""

LARGE = {
    "mlp": {"n": (1, 200_000)},
    "conformer": {"n": (1, 8), "time": (4, 4_000)},
    "cnn_by_shape": {"n": (1, 4), "h": (5, 1_024), "w": (5, 1_024)},
    "pyramid": {"n": (1, 2), "h": (8, 1_024), "w": (8, 1_024)},
}
"""Models whose memory is measured, with ranges whose upper ends take megabytes."""

ENGINES = ("tvm_ext", "onnxruntime", "tvm")


def shape_rows(quick: bool, keep: Path | None) -> Iterator[dict[str, Any]]:
    """Compare every model with onnxruntime at its sizes, and count what is known of it."""
    for name in MODELS:
        sizes = SIZES if not quick else 5 if name in ("mlp", "slices") else 0
        yield kept_or(keep, {"part": "shapes", "model": name}, partial(shape_row, name, sizes))
    for name, (wheel, file, _) in TRAINED.items():
        if wheel.path(file).exists():
            yield kept_or(keep, {"part": "shapes", "model": name}, partial(trained_row, name))


def shape_row(name: str, sizes: int) -> dict[str, Any]:
    """Measure one model."""
    case = MODELS[name]()
    found = shares(propagate(operator_graph(case.model, open_dimensions(case.dynamic))))
    row = {"part": "shapes", "model": name, **known(found), "sizes": 0, "wrong": 0, "refused": ""}
    if sizes:
        try:
            row |= compared(case, sizes)
        except UnsupportedOperatorError as error:
            row["refused"] = str(error)[:200]
    print(row, flush=True)
    return row


def trained_row(name: str) -> dict[str, Any]:
    """Count what is known of a trained model."""
    wheel, file, input_shapes = TRAINED[name]
    found = shares(propagate(prepared_graph(wheel.path(file), input_shapes)))
    row = {"part": "shapes", "model": name, **known(found), "sizes": 0, "wrong": 0, "refused": ""}
    print(row, flush=True)
    return row


def prepared_graph(path: Path, input_shapes: Mapping[str, list[int | str]]) -> Graph:
    """Read a model as it is imported: folded as far as its sizes allow."""
    names = {dim for shape in input_shapes.values() for dim in shape if isinstance(dim, str)}
    asked = {name: OpenDimension(name, 32, 640) for name in names}
    prepared = prepare(load_onnx(path), input_shapes, is_supported, converter_types, asked)
    return operator_graph(prepared.skeleton, asked, known_constants(prepared.constants))


def known(found: Any) -> dict[str, Any]:
    """Count the parts and operators of a graph."""
    parts = [part.knowledge != "not constant" for part in found.parts]
    sizes = [len(part.operators) for part in found.parts]
    return {
        "parts": len(parts), "known_parts": sum(parts), "operators": sum(sizes),
        "known_operators": sum(size for size, yes in zip(sizes, parts, strict=True) if yes),
    }  # fmt: skip


def compared(case: DynamicModel, count: int) -> dict[str, int]:
    """Run a model at many sizes."""
    session = onnxruntime.InferenceSession(case.model.SerializeToString())
    model = tvm_ext.compile(case.model, dynamic=case.dynamic)
    wrong = 0
    for seed, sizes in enumerate(case.sizes(count)):
        feeds = case.feeds(sizes, seed)
        pairs = zip(session.run(None, feeds), model.run(feeds).values(), strict=True)
        wrong += not all(a.shape == b.shape and np.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in pairs)
    return {"sizes": count, "wrong": wrong}


def shape_summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Sum up."""

    def total(key: str) -> int:
        return sum(row[key] for row in rows)

    return {
        "wrong_shapes": total("wrong"),
        "compared_models": sum(row["sizes"] > 0 for row in rows),
        "compared_inputs": total("sizes"),
        "refused_models": sum(bool(row["refused"]) for row in rows),
        "known_share": round(total("known_parts") / total("parts"), 4),
        "known_operator_share": round(total("known_operators") / total("operators"), 4),
        "known_models": len(rows),
    }


def latency_rows(quick: bool, keep: Path | None) -> Iterator[dict[str, Any]]:
    """Time each model at several sizes beside its own static build and onnxruntime."""
    present = [name for name in TIMED if name in MODELS or TRAINED_CASES[name][0].path(TRAINED_CASES[name][1]).exists()]
    for name in present[:1] if quick else present:
        for seed, sizes in enumerate(case_of(name).sizes(2 if quick else TIMED_SIZES)):
            key = {"part": "latency", "model": name, "seed": seed}
            yield kept_or(keep, key, partial(latency_row, key, name, seed, sizes))
    yield kept_or(keep, {"part": "dispatch"}, lambda: {"part": "dispatch", "microseconds": dispatch_microseconds()})


def case_of(name: str) -> DynamicModel:
    """Make a model that is timed."""
    return MODELS[name]() if name in MODELS else TRAINED_CASES[name][2]()


def latency_row(key: Mapping[str, Any], name: str, seed: int, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Time a model at one size."""
    case, open_model, stock, session = contenders_of(name)
    feeds = case.feeds(sizes, seed)
    static = tvm_ext.compile(case.model, input_shapes={key: array.shape for key, array in feeds.items()})
    row = {**key, "sizes": dict(sizes), **times(feeds, open_model, static, session, stock)}
    print(row, flush=True)
    return row


@cache
def contenders_of(name: str) -> tuple[DynamicModel, Any, Callable[..., Any] | None, onnxruntime.InferenceSession]:
    """Compile a model once for all sizes: with this package, with TVM's own pipeline, and in onnxruntime."""
    case = case_of(name)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(case.model.SerializeToString(), options)
    return case, tvm_ext.compile(case.model, dynamic=case.dynamic), stock_main(case), session


def times(
    feeds: Mapping[str, np.ndarray], open_model: Any, static: Any, session: Any, stock: Callable[..., Any] | None
) -> dict[str, float]:
    """Give microseconds of processor time a run, from arrays to arrays; results of all are compared first."""
    contenders: dict[str, Callable[[], Any]] = {
        "dynamic": lambda: list(open_model.run(feeds).values()),
        "static": lambda: list(static.run(feeds).values()),
        "onnxruntime": lambda: session.run(None, feeds),
    }
    if stock is not None:

        def stock_run() -> list[NDArray[Any]]:
            given = [tvm.runtime.tensor(feeds[spec.name]) for spec in open_model.inputs]
            return [tensor.numpy() for tensor in tensors(stock(*given))]

        contenders["tvm"] = stock_run
    expected = session.run(None, feeds)
    best, repeats = dict.fromkeys(contenders, float("inf")), dict.fromkeys(contenders, REPEATS)
    for name, run in contenders.items():
        for found, wanted in zip(run(), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3, err_msg=name)
        start = time.process_time()
        run()
        repeats[name] = REPEATS if time.process_time() - start < LONG_SECONDS else 1
    for _ in range(TURNS):
        for name, run in contenders.items():
            run()
            for _ in range(RUNS if repeats[name] > 1 else 2):
                start = time.process_time()
                for _ in range(repeats[name]):
                    run()
                best[name] = min(best[name], 1e6 * (time.process_time() - start) / repeats[name])
    return {name: round(value, 1) for name, value in best.items()}


def stock_main(case: DynamicModel) -> Callable[..., Any] | None:
    """Compile the imported model with TVM's own pipeline; None where that refuses it."""
    try:
        module = import_model(case.model, dynamic=case.dynamic).mod
        return relax.VirtualMachine(tvm.compile(module, native_target()), tvm.cpu())["main"]
    except Exception as error:  # TVM raises whatever its C++ side threw
        print(case.name, "stock TVM:", " ".join(str(error).split())[:120], flush=True)
        return None


def dispatch_microseconds() -> float:
    """Time a call and the choice among versions in a kernel: a model of products on no rows, over its kernels."""
    case = MODELS["mlp"]()
    model = tvm_ext.compile(case.model, dynamic=case.dynamic)
    empty = [tvm.runtime.tensor(np.zeros((0, 17), "float32"))]
    runs, best = 2000, float("inf")
    for _ in range(5):
        start = time.process_time()
        for _ in range(runs):
            model.virtual_machine["main"](*empty)
        best = min(best, 1e6 * (time.process_time() - start) / runs)
    return round(best / 3, 4)


def memory_rows(quick: bool, keep: Path | None) -> Iterator[dict[str, Any]]:
    """Measure memory at the largest sizes, and plans of arenas over what is alive at several."""
    for name in list(LARGE)[:1] if quick else LARGE:
        yield kept_or(keep, {"part": "memory", "model": name}, partial(memory_row, name))


def memory_row(name: str) -> dict[str, Any]:
    """Measure one model, each engine in a process of its own."""
    case = replace(MODELS[name](), limits=LARGE[name])
    row: dict[str, Any] = {"part": "memory", "model": name, "sizes": dict(case.sizes(2)[1])}
    for engine in ENGINES:
        command = [sys.executable, __file__, "--worker", f"{engine}:{name}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = [int(word) for word in done.stdout.split()[-2:]] if done.returncode == 0 else [None, None]
        row[engine] = found[1]
        row["results"] = found[0] or row.get("results")
    plans = arena_plans(case)
    row |= {"arenas": len(plans), "plan_over_live": max((max(plan["ratios"]) for plan in plans), default=1.0)}
    print(row, flush=True)
    return row


def arena_plans(case: DynamicModel) -> list[dict[str, Any]]:
    """List the plans of arenas of open sizes, each with its ratios at four sizes of the range."""
    module = import_model(case.model, dynamic=case.dynamic).mod
    lowered, *_ = lower(module, native_target(), PipelineOptions())
    attributes = [func.attrs for func in lowered.functions.values() if isinstance(func, tvm.tirx.PrimFunc)]
    found = [json.loads(str(row[SEGMENT_ATTRIBUTE])) for row in attributes if row and SEGMENT_ATTRIBUTE in row]
    return [plan for plan in found if plan.get("ratios")]


def worker(what: str) -> int:
    """Print the bytes of a model's results, and those that runs in one engine take at their peak beside what was there.

    Before them the model runs once at its smallest sizes: TVM's engines write machine code then, which takes 50 MB.
    """
    engine, name = what.split(":")
    case = replace(MODELS[name](), limits=LARGE[name])
    small, large = (case.feeds(sizes) for sizes in case.sizes(2)[:2])
    run: Callable[[dict[str, NDArray[Any]]], Any]
    if engine == "onnxruntime":
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(case.model.SerializeToString(), options)
        run = lambda feeds: session.run(None, feeds)  # noqa: E731
    elif engine == "tvm":
        main = stock_main(case)
        if main is None:
            return 1
        given = {id(feeds): [tvm.runtime.tensor(array) for array in feeds.values()] for feeds in (small, large)}
        run = lambda feeds: main(*given[id(feeds)])  # noqa: E731
    else:
        model = tvm_ext.compile(case.model, dynamic=case.dynamic)
        run = model.run
    run(small)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what compiling left free would otherwise be taken without being counted
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak so far is forgotten
    before = status_bytes("VmRSS")
    for _ in range(3):
        found = run(large)
    peak = status_bytes("VmHWM") - before
    results = list(found.values()) if isinstance(found, dict) else tensors(found) if engine == "tvm" else found
    print(sum(int(np.prod(result.shape)) * np.dtype(str(result.dtype)).itemsize for result in results), peak)
    return 0


def status_bytes(field: str) -> int:
    """Read a number of bytes from what the system knows of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def memory_summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Take geometric means."""

    def mean(other: str, ours: str = "tvm_ext") -> float:
        ratios = [np.log(row[other] / row[ours]) for row in rows if row[other] and row[ours]]
        return round(float(np.exp(np.mean(ratios))), 4) if ratios else 0.0

    return {
        "memory_vs_onnxruntime": mean("onnxruntime"),
        "memory_vs_tvm": mean("tvm"),
        "results_alone_vs_tvm": mean("tvm", "results"),
        "memory_models": len(rows),
        "plan_over_live": round(max(row["plan_over_live"] for row in rows), 4),
        "planned_arenas": sum(row["arenas"] for row in rows),
    }


def latency_summary(every: list[dict[str, Any]]) -> dict[str, float]:
    """Take geometric means."""
    rows = [row for row in every if row["part"] == "latency"]

    def mean(other: str) -> float:
        return round(float(np.exp(np.mean([np.log(row["dynamic"] / row[other]) for row in rows]))), 4)

    beside_stock = [row["dynamic"] / row["tvm"] for row in rows if "tvm" in row]
    return {
        "vs_tvm_dynamic": round(float(np.exp(np.mean(np.log(beside_stock)))), 4) if beside_stock else 0.0,
        "vs_tvm_models": len({row["model"] for row in rows if "tvm" in row}),
        "dispatch_microseconds": next(row["microseconds"] for row in every if row["part"] == "dispatch"),
        "dynamic_over_static": mean("static"),
        "dynamic_over_static_worst": round(max(row["dynamic"] / row["static"] for row in rows), 4),
        "vs_onnxruntime_dynamic": mean("onnxruntime"),
        "timed_models": len({row["model"] for row in rows}),
    }


def main() -> int:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("shapes", "latency", "memory"), help="only this part")
    parser.add_argument("--quick", action="store_true", help="few models and sizes, for the screen")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    add_keep_option(parser)
    add_json_option(parser, "dynamic")
    arguments = parser.parse_args()
    path = result_path("dynamic", arguments.json, not arguments.quick)
    warnings.simplefilter("ignore")
    if arguments.worker:
        return worker(arguments.worker)
    if arguments.part in (None, "shapes"):
        rows = list(shape_rows(arguments.quick, arguments.keep))
        summary = shape_summary(rows)
        print(summary)
        store(
            path, "dynamic", rows, summary, part="shapes", notes=("known_*: all models, trained ones from wheels too",)
        )
    if arguments.part in (None, "latency"):
        rows = list(latency_rows(arguments.quick, arguments.keep))
        summary = latency_summary(rows)
        print(summary)
        store(path, "dynamic", rows, summary, part="latency", notes=("microseconds of processor time, one thread",))
    if arguments.part in (None, "memory"):
        rows = list(memory_rows(arguments.quick, arguments.keep))
        summary = memory_summary(rows)
        print(summary)
        store(path, "dynamic", rows, summary, part="memory", notes=("bytes at the peak beside those before runs",))
    return 0


if __name__ == "__main__":
    sys.exit(main())
