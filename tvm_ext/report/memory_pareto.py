"""Time against planned bytes: ways to compile a model, measured, and those that no other one beats in both."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.bench.chart import check_chart
from tvm_ext.compiler import generate_code, lower
from tvm_ext.errors import OptionError
from tvm_ext.frontend import ImportedModel
from tvm_ext.graph.units import bytes_text
from tvm_ext.options import PipelineOptions
from tvm_ext.report.memory_plans import require_planned
from tvm_ext.system.pictures import picture
from tvm_ext.system.threads import use_all_cores
from tvm_ext.target import resolve_target

WAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("stock plan", {"memory": "stock"}),
    ("default", {}),
    ("default, kernels apart", {"inverted_residuals": False}),
    ("default, in patches", {"patches": "always"}),
    ("optimal", {"memory": "optimal"}),
    ("optimal, in patches", {"memory": "optimal", "patches": "always"}),
)
"""Names of the points, and the options that make them."""

ROUNDS = 15
"""Runs of each module, in turns; the median counts."""


LABEL_WIDTH, LABEL_HEIGHT = 0.36, 0.045
"""Of the label of a point, as parts of the picture."""

RIGHT, TOP = 1.35, 1.36
"""Where the axes end, as multiples of the largest number, so that there is room for labels."""


@dataclass(frozen=True)
class ParetoPoint:
    """A way to compile a model.

    Attributes
    ----------
    name : str
    options : dict
    planned : int
        Bytes of intermediate tensors.
    milliseconds : float
        Median of runs that took turns.
    best : bool
        Whether no other point needs fewer bytes without more time, or less time without more bytes.
    """

    name: str
    options: dict[str, Any]
    planned: int
    milliseconds: float
    best: bool = False

    def to_json(self) -> dict[str, Any]:
        """Give the fields, by name."""
        return asdict(self)


def marked(points: Sequence[ParetoPoint]) -> tuple[ParetoPoint, ...]:
    """Mark the points that no other one beats, and sort all by bytes."""

    def beaten(point: ParetoPoint) -> bool:
        return any(
            other.planned <= point.planned
            and other.milliseconds <= point.milliseconds
            and (other.planned, other.milliseconds) != (point.planned, point.milliseconds)
            for other in points
        )

    ordered = sorted(points, key=lambda point: (point.planned, point.milliseconds))
    return tuple(replace(point, best=not beaten(point)) for point in ordered)


def measure_pareto(
    imported: ImportedModel,
    target: str | None = None,
    rounds: int = ROUNDS,
    progress: Callable[[str], None] = lambda _step: None,
) -> tuple[ParetoPoint, ...]:
    """Compile a model in several ways, and run the modules in turns.

    Raises
    ------
    OptionError
        If the model has inputs of open sizes, for which bytes and times depend on what comes.
    CompileError
        If a way cannot be compiled.
    TargetError
        If the target has a plan of its own, or is not this machine.
    """
    use_all_cores()
    if any(not isinstance(extent, int) for spec in imported.inputs for extent in spec.shape):
        raise OptionError("--pareto: the model has inputs of open sizes; give each a shape (--input-shape)")
    resolved = resolve_target(target)
    require_planned(resolved, runs=True)
    functions, planned = [], []
    for name, options in WAYS:
        progress(name)
        mod, statistics, _ = lower(imported.mod, resolved, PipelineOptions(**options))
        assert statistics is not None
        planned.append(statistics.planned_bytes)
        functions.append(relax.VirtualMachine(generate_code(mod, resolved), tvm.cpu())["main"])
    progress("run")
    arguments = [
        tvm.runtime.tensor(np.ones([int(extent) for extent in spec.shape], spec.dtype)) for spec in imported.inputs
    ]
    seconds: list[list[float]] = [[] for _ in WAYS]
    for turn in range(rounds + 1):
        for function, times in zip(functions, seconds, strict=True):
            start = time.perf_counter()
            function(*arguments)
            if turn:
                times.append(time.perf_counter() - start)
    return marked(
        [
            ParetoPoint(name, options, size, 1000 * median(times))
            for (name, options), size, times in zip(WAYS, planned, seconds, strict=True)
        ]
    )


def label_heights(places: Sequence[tuple[float, float]]) -> list[float]:
    """Give the height of the label of each point, so that no two lie upon each other.

    Parameters
    ----------
    places : sequence of (float, float)
        Points, as parts of the width and the height of the picture; a label begins at its point.
    """
    heights = [0.0] * len(places)
    done: list[int] = []
    for number in sorted(range(len(places)), key=lambda number: places[number][1]):
        across, height = places[number]
        for other in sorted(done, key=heights.__getitem__):
            if abs(places[other][0] - across) < LABEL_WIDTH and abs(heights[other] - height) < LABEL_HEIGHT:
                height = heights[other] + LABEL_HEIGHT
        heights[number] = height
        done.append(number)
    return heights


def draw_pareto(path: str | Path, title: str, points: Sequence[ParetoPoint]) -> None:
    """Draw the points, and a line through those that no other one beats, to a PNG or SVG file.

    Raises
    ------
    OptionError, MissingPackageError
        See :func:`tvm_ext.bench.chart.check_chart`.
    OutputError
        If the file cannot be written.
    """
    check_chart(path)
    with picture(path, (7.5, 4.6), 150, make_folders=True) as figure:
        axes = figure.add_subplot()
        largest, slowest = max(point.planned for point in points), max(point.milliseconds for point in points)
        size, unit = (1 << 20, "MiB") if largest >= 1 << 20 else (1 << 10, "KiB")
        right, top = RIGHT * largest / size or 1.0, TOP * slowest
        places = [(point.planned / size, point.milliseconds) for point in points]
        line = [place for point, place in zip(points, places, strict=True) if point.best]
        axes.step(*zip(*line, strict=True), where="post", color="#1f6f8b", linewidth=1.6, zorder=2)
        heights = label_heights([(across / right, up / top) for across, up in places])
        for point, place, height in zip(points, places, heights, strict=True):
            axes.plot(*place, "o", color="#1f6f8b" if point.best else "#8c9aa5", zorder=3)
            axes.annotate(
                f"{point.name}: {bytes_text(point.planned)}",
                place,
                (place[0] + 0.015 * right, height * top),
                fontsize=8,
                color="#22303a",
                va="center",
                arrowprops={"arrowstyle": "-", "linewidth": 0.5, "color": "#c8d0d6", "relpos": (0, 0.5)},
            )
        axes.set_xlim(0, right)
        axes.set_ylim(0, top)
        axes.set_xlabel(f"planned bytes of intermediate tensors, {unit}", fontsize=9, color="#7a8791")
        axes.set_ylabel("median of a run, ms", fontsize=9, color="#7a8791")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color="#22303a")
