"""Measure what rewriting and fusion save in the zoo and in the models of the DNNFusion study: kernels, bytes, time.

Run: python scripts/bench_fusion.py [--quick] [--only NAME ...] [--part PART] [--json PATH]

Part ``compiled``: kernel calls and bytes written of the zoo as pipelines compile it: TVM's default one, ours with TVM's
fusion alone, ours, and ours with mapping types (:mod:`scripts.compiled_counts`). Part ``mapping``: ours and mapping
types alone. Part ``possible``: what the default
pipeline gains over TVM's fusion in it, of what could be gained. Part ``counts``, of another pipeline:

A model is exported twice by torch's exporter that keeps every operator: with free dimensions, which gives the operators
that the study counts, and with fixed ones, which is imported. Kernels are counted in the module that comes out: after
rewriting, lowering, grouping, asking the schedule rules, and merging. TVM's own fusion runs on the same lowered module,
without rewriting.

Latency is that of the whole pipeline, with TVM's fusion and with both passes: the same layouts, the same schedule
rules, the runs of the two interleaved, on all cores. ``rest_free`` is the gain were
everything free but the kernels of products and convolutions, as TVM's fusion makes them. The ablation adds one thing
after the other, as the study does: nothing (no layouts, every operator a kernel), rewriting, fusion, layouts and data
movement.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import tvm
from tvm import relax

from scripts.compiled_counts import PIPELINES, compiled_row, mapping_row
from scripts.fusion_latency import ABLATION, STAGES, ablation_row, latency_row, possible_row
from scripts.fusion_summary import CNNS, TRANSFORMERS, summarise
from scripts.results import add_json_option, add_keep_option, kept_or, result_path, store
from scripts.study_models import SOURCE, export, operators_of, sample
from tests.zoo import ZOO, get
from tests.zoo.nets import shape_graphs
from tvm_ext.algebra.relax.rewrite import AlgebraReport, rewrite_algebra
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.frontend import import_model
from tvm_ext.fusion.operator_graph import OperatorGraph, operator_graph
from tvm_ext.fusion.planner import plan_fusion
from tvm_ext.fusion.profile_database import ProfileDatabase
from tvm_ext.fusion.relax.fuse import fuse_by_mapping_types
from tvm_ext.fusion.verifier import verify_plan
from tvm_ext.graph import from_relax
from tvm_ext.passes.fold_batch_norm import fold_batch_norm
from tvm_ext.passes.fold_constants import fold_constants
from tvm_ext.schedules import cpu

PARTS = ("compiled", "mapping", "counts", "possible", "latency")
QUICK = ("c3d", "tinybert")
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


def main() -> None:
    """Read the command line, count, print a table and write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two models of the study, the tiny ones of the zoo")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these models only")
    parser.add_argument("--part", choices=PARTS, help="only these figures")
    parser.add_argument("--pipelines", nargs="+", choices=PIPELINES, default=[*PIPELINES], help="of the part compiled")
    add_keep_option(parser)
    add_json_option(parser, "fusion")
    arguments = parser.parse_args()
    path = result_path("fusion", arguments.json, is_whole=not arguments.quick and not arguments.only)
    tiny = [name for name in ZOO if name.startswith("tiny")]
    study, zoo = (list(QUICK), tiny) if arguments.quick else (list(SOURCE), list(ZOO))
    possible = ["tinybert"] if arguments.quick else [name for name in ZOO if not name.startswith("tiny")] + ["yolo_v4"]
    measured = list(QUICK) if arguments.quick else [*TRANSFORMERS, *CNNS]
    ablation = ["tinybert"] if arguments.quick else list(ABLATION)
    parts_of: dict[str, list[tuple[Callable[[str], dict[str, Any]], list[str]]]] = {
        "compiled": [(partial(compiled_row, pipelines=arguments.pipelines), zoo)],
        "mapping": [(mapping_row, zoo)],
        "counts": [(study_row, study), (zoo_row, zoo)],
        "possible": [(possible_row, possible)],
        "latency": [(latency_row, measured), (ablation_row, ablation)],
    }
    for part, of_part in parts_of.items():
        if arguments.part not in (None, part):
            continue
        rows = []
        for make, names in of_part:
            for name in names if not arguments.only else [name for name in names if name in arguments.only]:
                kinds = {"kind": part if part == "compiled" else make.__name__.removesuffix("_row"), "model": name}
                rows.append(kept_or(arguments.keep, kinds, partial(make, name)))
                show(rows[-1])
        store(path, "fusion", rows, summarise(rows, [*STAGES][1:]), part)


def show(row: dict[str, Any]) -> None:
    """Print a row."""
    if row["kind"] != "zoo" and row["kind"] != "study":
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
