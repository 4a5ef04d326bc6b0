"""Bytes alive over time as a picture, one line for each order, with the tensors named that are alive at the peaks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvm_ext.bench.chart import check_chart
from tvm_ext.graph.units import bytes_text
from tvm_ext.report.charts import Line, lines_of
from tvm_ext.report.inspection import MemoryProfile
from tvm_ext.system.pictures import picture

COLORS = ("#8c9aa5", "#d08c2f", "#1f6f8b", "#7a3b8f")
TEXT, FAINT = "#22303a", "#7a8791"


def draw_memory(path: str | Path, title: str, profiles: Sequence[MemoryProfile], limit: int | None = None) -> None:
    """Draw profiles to a PNG or SVG file.

    Parameters
    ----------
    path : path
        Ends in .png or .svg.
    title : str
        Above the picture.
    profiles : sequence of MemoryProfile
        At most one for each colour; the first one is filled.
    limit : int, optional
        Bytes at which a line is drawn across.

    Raises
    ------
    OptionError, MissingPackageError
        See :func:`tvm_ext.bench.chart.check_chart`.
    OutputError
        If the file cannot be written.
    """
    check_chart(path)
    with picture(path, (10.0, 5.6), 150, make_folders=True) as figure:
        _draw(figure, title, profiles, limit)


def _draw(figure: Any, title: str, profiles: Sequence[MemoryProfile], limit: int | None) -> None:
    axes, names = figure.subplots(1, 2, width_ratios=(2.3, 1))
    lines = lines_of(profiles)
    highest = max(1, *(profile.peak for profile in profiles), limit or 0)
    divisor, unit = next(((d, u) for d, u in ((2**20, "MiB"), (2**10, "KiB")) if highest >= d), (1, "B"))
    for number, (line, color) in enumerate(zip(lines, COLORS, strict=False)):
        profile = line.profile
        values = [value / divisor for value in profile.during]
        label = f"{line.label}: {bytes_text(profile.peak)}"
        # A step lasts from its number to the next one.
        edges = list(range(len(values) + 1))
        axes.stairs(values, edges, color=color, linewidth=1.8, label=label, zorder=3 + number)
        if number == 0:
            axes.stairs(values, edges, color=color, alpha=0.18, fill=True)
        if values:
            axes.plot(profile.peak_step + 0.5, profile.peak / divisor, "o", color=color, markersize=5, zorder=9)
    if limit is not None:
        axes.axhline(limit / divisor, color="#a03a2c", linestyle="--", linewidth=1)
        axes.annotate(f"limit {bytes_text(limit)}", (0, limit / divisor), color="#a03a2c", fontsize=8, va="bottom")
    axes.set_ylim(0, highest / divisor * 1.08)
    axes.set_xlim(left=0)
    axes.set_xlabel("kernel, in the order they run", color=FAINT, fontsize=9)
    axes.set_ylabel(f"bytes of intermediate tensors alive, {unit}", color=FAINT, fontsize=9)
    axes.tick_params(colors=FAINT, labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, fontsize=8.5, labelcolor=TEXT, loc="upper right")
    axes.set_title(title, loc="left", color=TEXT, fontsize=12, fontweight="bold")
    names.axis("off")
    names.text(
        0,
        1,
        "\n".join(_names(lines)),
        transform=names.transAxes,
        va="top",
        fontsize=7.2,
        color=TEXT,
        family="monospace",
    )


def _names(lines: Sequence[Line]) -> list[str]:
    text: list[str] = []
    for line in lines:
        text.append(f"alive at the peak of {line.label}")
        for name, kind, size in line.profile.live_at_peak[:7]:
            text.append(f" {size / 1024:8,.1f} KiB {name[:12]:12} {kind}")
        text.append("")
    return text
