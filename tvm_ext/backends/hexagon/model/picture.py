"""A picture of what the calls of a model executed: one bar a call, in order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tvm_ext.backends.hexagon.model.compiled import Layer
from tvm_ext.system.pictures import picture

SCALAR = "scalar core"


def kind(layer: Layer) -> str:
    """Name what a call is drawn as: its kernel, or the scalar core."""
    return SCALAR if layer.unit == "scalar" else re.sub(r"\d+$", "", layer.kernel)


def draw_layers(layers: Sequence[Layer], path: str | Path) -> None:
    """Write the picture as PNG: packets of every call, coloured by kernel.

    Raises
    ------
    MissingPackageError
        If matplotlib is not installed.
    OutputError
        If the file cannot be written.
    """
    with picture(path, (14, 4), make_folders=True) as figure:
        from matplotlib import colormaps
        from matplotlib.ticker import MaxNLocator

        axes = figure.add_subplot()
        kinds = sorted({kind(layer) for layer in layers})
        for number, name in enumerate(kinds):
            own = [(place, layer) for place, layer in enumerate(layers) if kind(layer) == name]
            packets = [layer.counts.packets for _, layer in own]
            axes.bar([place for place, _ in own], packets, 0.9, color=colormaps["tab20"](number % 20), label=name)
        total = sum(layer.counts.packets for layer in layers)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))  # there is no half of a call
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlabel("call")
        axes.set_ylabel("packets")
        axes.set_title(f"{total:,} packets in {len(layers)} calls", fontsize=10)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
