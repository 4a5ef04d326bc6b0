"""Measure kernels of drawn extents, and fit what a round of each of their loops takes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import nnls
from tvm import tirx

from scripts.hexagon.resnet import packets_of
from tvm_ext.backends.hexagon.model.costs import FEATURES, ROWS
from tvm_ext.schedules.hexagon.elementwise import WeightedSum, look_up, multiply, weighted_sum
from tvm_ext.schedules.hexagon.panels import LAYOUTS, TWO, Panels
from tvm_ext.schedules.hexagon.product import product
from tvm_ext.schedules.hexagon.relayout import from_planes, relayout, to_planes
from tvm_ext.schedules.hexagon.window import Window
from tvm_ext.schedules.hexagon.windows import average, depthwise, gather, maximum, shift
from tvm_ext.target import resolve_target

SAMPLES, QUICK_SAMPLES = 12, 6
SEED = 3
RESCALE = (8, 0, 255)
SUM = WeightedSum.of((0.5, 0.5), (0, 0, 0))
BY_NAME = {layout.instruction: layout for layout in LAYOUTS}


def _vectors(layout: Panels, pixels: int, channels: int) -> int:
    panels, vectors = layout.blocks(pixels, channels)
    return panels * vectors


MAKERS: dict[str, Callable[..., tirx.PrimFunc]] = {
    "product": lambda layout, *extents: product(layout, *extents, rescale=RESCALE),
    "product of halves": lambda layout, *extents: product(layout, *extents, halves=True, rescale=RESCALE),
    "gather": lambda layout, window, channels: gather(layout, window, channels, 0),
    "shift": lambda layout, window, channels: shift(layout, window, channels, 0),
    "depthwise": lambda layout, *extents: depthwise(layout, *extents, RESCALE),
    "maximum": lambda layout, pixels, channels, taps: maximum(*layout.blocks(pixels, channels)[::-1], taps),
    "average": lambda layout, *extents: average(layout, *extents, RESCALE),
    "add": lambda layout, *extents: weighted_sum(_vectors(layout, *extents), SUM),
    "multiply": lambda layout, *extents: multiply(layout, layout.blocks(*extents), (0, 0), RESCALE, False),
    "multiply by channel": lambda layout, *extents: multiply(layout, layout.blocks(*extents), (0, 0), RESCALE, True),
    "look_up": lambda layout, *extents: look_up(_vectors(layout, *extents)),
    **{
        f"relayout from {name}": lambda layout, *extents, name=name: relayout(BY_NAME[name], layout, *extents)
        for name in BY_NAME
    },
    "from_planes": lambda layout, *extents: from_planes(layout, *extents),
    "to_planes": lambda layout, *extents: to_planes(layout, *extents),
}


def _extents(kind: str, random: np.random.Generator) -> tuple[Any, ...]:
    """Draw the extents of a kernel, as those of models."""
    channels = int(8 * 2 ** random.uniform(0, 5))
    side = int(random.integers(5, 29))
    taps = int(random.choice([4, 9, 9, 25]))
    if kind.startswith("product"):
        return side * side, int(8 * 2 ** random.uniform(0, 6)), channels
    if kind in ("gather", "shift"):
        edge = math.isqrt(taps) | 1
        step = 1 if kind == "shift" else 2
        window = Window(2 * side // 2, side, (edge, edge), (step, step), (edge // 2,) * 4)
        return window, channels
    return (side * side, channels, taps) if kind in ("depthwise", "maximum") else (side * side, channels)


def measure(quick: bool) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Measure and fit; the numbers are written unless ``quick``."""
    random = np.random.default_rng(SEED)
    kernels: dict[str, tirx.PrimFunc] = {}
    drawn: dict[tuple[str, Panels], list[tuple[str, tuple[Any, ...]]]] = {}
    for kind, maker in MAKERS.items():
        for layout in LAYOUTS:
            if kind.endswith(f"from {layout.instruction}") or (kind == "product of halves" and layout is not TWO):
                continue
            for _ in range(QUICK_SAMPLES if quick else SAMPLES):
                extents = _extents(kind, random)
                name = f"kernel{len(kernels)}"
                kernels[name] = maker(layout, *extents)
                drawn.setdefault((kind, layout), []).append((name, extents))
    counted = packets_of(iter(kernels.items()), resolve_target("hexagon-v67"))
    found: dict[str, dict[str, list[float]]] = {}
    rows, errors = [], []
    for (kind, layout), samples in drawn.items():
        counts = np.array([FEATURES[kind](layout, *extents) for _, extents in samples], float)
        packets = np.array([counted[name] for name, _ in samples], float)
        numbers, _ = nnls(counts / packets[:, None], np.ones(len(packets)))
        off = np.abs(counts @ numbers / packets - 1)
        errors += off.tolist()
        found.setdefault(kind, {})[layout.instruction] = [float(f"{number:.5g}") for number in numbers]
        rows.append(
            {"part": "costs of kernels", "kernel": kind, "layout": layout.instruction, "samples": len(samples),
             "packets_per_round": found[kind][layout.instruction], "error_median": float(np.median(off)),
             "error_worst": float(off.max())}
        )  # fmt: skip
        print(rows[-1], flush=True)
    if not quick:
        # "product of halves" is vmpa's alone.
        ROWS.write_text(json.dumps({"processor": "v67", "packets": found}, indent=1) + "\n", encoding="utf-8")
    return rows, {
        "cost_samples": len(errors),
        "cost_error_median": float(np.median(errors)),
        "cost_error_90_percent": float(np.quantile(errors, 0.9)),
    }
