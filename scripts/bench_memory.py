"""Measure memory planning: peaks, arenas, what the machine allocates, time of the search, traffic, latency.

Run: python scripts/bench_memory.py [--part PART] [--quick] [--json PATH] [--plots FOLDER] [NAMES ...]

``--part planned`` plans the networks of the zoo beside stock TVM and an arena as TensorFlow Lite makes it, ``--part
patched`` with a tenth more arithmetic, ``--part bounds`` finds what no plan with the kernels of that arena can do
without, ``--part cells`` plans irregular cells, ``--part c`` writes the zoo as C sources, builds and runs them. Without
a part, orders and arenas of irregular graphs are measured.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np
import torch
import tvm
from rich.console import Console
from rich.table import Table
from tvm import relax

from scripts.memory import c_sources, planned
from scripts.results import add_json_option, add_keep_option, result_path, store
from tests.memory.graphs import large_graph, stacked_cells, wide_graph
from tests.zoo import get
from tests.zoo.nets.cells import cells
from tvm_ext.frontend import ImportedModel, import_model
from tvm_ext.graph import breadth_first_order, liveness
from tvm_ext.memory import off_chip_traffic, plan_order, plan_traffic_order
from tvm_ext.memory.relax.graph import LIVENESS
from tvm_ext.report.memory_picture import draw_memory
from tvm_ext.report.memory_plans import PlannedMemory, compare_plans

NETS = (
    "darts", "randwire_er", "randwire_ba", "randwire_ws", "densenet121", "inception_v1", "inception_v2", "unet",
    "ppocr_det", "mobilenet_v2", "efficientnet_b0",
)  # fmt: skip
QUICK = ("darts_normal", "swiftnet_a0", "randwire_ws_cifar10", "mobilenet_v2")
ON_CHIP = 256 * 1000
LATENCY_RUNS = 30


def models(names: Sequence[str]) -> Iterator[tuple[str, str, ImportedModel]]:
    """Yield name, kind and model of each graph."""
    for name, (module, shapes) in cells().items():
        if name in names:
            yield name, "cell", import_model(module, example_inputs=[torch.randn(*shape) for shape in shapes])
    for name in NETS:
        if name in names:
            entry = get(name)
            if reason := entry.missing():
                print(f"left out: {reason}", file=sys.stderr)
                continue
            shapes_by_name = {key: list(shape) for key, shape in entry.input_shapes().items()}
            yield name, "net", import_model(entry.onnx_path(), input_shapes=shapes_by_name)


def traffic(plan: PlannedMemory) -> int:
    """Bytes to and from off-chip memory with :data:`ON_CHIP` bytes on the chip, tensors as units."""
    return off_chip_traffic(plan.graph, ON_CHIP, plan.order).total


def latencies(plans: Sequence[PlannedMemory], model: ImportedModel, runs: int) -> list[float]:
    """Seconds of each plan's module, the best of runs that take turns."""
    arguments = [tvm.runtime.tensor(np.ones(spec.shape, spec.dtype)) for spec in model.inputs]
    functions = [relax.VirtualMachine(plan.executable, tvm.cpu())["main"] for plan in plans]
    best = [math.inf] * len(functions)
    for turn in range(runs + 2):
        order = range(len(functions)) if turn % 2 else reversed(range(len(functions)))
        for number in order:
            start = time.perf_counter()
            functions[number](*arguments)
            if turn >= 2:
                best[number] = min(best[number], time.perf_counter() - start)
    return best


def measure(name: str, kind: str, model: ImportedModel, runs: int, plots: Path | None) -> dict[str, Any]:
    """Measure one graph."""
    plans = compare_plans(model, measure=("stock", "optimal order", "with rewriting") if runs else ("with rewriting",))
    stock, arena, ordered, rewritten = plans
    level_by_level = liveness(stock.graph, breadth_first_order(stock.graph), LIVENESS).peak
    row = {
        "name": name,
        "kind": kind,
        "kernels": len(stock.graph),
        "stock_peak": stock.peak,
        "breadth_first_peak": level_by_level,
        "stock_planned": stock.planned,
        "arena_peak": arena.peak,
        "arena_planned": arena.planned,
        "order_peak": ordered.peak,
        "order_lower_bound": ordered.lower_bound,
        "order_planned": ordered.planned,
        "order_seconds": ordered.seconds,
        "rewritten_kernels": len(rewritten.graph),
        "rewritten_peak": rewritten.peak,
        "rewritten_lower_bound": rewritten.lower_bound,
        "rewritten_planned": rewritten.planned,
        "rewritten_seconds": rewritten.seconds,
        "results": stock.results,
        "measured": [plan.measured for plan in plans],
        "planned_equals_measured": all(plan.measured in (None, plan.planned + plan.results) for plan in plans),
        "stock_traffic": traffic(stock),
        "peak_order_traffic": min(traffic(ordered), traffic(rewritten)),
        "traffic": min(
            plan_traffic_order(plan.graph, ON_CHIP, [plan.order]).traffic.total for plan in (ordered, rewritten)
        ),
    }
    if runs:
        row["milliseconds"] = [1000 * seconds for seconds in latencies((stock, ordered, rewritten), model, runs)]
    if plots is not None:
        draw_memory(plots / f"memory_{name}.png", name, [plan.profile for plan in plans])
    return row


def growth() -> list[dict[str, Any]]:
    """Seconds of the search on generated graphs, of more and more nodes and width."""
    graphs = {
        "stacked cells, 62 nodes": stacked_cells((21, 19, 22), 0),
        "stacked cells, 92 nodes": stacked_cells((33, 28, 31), 0),
        **{f"{count} nodes": large_graph(count, 0) for count in (50, 100, 200, 500, 1000, 5000)},
        **{f"{width} wide": wide_graph(width, 3, 0) for width in (5, 10, 20, 50, 200)},
    }
    rows = []
    for name, graph in graphs.items():
        plan = plan_order(graph)
        rows.append(
            {"name": name, "kind": "search", "kernels": len(graph), "seconds": plan.seconds, "gap": plan.gap}
            | {"peak": plan.peak, "given_peak": plan.given_peak, "proved": plan.optimal, "states": plan.states}
        )
    return rows


def mean_ratio(values: Sequence[float]) -> float:
    """Geometric mean; 1 of nothing."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else 1.0


def summarise(rows: Sequence[dict[str, Any]], searches: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Reduce the rows to the figures worth quoting."""
    irregular = [row for row in rows if row["kind"] == "cell"]
    spilling = [row for row in irregular if row["stock_peak"] > ON_CHIP]
    plans = [(row[f"{plan}_planned"], row[f"{plan}_peak"]) for row in rows for plan in ("arena", "order", "rewritten")]
    summary = {
        "peak_reduction": mean_ratio([row["stock_peak"] / row["order_peak"] for row in irregular]),
        "peak_reduction_rewritten": mean_ratio([row["stock_peak"] / row["rewritten_peak"] for row in irregular]),
        "peak_reduction_against_breadth_first": mean_ratio(
            [row["breadth_first_peak"] / row["order_peak"] for row in irregular]
        ),
        "peak_reduction_rewritten_against_breadth_first": mean_ratio(
            [row["breadth_first_peak"] / row["rewritten_peak"] for row in irregular]
        ),
        "planned_reduction_rewritten": mean_ratio(
            [row["stock_planned"] / row["rewritten_planned"] for row in irregular]
        ),
        "worst_arena_over_peak": max(planned / peak for planned, peak in plans),
        "worst_planned_over_stock": max(row["rewritten_planned"] / row["stock_planned"] for row in rows),
        "slowest_seconds": max(max(row["order_seconds"], row["rewritten_seconds"]) for row in rows),
        "proved_optimal": sum(row["order_peak"] == row["order_lower_bound"] for row in rows) / len(rows),
        "traffic_reduction_256k": mean_ratio([row["stock_traffic"] / row["traffic"] for row in spilling]),
        "planned_equals_measured": float(all(row["planned_equals_measured"] for row in rows)),
    }
    timed = [row["milliseconds"] for row in rows if "milliseconds" in row]
    if timed:
        summary["latency_ratio"] = mean_ratio([ordered / stock for stock, ordered, _ in timed])
        summary["worst_latency_ratio"] = max(ordered / stock for stock, ordered, _ in timed)
        summary["latency_ratio_rewritten"] = mean_ratio([rewritten / stock for stock, _, rewritten in timed])
    by_name = {row["name"]: row for row in searches}
    for nodes in (62, 92):
        if f"stacked cells, {nodes} nodes" in by_name:
            summary[f"seconds_{nodes}_nodes"] = by_name[f"stacked cells, {nodes} nodes"]["seconds"]
    return {key: round(value, 4) for key, value in summary.items()}


KINDS = {"planned": planned.NETS, "patched": planned.PATCHED, "cells": planned.CELLS, "bounds": planned.BOUNDS}
"""Parts that plan models, and what kind of row each gives."""


def measure_part(options: argparse.Namespace) -> None:
    """Measure one of the parts that have a file of their own."""
    path = result_path("memory", options.json, not (options.names or options.quick or options.no_latency))
    names = options.names or (("tiny_cnn", "mobilenet_v2", "darts_normal") if options.quick else ())
    if options.part == "c":
        rows, summary = c_sources.measure(names, not options.no_latency, options.keep)
    else:
        rows, summary = planned.measure(KINDS[options.part], names, options.keep)
    store(path, "memory", rows, summary, part=options.part)
    for key, value in summary.items():
        print(f"{key}: {value}")


def main() -> None:
    """Measure, print a table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="graphs to measure (default: all)")
    parser.add_argument("--part", choices=[*KINDS, "c"], help="what to measure instead of irregular graphs")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--no-latency", action="store_true", help="do not time the modules")
    add_keep_option(parser)
    add_json_option(parser, "memory")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw bytes alive over time, one PNG a graph")
    options = parser.parse_args()
    if options.part is not None:
        measure_part(options)
        return
    names = options.names or (QUICK if options.quick else (*cells(), *NETS))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    is_whole = not (options.names or options.quick or options.no_latency)
    path, kept = result_path("memory", options.json, is_whole), {}
    searches = growth()
    for name, kind, model in models(names):
        row = measure(name, kind, model, 0 if options.no_latency else LATENCY_RUNS, options.plots)
        kept[name] = row
        print(f"{name}: {row}", file=sys.stderr, flush=True)
    rows = [kept[known] for known in (*cells(), *NETS) if known in kept]
    table = Table(title="bytes alive at once (KiB), arena and TVM's plan")
    for title in (
        "graph",
        "stock order",
        "breadth first",
        "best order",
        "rewritten",
        "bound",
        "TVM plans",
        "arena",
        "s",
    ):
        table.add_column(title, justify="left" if title == "graph" else "right")
    for row in rows:
        figures = ("stock_peak", "breadth_first_peak", "order_peak", "rewritten_peak", "order_lower_bound")
        sizes = [f"{row[key] / 1024:,.0f}" for key in (*figures, "stock_planned", "rewritten_planned")]
        table.add_row(row["name"], *sizes, f"{row['order_seconds']:.2f}")
    console.print(table)
    summary = summarise(rows, searches)
    store(path, "memory", [*rows, *searches], summary)
    for key, value in summary.items():
        console.print(f"{key}: {value}")


if __name__ == "__main__":
    main()
