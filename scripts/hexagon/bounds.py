"""How much a selection for the whole graph can gain over each operator's own best plan, on ResNet-50, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tvm

from scripts.hexagon import drawn_networks
from scripts.hexagon.resnet import STAGES
from tests.zoo.quantized import quantized
from tvm_ext.backends.hexagon.backend import HEXAGON
from tvm_ext.backends.hexagon.model import costs
from tvm_ext.backends.hexagon.model.selection import Node, Operand, problem_of
from tvm_ext.frontend import import_model
from tvm_ext.graph.decisions import layout_decisions
from tvm_ext.layout.selection import Edge, Operator, SelectionProblem, plan_locally, plan_selection
from tvm_ext.options import PipelineOptions
from tvm_ext.schedules.hexagon.panels import LAYOUTS, TWO, Panels
from tvm_ext.schedules.hexagon.window import Window
from tvm_ext.target import resolve_target

FACTORS = (1, 3, 10, 30, 100)
"""By which changes of layout are made dearer."""

SOURCE = {32: (1.0, 0.79, 0.63), 64: (1.0, 0.69, 0.76), 96: (1.0, 1.06, 0.89), 128: (1.0, 1.10, 1.23)}
"""Table 4.2: latencies of vmpy, vmpa and vrmpy by M = K = N on the source's phone, as shares of vmpy's."""


WINDOWS = (10, 15, 20, 25)
"""Operators of the parts that :mod:`scripts.hexagon.planner` compares on."""


def _at_most(problem: SelectionProblem, inside: range) -> float:
    """Bound what the choice for a whole part gains: least plans, and the dearest change on every edge."""
    least = sum(min(plan.cost for plan in problem.operators[number].plans) for number in inside)
    changes = sum(
        max(map(max, edge.costs)) for edge in problem.edges if edge.source in inside and edge.target in inside
    )
    return 1 + changes / least


def measure(quick: bool) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Compare; ``quick`` reads the selection of the smallest model only."""
    problem, _ = problem_of(network())
    best = sum(min(plan.cost for plan in operator.plans) for operator in problem.operators)
    changes = sum(max(map(max, edge.costs)) for edge in problem.edges)
    chosen = [operator for operator in problem.operators if len(operator.plans) > 1]
    clear = sum(
        operator.plans[2].cost < min(plan.cost for plan in operator.plans[:2])
        for operator in chosen
        if "conv" in operator.name
    )
    convolutions = sum("conv" in operator.name for operator in chosen)
    rows: list[dict[str, Any]] = []
    summary = {
        "local_at_most": 1 + changes / best,
        "window_local_at_most": max(
            _at_most(problem, range(first, first + size))
            for size in WINDOWS
            for first in range(len(problem) - size + 1)
        ),
        "vrmpy_best_convolutions": clear / convolutions,
        "estimated_global_vs_local": _ratio(problem),
    }
    for factor in FACTORS:
        rows.append(
            {"part": "bounds", "relayouts_times": factor, "measured_plans": _ratio(_dearer(problem, factor)),
             "plans_of_table_4_2": _ratio(_dearer(_as_the_source(problem), factor))}
        )  # fmt: skip
        print(rows[-1], flush=True)
        summary[f"global_vs_local_relayouts_times_{factor}"] = rows[-1]["measured_plans"]
        summary[f"global_vs_local_table_4_2_times_{factor}"] = rows[-1]["plans_of_table_4_2"]
    for more, figures in (drawn_networks.measure(), _shipped(quick)):
        rows += more
        summary |= figures
    return rows, summary


def _shipped(quick: bool) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Read off what the pass selects for whole models, and what each operator's own best plan would have cost."""
    rows = []
    target = resolve_target("hexagon-v67")
    for name in ("ppocr_cls",) if quick else ("resnet18", "resnet50", "mobilenet_v2", "efficientnet_b0", "ppocr_cls"):
        entry = quantized(name)
        shapes = {key: list(value.shape) for key, value in entry.inputs().items()}
        mod = import_model(entry.onnx_model(), input_shapes=shapes).mod
        with target, tvm.transform.PassContext():
            mod = tvm.transform.Sequential(HEXAGON.passes("canonicalize", target, PipelineOptions()))(mod)
        (whole,) = (item for item in layout_decisions(mod) if item.operator == "whole graph")
        plan = dict(whole.plan)
        rows.append({"part": "shipped", "model": name, "global_vs_local": plan["each by itself"] / plan["packets"]})
        print(rows[-1], flush=True)
    return rows, {f"{row['model']}_global_vs_local": row["global_vs_local"] for row in rows}


def _ratio(problem: SelectionProblem) -> float:
    return plan_locally(problem).cost / plan_selection(problem).cost


def _dearer(problem: SelectionProblem, factor: int) -> SelectionProblem:
    edges = tuple(
        Edge(edge.source, edge.target, tuple(tuple(factor * cost for cost in row) for row in edge.costs))
        for edge in problem.edges
    )
    return SelectionProblem(problem.operators, edges)


def _as_the_source(problem: SelectionProblem) -> SelectionProblem:
    """Let the plans of convolutions cost as Table 4.2 has them, by their depth, the best one as much as it did."""

    def plans(operator: Operator) -> Operator:
        if "conv" not in operator.name:
            return operator
        depth = int(operator.name.split()[-1])
        shares = SOURCE[min(SOURCE, key=lambda size: abs(size - depth))]
        unit = min(plan.cost for plan in operator.plans) / min(shares)
        made = (replace(plan, cost=round(unit * share)) for plan, share in zip(operator.plans, shares, strict=True))
        return replace(operator, plans=tuple(made))

    return SelectionProblem(tuple(map(plans, problem.operators)), problem.edges)


def network() -> list[Node]:
    """List ResNet-50's operators with estimated packets, pictures of 224 x 224; convolutions are named by depth."""
    nodes: list[Node] = []

    def add(operator: str, operands: Sequence[Operand], packets: Any) -> Operand:
        nodes.append(Node(operator, (), tuple(operands), {layout.instruction: packets(layout) for layout in LAYOUTS}))
        return Operand(len(nodes) - 1, 0, 0)

    def conv(source: Operand, extent: int, depth: int, columns: int, kernel: int = 1, stride: int = 1) -> Operand:
        window = Window(extent, extent, (kernel,) * 2, (stride,) * 2, (kernel // 2,) * 4)

        def packets(layout: Panels) -> int:
            kind = "product of halves" if layout is TWO else "product"
            inner = window.taps * layout.padded(1, depth)[1]
            return costs.windows(layout, window, depth) + costs.packets(kind, layout, window.out_pixels, inner, columns)

        made = add(f"conv {depth}", [source], packets)
        return replace(made, pixels=window.out_pixels, channels=columns)

    last = conv(Operand(None, 224 * 224, 3), 224, 3, 64, 7, 2)
    pool = Window(112, 112, (3, 3), (2, 2), (1, 1, 1, 1))

    def pooled(layout: Panels) -> int:
        return costs.windows(layout, pool, 64) + costs.packets("maximum", layout, 3136, 64, 9)

    last = replace(add("pool", [last], pooled), pixels=3136, channels=64)
    depth, extent = 64, 56
    for blocks, middle, out in STAGES:
        for block in range(blocks):
            stride = extent // out
            inner = conv(conv(last, extent, depth, middle), extent, middle, middle, 3, stride)
            wide = conv(inner, out, middle, 4 * middle)
            short = conv(last, extent, depth, 4 * middle, 1, stride) if block == 0 else last
            pixels, channels = out * out, 4 * middle
            made = add(
                "add", [wide, short], lambda layout, size=(pixels, channels): costs.packets("add", layout, *size)
            )
            last = replace(made, pixels=pixels, channels=channels)
            depth, extent = channels, out
    mean = add("mean", [last], lambda layout: costs.packets("average", layout, 49, 2048))
    conv(replace(mean, pixels=1, channels=2048), 1, 2048, 1000)
    return nodes
