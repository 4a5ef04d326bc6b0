"""Measure what rewriting and fusion save in the models of the DNNFusion study and of the zoo: kernels, bytes, time.

Run: python scripts/bench_fusion.py [--quick] [--only NAME ...] [--latency | --counts] [--json PATH]

A model is exported twice by torch's exporter that keeps every operator: with free dimensions, which gives the operators
that the study counts, and with fixed ones, which is imported. Kernels are counted in the module that comes out: after
rewriting, lowering, grouping, asking the schedule rules, and merging. TVM's own fusion runs on the same lowered module,
without rewriting.

Latency is that of the whole pipeline, with TVM's fusion and with both passes: the same layouts, the same schedule
rules, the runs of the two interleaved, with as many threads as TVM starts by itself. ``rest_free`` is the gain were
everything free but the kernels of products and convolutions, as TVM's fusion makes them. The ablation adds one thing
after the other, as the study does: nothing (no layouts, every operator a kernel), rewriting, fusion, layouts and data
movement.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np
import tvm
from tvm import relax

from scripts.fusion_summary import CNNS, TRANSFORMERS, summarise
from scripts.results import add_json_option, result_path, store
from scripts.study_models import export, operators_of, sample
from tests.zoo import ZOO, get
from tests.zoo.nets import shape_graphs
from tvm_ext.algebra.relax.rewrite import AlgebraReport, rewrite_algebra
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.compiler import lower
from tvm_ext.frontend import import_model
from tvm_ext.fusion.operator_graph import OperatorGraph, operator_graph
from tvm_ext.fusion.planner import plan_fusion
from tvm_ext.fusion.profile_database import ProfileDatabase
from tvm_ext.fusion.relax.fuse import fuse_by_mapping_types
from tvm_ext.fusion.verifier import verify_plan
from tvm_ext.graph import from_relax
from tvm_ext.options import PipelineOptions
from tvm_ext.passes.fold_batch_norm import fold_batch_norm
from tvm_ext.passes.fold_constants import fold_constants
from tvm_ext.schedules import cpu
from tvm_ext.schedules.rule import RULE_ATTRIBUTE

# Operators before and kernels after, as the study prints them (table 5).
SOURCE = {
    "efficientnet_b0": (309, 97),
    "c3d": (27, 16),
    "s3d": (272, 98),
    "unet": (292, 82),
    "yolo_v4": (398, 135),
    "tinybert": (366, 74),
    "distilbert": (457, 109),
    "albert": (936, 225),
    "bert_base": (976, 216),
    "mobilebert": (2387, 510),
    "gpt2": (2533, 254),
}
QUICK = ("c3d", "tinybert")
ABLATION = ("efficientnet_b0", "yolo_v4", "s3d", "gpt2")  # the models of the study's
STAGES: dict[str, dict[str, Any]] = {
    "nothing": {"disable": ("layout", "fuse")},
    "rewriting": {"disable": ("layout", "fuse"), "rewrite": "strict"},
    "fusion": {"disable": ("layout",), "rewrite": "strict", "fuse": "mapping-type"},
    "layout": {"rewrite": "strict", "fuse": "mapping-type"},
}
STOCK: dict[str, Any] = {}
OURS = STAGES["layout"]
PRODUCTS = frozenset(f"cpu.{name}" for name in "convolution winograd matmul matvec sliding_window".split())
RUNS, SECONDS = 7, 5.0  # runs of each variant at least, and seconds for all of them
CLEAN = [fold_batch_norm(), relax.transform.DeadCodeElimination(), fold_constants(), relax.transform.FoldConstant()]
LOWER = [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(), relax.transform.FoldConstant()]


def kernels(mod: tvm.IRModule) -> tuple[int, int]:
    """Kernels of a module, and bytes they write."""
    graph = from_relax(mod)
    calls = [node for node in graph.nodes if node.op in ("call_tir", "call_dps_packed", "call_pure_packed")]
    written = sum(graph.tensors[name].nbytes or 0 for node in calls for name in node.outputs)
    return len(calls), int(written)


def passed(mod: tvm.IRModule, passes: list[Any]) -> tvm.IRModule:
    """Run passes one after the other."""
    return tvm.transform.Sequential(passes)(mod)


def fused(mod: tvm.IRModule) -> tuple[int, int]:
    """Kernels and bytes of a lowered module after our fusion, as far as the schedule rules go along."""
    with native_target():
        return kernels(passed(mod, [fuse_by_mapping_types(rules=cpu.RULES), relax.transform.FuseTIR()]))


def measure(mod: tvm.IRModule) -> dict[str, Any]:
    """Kernels and bytes of a module: without fusion, with TVM's, with ours, and with rewriting before ours."""
    mod = passed(mod, CLEAN)
    lowered = passed(mod, LOWER)
    graph = from_relax(mod)
    row: dict[str, Any] = {"relax_operators": len(operator_graph(graph)), "gflops": _gflops(graph)}
    row["kernels_unfused"], row["bytes_unfused"] = kernels(lowered)
    row["kernels_stock"], row["bytes_stock"] = kernels(
        passed(lowered, [relax.transform.FuseOps(), relax.transform.FuseTIR()])
    )
    row["kernels_not_rewritten"], row["bytes_not_rewritten"] = fused(lowered)
    report = AlgebraReport()
    start = time.perf_counter()
    rewritten = rewrite_algebra("strict", report)(mod)
    row["rewriting_seconds"] = round(time.perf_counter() - start, 2)
    row["gflops_rewritten"] = _gflops(from_relax(rewritten))
    row["rewritings"] = dict(Counter(str(step.rule) for step in report.steps).most_common())
    row["means_removed"] = report.centred
    row["kernels"], row["bytes"] = fused(passed(rewritten, LOWER))
    row["blocks_not_rewritten"] = planning(operator_graph(graph))["blocks"]
    row |= planning(operator_graph(from_relax(rewritten)))
    return row


def planning(graph: OperatorGraph, path: Path | None = None) -> dict[str, Any]:
    """Blocks of the plan on high-level operators, and the time to plan with a warm database."""
    database = ProfileDatabase(path, target="model")
    plan = plan_fusion(graph, latency=database.latency)
    database.save()
    start = time.perf_counter()
    again = plan_fusion(graph, latency=ProfileDatabase(path, target="model").latency if path else database.latency)
    seconds = time.perf_counter() - start
    assert again == plan
    verify_plan(plan, graph)
    return {"blocks": len(plan.blocks), "planning_seconds": round(seconds, 3)}


def first_call(name: str, path: Path) -> dict[str, float]:
    """Seconds for rewriting a model of the study, and for planning with the database of a file, in a fresh process."""
    module, inputs, _ = sample(name)
    mod = passed(import_model(export(module, inputs, {})).mod, CLEAN)
    start = time.perf_counter()
    rewritten = rewrite_algebra("strict")(mod)
    rewriting = time.perf_counter() - start
    start = time.perf_counter()
    plan_fusion(operator_graph(from_relax(rewritten)), latency=ProfileDatabase(path, target="model").latency)
    return {
        "first_rewriting_seconds": round(rewriting, 2),
        "first_planning_seconds": round(time.perf_counter() - start, 2),
    }


def _gflops(graph: Any) -> float | None:
    total = graph.flops.total
    return round(total / 1e9, 6) if isinstance(total, int) else None


def study_row(name: str) -> dict[str, Any]:
    """One model of the study."""
    before, after = SOURCE[name]
    row: dict[str, Any] = {"model": name, "kind": "study", "source_operators": before, "source_rate": before / after}
    if name == "c3d":
        graph = operator_graph(shape_graphs.c3d())
        plan = plan_fusion(graph)
        verify_plan(plan, graph)
        row |= {"operators": len(graph), "relax_operators": len(graph), "kernels": len(plan.blocks)}
        row |= {"bytes_unfused": graph.intermediate_bytes, "bytes": plan.written_bytes(graph)}
    else:
        module, inputs, free = sample(name)
        row["operators"] = operators_of(export(module, inputs, free))
        mod = import_model(export(module, inputs, {})).mod
        row |= measure(mod)
        if name == "gpt2":
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "profiles.json")
                planning(operator_graph(from_relax(rewrite_algebra("strict")(passed(mod, CLEAN)))), path)
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    row |= pool.apply(first_call, (name, path))
    row["rate"] = round(row["operators"] / row["kernels"], 3)
    # of what is left when the arithmetic of shapes is folded
    row["rate_without_shapes"] = round(row["relax_operators"] / row["kernels"], 3)
    return row


def zoo_row(name: str) -> dict[str, Any]:
    """One model of the zoo."""
    entry = get(name)
    if reason := entry.missing():
        return {"model": name, "kind": "zoo", "missing": reason}
    mod = import_model(entry.onnx_path(), input_shapes=entry.input_shapes()).mod
    return {"model": name, "kind": "zoo", **measure(mod)}


def imported(name: str) -> tuple[tvm.IRModule, list[np.ndarray]]:
    """Import a model of the study as it was exported, or one of the zoo; with inputs."""
    if name in SOURCE and name != "c3d":
        module, examples, _ = sample(name)
        generator = np.random.default_rng(0)
        values = [
            generator.standard_normal(tuple(array.shape), "float32")
            if array.is_floating_point()
            else generator.integers(0, 1000 if key == "tokens" else 2, tuple(array.shape))
            for key, array in examples.items()
        ]
        return import_model(export(module, examples, {})).mod, values
    entry = get(name)
    return import_model(entry.onnx_path(), input_shapes=entry.input_shapes()).mod, list(entry.inputs().values())


class Variant:
    """A model compiled with some options of the pipeline."""

    def __init__(self, mod: tvm.IRModule, values: list[np.ndarray], options: dict[str, Any]) -> None:
        target = native_target()
        start = time.perf_counter()
        lowered, _, _ = lower(mod, target, PipelineOptions(**options))
        self._machine = relax.VirtualMachine(relax.build(lowered, target, relax_pipeline=None), tvm.cpu())
        self.compile_seconds = time.perf_counter() - start
        self._arguments = [tvm.runtime.tensor(value) for value in values]
        self.seconds: list[float] = []
        self._rules = {
            variable.name_hint: str((func.attrs or {}).get(RULE_ATTRIBUTE, ""))
            for variable, func in lowered.functions_items()
            if isinstance(func, tvm.tirx.PrimFunc)
        }

    def outputs(self) -> list[np.ndarray]:
        """Run once and flatten what comes out."""
        return _arrays(self._machine["main"](*self._arguments))

    def run(self) -> None:
        """Time a run."""
        start = time.perf_counter()
        self._machine["main"](*self._arguments)
        self.seconds.append(time.perf_counter() - start)

    def product_share(self) -> float:
        """Find the part of the time that goes into kernels of products and convolutions, by the least of some runs."""
        least: dict[tuple[str, int], float] = {}
        place: Counter[str] = Counter()
        began = [0.0]

        def instrument(_function: Any, name: str, before: bool, _result: Any, *_arguments: Any) -> None:
            if before:
                began[0] = time.perf_counter()
            else:
                seconds, key = time.perf_counter() - began[0], (name, place[name])
                place[name] += 1
                least[key] = min(least.get(key, seconds), seconds)

        self._machine.set_instrument(instrument)
        for _ in range(RUNS):
            place.clear()
            self._machine["main"](*self._arguments)
        products = sum(value for (name, _), value in least.items() if self._rules.get(name) in PRODUCTS)
        return products / sum(least.values())


def _arrays(value: Any) -> list[np.ndarray]:
    return [value.numpy()] if hasattr(value, "numpy") else [array for item in value for array in _arrays(item)]


def timed(name: str, options: dict[str, dict[str, Any]]) -> tuple[dict[str, Variant], dict[str, float]]:
    """Compile variants of a model, compare them with the first, and time them in turns; gives median milliseconds."""
    mod, values = imported(name)
    variants = {label: Variant(mod, values, chosen) for label, chosen in options.items()}
    first, *others = (variant.outputs() for variant in variants.values())
    for found in others:
        for array, expected in zip(found, first, strict=True):
            np.testing.assert_allclose(array, expected, rtol=1e-3, atol=1e-4 * max(1.0, float(np.abs(expected).max())))
    start = time.perf_counter()
    while min(len(v.seconds) for v in variants.values()) < RUNS or (
        time.perf_counter() - start < SECONDS and len(next(iter(variants.values())).seconds) < 500
    ):
        for variant in variants.values():
            variant.run()
    return variants, {label: round(1e3 * median(v.seconds), 3) for label, v in variants.items()}


def latency_row(name: str) -> dict[str, Any]:
    """Latency of a model with TVM's fusion, and with rewriting and our fusion."""
    variants, found = timed(name, {"stock": STOCK, "ours": OURS})
    rest_free = 1 / variants["stock"].product_share()
    seconds = {f"{label}_compile_seconds": round(v.compile_seconds, 1) for label, v in variants.items()}
    row = {"model": name, "kind": "latency", "stock_ms": found["stock"], "ours_ms": found["ours"], **seconds}
    return row | {"gain": round(found["stock"] / found["ours"], 3), "rest_free": round(rest_free, 3)}


def ablation_row(name: str) -> dict[str, Any]:
    """Latency of a model as one thing after the other is added; ``stock`` is TVM's fusion alone, without layouts."""
    _, found = timed(name, {**STAGES, "stock": {"disable": ("layout",)}})
    gains = {f"{b}_gain": round(found[a] / found[b], 3) for a, b in itertools.pairwise(STAGES)}
    row = {"model": name, "kind": "ablation", **{f"{label}_ms": value for label, value in found.items()}, **gains}
    return row | {"gain": round(found["stock"] / found["layout"], 3)}


def main() -> None:
    """Read the command line, count, print a table and write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two models of the study, the tiny ones of the zoo")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these models only")
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--latency", action="store_true", help="only latency and ablation")
    parts.add_argument("--counts", action="store_true", help="only kernels and bytes")
    add_json_option(parser, "fusion")
    arguments = parser.parse_args()
    path = result_path("fusion", arguments.json, is_whole=not arguments.quick and not arguments.only)
    tiny = [name for name in ZOO if name.startswith("tiny")]
    study, zoo = (list(QUICK), tiny) if arguments.quick else (list(SOURCE), list(ZOO))
    measured = list(QUICK) if arguments.quick else [*TRANSFORMERS, *CNNS]
    ablation = ["tinybert"] if arguments.quick else list(ABLATION)
    if arguments.only:
        chosen = (study, zoo, measured, ablation)
        study, zoo, measured, ablation = ([name for name in names if name in arguments.only] for names in chosen)
    print(f"{'model':18}{'operators':>10}{'stock':>7}{'kernels':>8}{'rate':>7}{'source':>7}{'MiB':>9}{'stock MiB':>10}")
    parts_of = {
        "counts": ((study_row, study), (zoo_row, zoo)),
        "latency": ((latency_row, measured), (ablation_row, ablation)),
    }
    for part, of_part in parts_of.items():
        if (part == "counts" and arguments.latency) or (part == "latency" and arguments.counts):
            continue
        rows = []
        for make, names in of_part:
            for name in names:
                rows.append(make(name))
                show(rows[-1])
        store(path, "fusion", rows, summarise(rows, [*STAGES][1:]), part)


def show(row: dict[str, Any]) -> None:
    """Print a row."""
    if row["kind"] in ("latency", "ablation"):
        shown = (f"{key} {value}" for key, value in row.items() if key not in ("model", "kind"))
        print(f"{row['model']:18}{', '.join(shown)}", flush=True)
        return
    if "kernels" not in row:
        print(f"{row['model']:18}{row['missing']}", flush=True)
        return
    rate, source = (f"{row[key]:.2f}" if key in row else "" for key in ("rate", "source_rate"))
    stock = f"{row['bytes_stock'] / 2**20:.2f}" if "bytes_stock" in row else ""
    print(
        f"{row['model']:18}{row.get('operators', row['relax_operators']):10}{row.get('kernels_stock', ''):>7}"
        f"{row['kernels']:8}{rate:>7}{source:>7}{row['bytes'] / 2**20:9.2f}{stock:>10}",
        flush=True,
    )


if __name__ == "__main__":
    main()
