"""A benchmark as a bar chart, PNG or SVG."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from tvm_ext.bench.result import BenchResult, Row
from tvm_ext.bench.table import milliseconds
from tvm_ext.errors import MissingPackageError, OptionError
from tvm_ext.system.pictures import picture

FORMATS = (".png", ".svg")

# Medians further apart than this share no linear axis: the small bars would vanish.
LOGARITHMIC_FROM = 15.0

OURS, STOCK, PEERS, TEXT, FAINT = "#1f6f8b", "#8c9aa5", "#c8d0d6", "#22303a", "#7a8791"


def check_chart(path: str | Path) -> None:
    """Refuse a chart that cannot be drawn, before a long measurement is made for it.

    Raises
    ------
    OptionError
        If the file name ends neither in .png nor in .svg.
    MissingPackageError
        If matplotlib is not installed.
    """
    if Path(path).suffix.lower() not in FORMATS:
        raise OptionError(f"chart {path}: the file name must end in {' or '.join(FORMATS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingPackageError(f"chart {path}: drawing needs matplotlib: pip install 'tvm-ext[bench]'")


def write_chart(result: BenchResult, path: str | Path) -> None:
    """Draw the medians as bars, with the quartiles as whiskers; failed engines are named with their reason.

    Raises
    ------
    OptionError, MissingPackageError
        See :func:`check_chart`.
    OutputError
        If the file cannot be written.
    """
    check_chart(path)
    with picture(path, (8.0, 1.7 + 0.46 * len(result.rows)), 160, make_folders=True) as figure:
        _draw(figure, result)


def _draw(figure: Any, result: BenchResult) -> None:
    axes = figure.add_subplot()
    rows = result.rows
    medians = [row.median_ms for row in rows if row.median_ms is not None]
    logarithmic = bool(medians) and max(medians) / min(medians) > LOGARITHMIC_FROM
    if logarithmic:
        axes.set_xscale("log")
        axes.set_xlim(min(medians) / 3, max(medians) * (max(medians) / min(medians)) ** 0.45)
        axes.xaxis.set_major_formatter(lambda value, position: f"{value:g}")
    else:
        axes.set_xlim(0, max(medians, default=1.0) * 1.35)
    left = axes.get_xlim()[0]
    for position, row in enumerate(rows):
        _bar(axes, position, row, left)
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)  # the first row on top
    axes.tick_params(axis="y", length=0, colors=TEXT)
    axes.tick_params(axis="x", which="both", colors=FAINT, labelsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.set_xlabel(
        f"median latency, ms{' (logarithmic)' if logarithmic else ''}; whiskers: quartiles", color=FAINT, fontsize=8
    )
    axes.set_title(result.model, loc="left", color=TEXT, fontsize=12, fontweight="bold", pad=20)
    threads = f"{result.threads} thread{'s' if result.threads > 1 else ''}"
    noise = "" if result.noise_ratio is None else f", noise {result.noise_ratio - 1:.1%}"
    axes.text(0, 1.03, f"float32, {threads}{noise}", transform=axes.transAxes, color=FAINT, fontsize=9, va="bottom")


def _bar(axes: Any, position: int, row: Row, left: float) -> None:
    if row.median_ms is None or row.q1_ms is None or row.q3_ms is None:
        reason = row.error or "no figures"
        axes.annotate(
            f"failed: {reason if len(reason) <= 80 else reason[:79] + '…'}",
            (left, position),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color="#a03a2c",
            fontsize=8,
        )
        return
    color = {"tvm_ext": OURS, "tvm": STOCK}.get(row.engine, PEERS)
    axes.barh(position, row.median_ms - left, left=left, height=0.62, color=color)
    axes.errorbar(
        row.median_ms,
        position,
        xerr=[[row.median_ms - row.q1_ms], [row.q3_ms - row.median_ms]],
        color=TEXT,
        linewidth=1,
        capsize=2.5,
        capthick=1,
    )
    ratio = "" if row.ratio_to_best is None or row.ratio_to_best == 1 else f"  ({row.ratio_to_best:.3g} times best)"
    axes.annotate(
        f"{milliseconds(row.median_ms)} ms{ratio}",
        (max(row.median_ms, row.q3_ms), position),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        color=TEXT,
        fontsize=9,
    )
