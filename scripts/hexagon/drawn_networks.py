"""Networks whose operators are drawn, as selection problems with estimated packets: where looking at the whole pays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tvm_ext.backends.hexagon.model import costs
from tvm_ext.backends.hexagon.model.selection import Node, Operand, problem_of
from tvm_ext.layout.selection import plan_locally, plan_selection
from tvm_ext.schedules.hexagon.panels import LAYOUTS, TWO, Panels
from tvm_ext.schedules.hexagon.window import Window

KINDS: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "residual": ((64, 128, 256), ("1x1", "3x3", "add")),
    "inverted_residual": ((16, 24, 96, 144), ("1x1", "depthwise", "add")),
    "ragged": ((3, 17, 33), ("1x1", "3x3", "add")),
    "ragged_inverted_residual": ((3, 17, 33), ("1x1", "depthwise", "add", "look_up")),
    "few_channels": ((1, 2, 3, 5), ("1x1", "depthwise", "add", "look_up")),
    "elementwise": ((16, 24, 40, 72), ("1x1", "multiply", "look_up")),
}
"""Channels and operators that are drawn from."""

EXTENTS = (7, 14, 28, 56)
NETWORKS, OPERATORS = 12, 20
SEED = 20


def measure() -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Compare each operator's own best plan with the selection for the whole."""
    random = np.random.default_rng(SEED)
    rows = []
    for kind, (channels, operators) in KINDS.items():
        for extent in EXTENTS:
            ratios = []
            for _ in range(NETWORKS):
                problem, _ = problem_of(draw(random, channels, operators, extent))
                ratios.append(plan_locally(problem).cost / plan_selection(problem).cost)
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            rows.append({"part": "drawn", "kind": kind, "extent": extent, "global_vs_local": mean, "best": max(ratios)})
            print(rows[-1], flush=True)
    summary = {f"drawn_{row['kind']}_{row['extent']}": row["global_vs_local"] for row in rows}
    return rows, summary | {"drawn_best": max(row["best"] for row in rows)}


def draw(random: np.random.Generator, channels: Sequence[int], operators: Sequence[str], extent: int) -> list[Node]:
    """Draw a network on pictures of one extent; a sum is of a picture and one convolution of it."""
    nodes: list[Node] = []
    pixels = extent * extent

    def add(operator: str, packets: Callable[[Panels], int], depth: int, *operands: Operand) -> Operand:
        nodes.append(Node(operator, (), operands, {layout.instruction: packets(layout) for layout in LAYOUTS}))
        return Operand(len(nodes) - 1, pixels, depth)

    def windows(kernel: int) -> Window:
        return Window(extent, extent, (kernel,) * 2, (1, 1), (kernel // 2,) * 4)

    def convolution(source: Operand, depth: int, kernel: int) -> Operand:
        window, inner = windows(kernel), source.channels

        def packets(layout: Panels) -> int:
            taken = window.taps * layout.padded(1, inner)[1]
            kind = "product of halves" if layout is TWO else "product"
            return costs.windows(layout, window, inner) + costs.packets(kind, layout, pixels, taken, depth)

        return add(f"conv {kernel}", packets, depth, source)

    def depthwise(source: Operand) -> Operand:
        window, depth = windows(3), source.channels
        return add(
            "depthwise",
            lambda layout: costs.windows(layout, window, depth) + costs.packets("depthwise", layout, pixels, depth, 9),
            depth,
            source,
        )

    last = replace(Operand(None, pixels, 0), channels=int(random.choice(channels)))
    while len(nodes) < OPERATORS:
        operator, depth = str(random.choice(operators)), last.channels
        if operator in ("1x1", "3x3"):
            last = convolution(last, int(random.choice(channels)), int(operator[0]))
        elif operator == "depthwise":
            last = depthwise(last)
        elif operator == "add":
            branch = depthwise(last) if "depthwise" in operators else convolution(last, depth, 1)
            last = add(
                operator, lambda layout, depth=depth: costs.packets("add", layout, pixels, depth), depth, branch, last
            )
        else:
            last = add(
                operator, lambda layout, kind=operator, depth=depth: costs.packets(kind, layout, pixels, depth), depth,
                *([last] if operator == "look_up" else [last, last]),
            )  # fmt: skip
    return nodes
