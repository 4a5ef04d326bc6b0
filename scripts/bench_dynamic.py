"""Measure models with open dimensions: right at every size, how much of their shapes is known, latency beside static.

Run: python scripts/bench_dynamic.py [--part shapes|latency] [--quick] [--json PATH]

Latencies are processor time of one thread (``TVM_NUM_THREADS=1``), the best of several runs in turns, so that a busy
machine disturbs them little.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TVM_NUM_THREADS", "1")

import numpy as np
import onnxruntime

import tvm_ext
from scripts.results import add_json_option, result_path, store
from tests.shapes.dynamic_model import DynamicModel
from tests.shapes.dynamic_models import MODELS
from tests.zoo.wheels import RAPIDOCR, SILERO
from tvm_ext.dynamic import OpenDimension, open_dimensions
from tvm_ext.errors import UnsupportedOperatorError
from tvm_ext.frontend.onnx.converter_types import converter_types
from tvm_ext.frontend.onnx.model import load_onnx
from tvm_ext.frontend.onnx.operator_graph import known_constants, operator_graph
from tvm_ext.frontend.onnx.prepare import prepare
from tvm_ext.frontend.onnx.support import is_supported
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
SIZES, TIMED_SIZES, RUNS, TURNS = 50, 6, 7, 3


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
        for seed, sizes in enumerate(case.sizes(2 if quick else TIMED_SIZES)):
            feeds = case.feeds(sizes, seed)
            static = tvm_ext.compile(case.model, input_shapes={key: array.shape for key, array in feeds.items()})
            row = {"model": name, "sizes": dict(sizes)} | times(feeds, open_model, static, session)
            print(row, flush=True)
            yield row


def times(feeds: Mapping[str, np.ndarray], open_model: Any, static: Any, session: Any) -> dict[str, float]:
    """Give microseconds of processor time."""
    contenders: dict[str, Callable[[], Any]] = {
        "dynamic": lambda: open_model.run(feeds),
        "static": lambda: static.run(feeds),
        "onnxruntime": lambda: session.run(None, feeds),
    }
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(TURNS):
        for name, run in contenders.items():
            for _ in range(RUNS):
                start = time.process_time()
                run()
                best[name] = min(best[name], 1e6 * (time.process_time() - start))
    return {name: round(value, 1) for name, value in best.items()}


def latency_summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Take geometric means."""

    def mean(other: str) -> float:
        return round(float(np.exp(np.mean([np.log(row["dynamic"] / row[other]) for row in rows]))), 4)

    return {
        "dynamic_over_static": mean("static"),
        "dynamic_over_static_worst": round(max(row["dynamic"] / row["static"] for row in rows), 4),
        "vs_onnxruntime_dynamic": mean("onnxruntime"),
        "timed_models": len({row["model"] for row in rows}),
    }


def main() -> int:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("shapes", "latency"), help="only this part")
    parser.add_argument("--quick", action="store_true", help="few models and sizes, for the screen")
    add_json_option(parser, "dynamic")
    arguments = parser.parse_args()
    path = result_path("dynamic", arguments.json, not arguments.quick)
    warnings.simplefilter("ignore")
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
