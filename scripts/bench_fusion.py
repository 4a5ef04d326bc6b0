"""Count what rewriting and fusion save: kernels and bytes of the models of the DNNFusion study, and of the zoo.

Run: python scripts/bench_fusion.py [--quick] [--only NAME ...] [--json PATH]

A model is exported twice by torch's exporter that keeps every operator: with free dimensions, which gives the operators
that the study counts, and with fixed ones, which is imported. Kernels are counted in the module that comes out: after
rewriting, lowering, grouping and merging. TVM's own fusion runs on the same lowered module, without rewriting.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import shlex
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import onnx
import torch
import tvm
from tvm import relax

from tests.zoo import ZOO, get
from tests.zoo.nets import exported, exported_cnn, shape_graphs
from tvm_ext.algebra.rules import RULES
from tvm_ext.bench.record import write_result
from tvm_ext.frontend import import_model
from tvm_ext.fusion.operator_graph import OperatorGraph, operator_graph
from tvm_ext.fusion.planner import plan_fusion
from tvm_ext.fusion.profile_database import ProfileDatabase
from tvm_ext.fusion.verifier import verify_plan
from tvm_ext.graph import from_relax
from tvm_ext.passes.algebra import AlgebraReport, rewrite_algebra
from tvm_ext.passes.fold_batch_norm import fold_batch_norm
from tvm_ext.passes.fold_constants import fold_constants
from tvm_ext.passes.fusion import fuse_by_mapping_types

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
SEQUENCE = 128
CLEAN = [fold_batch_norm(), relax.transform.DeadCodeElimination(), fold_constants(), relax.transform.FoldConstant()]
LOWER = [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(), relax.transform.FoldConstant()]


def sample(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor], dict[str, dict[int, str]]]:
    """Make a net of the study and example inputs, and tell which dimensions are free."""
    if name in exported_cnn.NETS:
        make, shape = exported_cnn.NETS[name]
        torch.manual_seed(0)
        free = {0: "n", **{axis: f"d{axis}" for axis in range(2, len(shape))}}
        return make().eval(), {"x": torch.zeros(shape)}, {"x": free}
    names = ["tokens", "mask", "types"][: 1 if name == "gpt2" else 2 if name == "distilbert" else 3]
    inputs = {key: torch.ones(1, SEQUENCE, dtype=torch.long) for key in names}
    return exported.full(name), inputs, {key: {0: "n", 1: "s"} for key in names}


def export(
    module: torch.nn.Module, inputs: dict[str, torch.Tensor], free: dict[str, dict[int, str]]
) -> onnx.ModelProto:
    """Export with every operator kept, batch normalisation among them."""
    buffer = io.BytesIO()
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            tuple(inputs.values()),
            buffer,
            dynamo=False,
            opset_version=11,
            input_names=list(inputs),
            dynamic_axes=free,
            training=torch.onnx.TrainingMode.PRESERVE,
        )
    return onnx.load_from_string(buffer.getvalue())


def operators_of(model: onnx.ModelProto) -> int:
    """Operators of an exported graph, as the study counts VGG-16: the bias of a convolution is an addition of its own.

    Constants, and names for values, are no operators.
    """
    biases = sum(node.op_type.startswith("Conv") and len(node.input) > 2 for node in model.graph.node)
    return biases + sum(node.op_type not in ("Constant", "Identity") for node in model.graph.node)


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
    """Kernels and bytes of a lowered module after our fusion."""
    return kernels(passed(mod, [fuse_by_mapping_types(), relax.transform.FuseTIR()]))


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


def planning(graph: OperatorGraph) -> dict[str, Any]:
    """Blocks of the plan on high-level operators, and the time to plan with a warm database."""
    database = ProfileDatabase(target="model")
    plan_fusion(graph, latency=database.latency)
    start = time.perf_counter()
    plan = plan_fusion(graph, latency=database.latency)
    seconds = time.perf_counter() - start
    verify_plan(plan, graph)
    return {"blocks": len(plan.blocks), "planning_seconds": round(seconds, 3)}


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
        row |= measure(import_model(export(module, inputs, {})).mod)
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


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Compute the figures that the ledger quotes."""
    graph = operator_graph(shape_graphs.vgg16())
    plan = plan_fusion(graph)
    verify_plan(plan, graph)
    summary: dict[str, Any] = {
        "rules": len(RULES),
        "vgg16_operators": len(graph),
        "vgg16_blocks": len(plan.blocks),
        "vgg16_mib_before": round(graph.intermediate_bytes / 2**20, 2),
        "vgg16_mib": round(plan.written_bytes(graph) / 2**20, 2),
    }
    study = [row for row in rows if row["kind"] == "study"]
    if study:  # the worst of rates over the study's
        summary["rates"] = round(min(row["rate"] / row["source_rate"] for row in study), 3)
    summary |= {f"rate_{row['model']}": row["rate"] for row in study}
    summary["rates_reached"] = sum(row["rate"] >= row["source_rate"] for row in study)
    for row in study:
        if row["model"] == "gpt2" and "blocks_not_rewritten" in row:
            summary["gpt2_block_cut"] = round(1 - row["blocks"] / row["blocks_not_rewritten"], 4)
            summary["gpt2_kernel_cut"] = round(1 - row["kernels"] / row["kernels_not_rewritten"], 4)
            summary["gpt2_compile_seconds"] = round(row["rewriting_seconds"] + row["planning_seconds"], 2)
    zoo = [row for row in rows if row["kind"] == "zoo" and "kernels" in row]
    if zoo:
        summary["zoo_models"] = len(zoo)
        summary["zoo_fewer_kernels"] = sum(row["kernels"] < row["kernels_stock"] for row in zoo)
        summary["zoo_not_more_kernels"] = sum(row["kernels"] <= row["kernels_stock"] for row in zoo)
        summary["zoo_fewer_bytes"] = sum(row["bytes"] < row["bytes_stock"] for row in zoo)
    return summary


def main() -> None:
    """Read the command line, count, print a table and write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two models of the study, the tiny ones of the zoo")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these models only; the file keeps the other rows")
    parser.add_argument("--json", type=Path, default=ROOT / "docs" / "results" / "fusion.json")
    arguments = parser.parse_args()
    tiny = [name for name in ZOO if name.startswith("tiny")]
    study, zoo = (list(QUICK), tiny) if arguments.quick else (list(SOURCE), list(ZOO))
    rows: list[dict[str, Any]] = []
    command = None
    if arguments.only:
        study, zoo = ([name for name in names if name in arguments.only] for names in (study, zoo))
        if arguments.json.exists():
            before = json.loads(arguments.json.read_text())
            rows, command = before["rows"], f"{before['command']}; {shlex.join(['bench_fusion.py', *sys.argv[1:]])}"
    print(f"{'model':18}{'operators':>10}{'stock':>7}{'kernels':>8}{'rate':>7}{'source':>7}{'MiB':>9}{'stock MiB':>10}")
    for make, names in ((study_row, study), (zoo_row, zoo)):
        for name in names:
            row = make(name)
            same = [number for number, old in enumerate(rows) if (old["model"], old["kind"]) == (name, row["kind"])]
            rows[same[0] if same else len(rows) :] = [row, *rows[same[0] + 1 if same else len(rows) :]]
            show(row)
            write_result(arguments.json, name="fusion", rows=rows, summary=summarise(rows), command=command)


def show(row: dict[str, Any]) -> None:
    """Print a row."""
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
