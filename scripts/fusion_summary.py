"""The figures of the fusion benchmark that the ledger quotes; a part of ``bench_fusion.py``."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean
from typing import Any

from scripts.compiled_counts import summarise_compiled, summarise_mapping
from scripts.fusion_latency import DEPTHWISE, SHUFFLES
from tests.zoo.nets import shape_graphs
from tvm_ext.fusion.operator_graph import operator_graph
from tvm_ext.fusion.planner import plan_fusion
from tvm_ext.fusion.verifier import verify_plan

TRANSFORMERS = ("bert_base", "distilbert", "albert", "tinybert", "mobilebert", "gpt2")
CNNS = ("efficientnet_b0", "mobilenet_v2", "shufflenet", "unet", "vgg16", "c3d", "s3d", "yolo_v4")


def summarise(rows: list[dict[str, Any]], stages: Sequence[str]) -> dict[str, Any]:
    """Compute the figures that the ledger quotes; ``stages`` are those of the ablation after its first."""
    study = [row for row in rows if row["kind"] == "study"]
    summary: dict[str, Any] = _counted(study) if study else {}
    for row in study:
        if row["model"] == "gpt2" and "first_rewriting_seconds" in row:
            summary["gpt2_block_cut"] = round(1 - row["blocks"] / row["blocks_not_rewritten"], 4)
            summary["gpt2_kernel_cut"] = round(1 - row["kernels"] / row["kernels_not_rewritten"], 4)
            summary["gpt2_compile_seconds"] = round(row["first_rewriting_seconds"] + row["first_planning_seconds"], 2)
    for key, names in (("latency_transformers", TRANSFORMERS), ("latency_cnns", CNNS)):
        found = [row for row in rows if row["kind"] == "latency" and row["model"] in names]
        if found:
            summary[key] = round(geometric_mean(row["gain"] for row in found), 3)
            summary[f"{key}_rest_free"] = round(geometric_mean(row["rest_free"] for row in found), 3)
            summary[f"{key}_least"] = min(row["gain"] for row in found)
            summary[f"{key}_models"] = len(found)
    ablation = [row for row in rows if row["kind"] == "ablation"]
    if ablation:
        for stage in stages:
            summary[f"ablation_{stage}"] = round(geometric_mean(row[f"{stage}_gain"] for row in ablation), 3)
        summary["ablation_all_over_stock_fusion"] = round(geometric_mean(row["gain"] for row in ablation), 3)
    possible = [row for row in rows if row["kind"] == "possible"]
    if possible:
        # Of each model's time; the share of one means nothing where next to nothing can be had.
        saved = sum(1 - row["ours_ms"] / row["fuse_ops_ms"] for row in possible)
        most = sum(row["possible_ms"] / row["fuse_ops_ms"] for row in possible)
        summary["share_of_possible"] = round(saved / most, 3)
        summary["possible_models"] = len(possible)
        for key, names in (("latency_shuffles", SHUFFLES), ("latency_depthwise", DEPTHWISE)):
            gains = [row["gain"] for row in possible if row["model"] in names]
            if gains:
                summary[key] = round(geometric_mean(gains), 3)
        ratios = [row["ours_compile_seconds"] / row["fuse_ops_compile_seconds"] for row in possible]
        summary["fusion_compile_ratio"] = round(geometric_mean(ratios), 3)
        summary["fusion_compile_ratio_worst"] = round(max(ratios), 3)
    summary |= summarise_compiled(rows) | summarise_mapping(rows)
    zoo = [row for row in rows if row["kind"] == "zoo" and "kernels" in row]
    if zoo:
        summary["zoo_models"] = len(zoo)
        summary["zoo_fewer_kernels"] = sum(row["kernels"] < row["kernels_stock"] for row in zoo)
        summary["zoo_not_more_kernels"] = sum(row["kernels"] <= row["kernels_stock"] for row in zoo)
        summary["zoo_fewer_bytes"] = sum(row["bytes"] < row["bytes_stock"] for row in zoo)
    return summary


def _counted(study: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Compute the figures of the part that counts kernels and rules."""
    graph = operator_graph(shape_graphs.vgg16())
    plan = plan_fusion(graph)
    verify_plan(plan, graph)
    return {
        "vgg16_drawn_operators": len(graph),
        "vgg16_drawn_blocks": len(plan.blocks),
        "vgg16_drawn_mib_before": round(graph.intermediate_bytes / 2**20, 2),
        "vgg16_drawn_mib": round(plan.written_bytes(graph) / 2**20, 2),
        # The worst of the rates over those of the study.
        "rates": round(min(row["rate"] / row["source_rate"] for row in study), 3),
        **{f"rate_{row['model']}": row["rate"] for row in study},
        "rates_reached": sum(row["rate"] >= row["source_rate"] for row in study),
    }
