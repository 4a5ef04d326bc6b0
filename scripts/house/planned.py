"""Bytes that memory plans reserve for intermediate tensors: this package by default options against stock TVM.

Stock TVM's pipeline does not fold transposed weights, which are then among its intermediate tensors. What the planner
alone is worth is seen beside ``memory="stock"``: the same kernels, planned by TVM. Everything is lowered to the plan;
no code is generated, so that the figures are those of any machine with these instruction sets.
"""

from __future__ import annotations

import argparse
from math import exp, log
from typing import Any

import tvm
from tvm import relax

from tvm_ext.compiler import lower
from tvm_ext.frontend import import_model
from tvm_ext.options import PipelineOptions
from tvm_ext.statistics import StatisticsInstrument
from tvm_ext.target import resolve_target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help="models of that name")


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Plan every model of the zoo both ways; gives a row for each, and the geometric mean of the ratios."""
    from tests.zoo import ZOO

    target = resolve_target(None)
    rows = []
    for entry in ZOO.values():
        if entry.missing() is not None or (arguments.only and entry.name not in arguments.only):
            continue
        shapes = {name: array.shape for name, array in entry.inputs(0).items()}
        imported = import_model(entry.onnx_model(), input_shapes=shapes)
        _, ours, _ = lower(imported.mod, target, PipelineOptions())
        _, same_kernels, _ = lower(imported.mod, target, PipelineOptions(memory="stock"))
        stock = StatisticsInstrument()
        with target, tvm.transform.PassContext(instruments=[stock]):
            relax.get_pipeline("default")(imported.mod)
        assert ours is not None
        assert same_kernels is not None
        assert stock.statistics is not None
        row = {
            "model": entry.name,
            "planned_bytes": ours.planned_bytes,
            "same_kernels_bytes": same_kernels.planned_bytes,
            "stock_bytes": stock.statistics.planned_bytes,
        }
        print(row, flush=True)
        rows.append(row)
    counted = [row for row in rows if all(row[key] for key in row)]
    against_stock = [row["planned_bytes"] / row["stock_bytes"] for row in counted]
    against_planner = [row["planned_bytes"] / row["same_kernels_bytes"] for row in counted]
    return rows, {
        "default_planned_bytes_vs_stock": _mean(against_stock),
        "default_planned_bytes_vs_stock_worst": max(against_stock),
        "default_planned_bytes_vs_stock_planner": _mean(against_planner),
        "default_planned_bytes_vs_stock_planner_worst": max(against_planner),
        "default_planned_models": len(rows),
    }


def _mean(ratios: list[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))
