"""The course of a tuning run as a chart: best time against trials and against seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tvm_ext.bench.chart import check_chart
from tvm_ext.system.pictures import picture

Curve = Sequence[tuple[float, int, float]]
"""Seconds, trials and the sum of the kernels' best times (seconds), after each batch."""


def write_tuning_chart(curves: dict[str, Curve], path: str | Path) -> None:
    """Draw one line a run, in two panels.

    Raises
    ------
    OptionError, MissingPackageError
        If the file name or the installation does not allow it; see :func:`tvm_ext.bench.chart.check_chart`.
    OutputError
        If the file cannot be written.
    """
    check_chart(path)
    with picture(path, (9.0, 3.6), 160, make_folders=True) as figure:
        panels = figure.subplots(1, 2, sharey=True)
        for axes, column, label in zip(panels, (1, 0), ("trials", "seconds"), strict=True):
            for name, curve in curves.items():
                axes.step([row[column] for row in curve], [row[2] * 1e6 for row in curve], where="post", label=name)
            axes.set_xlabel(label)
            axes.spines[["top", "right"]].set_visible(False)
        panels[0].set_ylabel("sum of best kernel times (µs)")
        if len(curves) > 1:
            panels[0].legend(frameon=False)
