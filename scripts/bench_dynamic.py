"""Measure models with open dimensions: right at every size, how much of their shapes is known, latency, memory.

Run: python scripts/bench_dynamic.py [--part shapes|latency|memory] [--quick] [--json PATH]

Latencies are processor time of one thread (``TVM_NUM_THREADS=1``), the best of several measurements in turns of a few
runs each, so that a busy machine disturbs them little. Memory is what a process takes more at its peak than before its
first run, at the largest sizes, one process for each model and engine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
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
from scripts.results import add_json_option, result_path, store
from tests.shapes.dynamic_model import DynamicModel
from tests.shapes.dynamic_models import MODELS
from tests.zoo.wheels import RAPIDOCR, SILERO
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
from tvm_ext.memory.relax.open_segments import SEGMENT_ATTRIBUTE
from tvm_ext.options import PipelineOptions
from tvm_ext.shapes.operator_graph import Graph
from tvm_ext.shapes.propagate import propagate
from tvm_ext.shapes.subgraphs import shares

TRAINED = {
    "ppocr_det": (RAPIDOCR, "ch_PP-OCRv4_det_infer.onnx", {"x": ["n", 3, "h", "w"]}),
    "ppocr_rec": (RAPIDOCR, "ch_PP-OCRv4_rec_infer.onnx", {"x": ["n", 3, 48, "w"]}),
    "ppocr_cls": (RAPIDOCR, "ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": ["n", 3, 48, "w"]}),
    "silero_vad_sequence": (SILERO, "silero_vad_16k_sequence.onnx", {"input": ["n", 576]}),
    "silero_vad_half": (SILERO, "silero_vad_half.onnx", {"input": ["n", 576], "state": [2, "n", 128]}),
    "silero_vad": (SILERO, "silero_vad.onnx", {"input": ["n", 576], "state": [2, "n", 128]}),
}
TIMED = ("mlp", "attention_block", "conformer", "lstm", "pyramid")
SIZES, TIMED_SIZES, RUNS, TURNS, REPEATS = 50, 6, 7, 3, 5

LARGE = {
    "mlp": {"n": (1, 200_000)},
    "conformer": {"n": (1, 8), "time": (4, 4_000)},
    "cnn_by_shape": {"n": (1, 4), "h": (5, 1_024), "w": (5, 1_024)},
    "pyramid": {"n": (1, 2), "h": (8, 1_024), "w": (8, 1_024)},
}
"""Models whose memory is measured, with ranges whose upper ends take megabytes."""

ENGINES = ("tvm_ext", "onnxruntime", "tvm")


def shape_rows(quick: bool) -> list[dict[str, Any]]:
    """Compare every model with onnxruntime at its sizes, and count what is known of it."""
    rows = []
    for name, make in MODELS.items():
        case = make()
        found = shares(propagate(operator_graph(case.model, open_dimensions(case.dynamic))))
        row = {"model": name, **known(found), "sizes": 0, "wrong": 0, "refused": ""}
        if not quick or name in ("mlp", "slices"):
            try:
                row |= compared(case, 5 if quick else SIZES)
            except UnsupportedOperatorError as error:
                row["refused"] = str(error)[:200]
        rows.append(row)
        print(row, flush=True)
    for name, (wheel, file, input_shapes) in TRAINED.items():
        if wheel.path(file).exists():
            found = shares(propagate(prepared_graph(wheel.path(file), input_shapes)))
            rows.append({"model": name, **known(found), "sizes": 0, "wrong": 0, "refused": ""})
            print(rows[-1], flush=True)
    return rows


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


def latency_rows(quick: bool) -> Iterator[dict[str, Any]]:
    """Time each model at several sizes beside its own static build and onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    for name in TIMED[:1] if quick else TIMED:
        case = MODELS[name]()
        session = onnxruntime.InferenceSession(case.model.SerializeToString(), options)
        open_model = tvm_ext.compile(case.model, dynamic=case.dynamic)
        stock = stock_main(case)
        for seed, sizes in enumerate(case.sizes(2 if quick else TIMED_SIZES)):
            feeds = case.feeds(sizes, seed)
            static = tvm_ext.compile(case.model, input_shapes={key: array.shape for key, array in feeds.items()})
            row = {"model": name, "sizes": dict(sizes)} | times(feeds, open_model, static, session, stock)
            print(row, flush=True)
            yield row


def times(
    feeds: Mapping[str, np.ndarray], open_model: Any, static: Any, session: Any, stock: Callable[..., Any] | None
) -> dict[str, float]:
    """Give microseconds of processor time a run."""
    contenders: dict[str, Callable[[], Any]] = {
        "dynamic": lambda: open_model.run(feeds),
        "static": lambda: static.run(feeds),
        "onnxruntime": lambda: session.run(None, feeds),
    }
    if stock is not None:
        given = [tvm.runtime.tensor(feeds[spec.name]) for spec in open_model.inputs]
        contenders["tvm"] = lambda: stock(*given)
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(TURNS):
        for name, run in contenders.items():
            run()
            for _ in range(RUNS):
                start = time.process_time()
                for _ in range(REPEATS):
                    run()
                best[name] = min(best[name], 1e6 * (time.process_time() - start) / REPEATS)
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


def memory_rows(quick: bool) -> Iterator[dict[str, Any]]:
    """Measure memory at the largest sizes, and plans of arenas over what is alive at several."""
    for name in list(LARGE)[:1] if quick else LARGE:
        case = replace(MODELS[name](), limits=LARGE[name])
        row: dict[str, Any] = {"model": name, "sizes": dict(case.sizes(2)[1])}
        for engine in ENGINES:
            command = [sys.executable, __file__, "--worker", f"{engine}:{name}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            row[engine] = int(done.stdout.split()[-1]) if done.returncode == 0 else None
        plans = arena_plans(case)
        row |= {"arenas": len(plans), "plan_over_live": max((max(plan["ratios"]) for plan in plans), default=1.0)}
        print(row, flush=True)
        yield row


def arena_plans(case: DynamicModel) -> list[dict[str, Any]]:
    """List the plans of arenas of open sizes, each with its ratios at four sizes of the range."""
    module = import_model(case.model, dynamic=case.dynamic).mod
    lowered, *_ = lower(module, native_target(), PipelineOptions())
    attributes = [func.attrs for func in lowered.functions.values() if isinstance(func, tvm.tirx.PrimFunc)]
    found = [json.loads(str(row[SEGMENT_ATTRIBUTE])) for row in attributes if row and SEGMENT_ATTRIBUTE in row]
    return [plan for plan in found if plan.get("ratios")]


def worker(what: str) -> int:
    """Print the bytes that runs of one model in one engine take at their peak, beside what was there before.

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
        tensors = {id(feeds): [tvm.runtime.tensor(array) for array in feeds.values()] for feeds in (small, large)}
        run = lambda feeds: main(*tensors[id(feeds)])  # noqa: E731
    else:
        model = tvm_ext.compile(case.model, dynamic=case.dynamic)
        run = model.run
    run(small)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak so far is forgotten
    before = status_bytes("VmRSS")
    for _ in range(3):
        run(large)
    print(status_bytes("VmHWM") - before)
    return 0


def status_bytes(field: str) -> int:
    """Read a number of bytes from what the system knows of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def memory_summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Take geometric means."""

    def mean(other: str) -> float:
        ratios = [np.log(row[other] / row["tvm_ext"]) for row in rows if row[other] and row["tvm_ext"]]
        return round(float(np.exp(np.mean(ratios))), 4) if ratios else 0.0

    return {
        "memory_vs_onnxruntime": mean("onnxruntime"),
        "memory_vs_tvm": mean("tvm"),
        "memory_models": len(rows),
        "plan_over_live": round(max(row["plan_over_live"] for row in rows), 4),
        "planned_arenas": sum(row["arenas"] for row in rows),
    }


def latency_summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Take geometric means."""

    def mean(other: str) -> float:
        return round(float(np.exp(np.mean([np.log(row["dynamic"] / row[other]) for row in rows]))), 4)

    beside_stock = [row["dynamic"] / row["tvm"] for row in rows if "tvm" in row]
    return {
        "vs_tvm_dynamic": round(float(np.exp(np.mean(np.log(beside_stock)))), 4) if beside_stock else 0.0,
        "vs_tvm_models": len({row["model"] for row in rows if "tvm" in row}),
        "dispatch_microseconds": dispatch_microseconds(),
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
    add_json_option(parser, "dynamic")
    arguments = parser.parse_args()
    path = result_path("dynamic", arguments.json, not arguments.quick)
    warnings.simplefilter("ignore")
    if arguments.worker:
        return worker(arguments.worker)
    if arguments.part in (None, "shapes"):
        rows = shape_rows(arguments.quick)
        summary = shape_summary(rows)
        print(summary)
        store(
            path, "dynamic", rows, summary, part="shapes", notes=("known_*: all models, trained ones from wheels too",)
        )
    if arguments.part in (None, "latency"):
        rows = list(latency_rows(arguments.quick))
        summary = latency_summary(rows)
        print(summary)
        store(path, "dynamic", rows, summary, part="latency", notes=("microseconds of processor time, one thread",))
    if arguments.part in (None, "memory"):
        rows = list(memory_rows(arguments.quick))
        summary = memory_summary(rows)
        print(summary)
        store(path, "dynamic", rows, summary, part="memory", notes=("bytes at the peak beside those before runs",))
    return 0


if __name__ == "__main__":
    sys.exit(main())
