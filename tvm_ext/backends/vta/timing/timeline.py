"""A timeline as text and as a picture: what each of the three modules does, over the cycles."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tvm_ext.backends.vta.isa.modules import Module
from tvm_ext.backends.vta.timing.cycles import Timeline
from tvm_ext.system.pictures import picture

# Kind of an instruction -> its letter in the text, its colour in the picture.
KINDS = {
    "gemm": ("G", "#1f77b4"),
    "reset": ("0", "#aec7e8"),
    "alu": ("A", "#ff7f0e"),
    "load inp": ("i", "#2ca02c"),
    "load wgt": ("w", "#98df8a"),
    "load acc": ("a", "#d62728"),
    "load uop": ("u", "#9467bd"),
    "store": ("S", "#8c564b"),
    "wait": ("-", "#c7c7c7"),
    "finish": ("F", "#000000"),
}


def text_timeline(timeline: Timeline, width: int = 100) -> str:
    """Draw a line a module; each column shows the instruction that has most of its cycles, ``.`` for none."""
    scale = max(timeline.cycles / width, 1.0)
    columns = -(-timeline.cycles // scale)
    lines = []
    for module in Module:
        shares: list[Counter[str]] = [Counter() for _ in range(int(columns))]
        for interval in timeline.intervals:
            if interval.module != module:
                continue
            for column in range(int(interval.start / scale), min(int(columns), int((interval.end - 1) / scale) + 1)):
                covered = min(interval.end, (column + 1) * scale) - max(interval.start, column * scale)
                shares[column][KINDS[interval.kind][0]] += covered  # type: ignore[assignment]
        letters = ("." if share.total() < scale / 2 else share.most_common(1)[0][0] for share in shares)
        lines.append(f"{module.name.lower():8}|{''.join(letters)}|")
    legend = " ".join(f"{letter} {kind}" for kind, (letter, _) in KINDS.items())
    lines.append(f"{'':8} {timeline.cycles} cycles, {scale:.4g} a column; {legend}")
    return "\n".join(lines)


def draw_timeline(timeline: Timeline, path: str | Path) -> None:
    """Write the picture as PNG.

    Raises
    ------
    MissingPackageError
        If matplotlib is not installed.
    OutputError
        If the file cannot be written.
    """
    with picture(path, (14, 3), make_folders=True) as figure:
        from matplotlib.patches import Patch

        axes = figure.add_subplot()
        for row, module in enumerate(reversed(Module)):
            own = [interval for interval in timeline.intervals if interval.module == module]
            bars = [(interval.start, interval.end - interval.start) for interval in own]
            axes.broken_barh(bars, (row + 0.1, 0.8), facecolors=[KINDS[interval.kind][1] for interval in own])
        axes.set_yticks([row + 0.5 for row in range(3)], [module.name.lower() for module in reversed(Module)])
        axes.set_xlabel("cycles")
        axes.set_xlim(0, max(timeline.cycles, 1))
        axes.set_title(
            f"{timeline.costs.name}: {timeline.cycles} cycles, GEMM occupancy {timeline.occupancy:.1%}", fontsize=10
        )
        present = {interval.kind for interval in timeline.intervals}
        patches = [Patch(color=colour, label=kind) for kind, (_, colour) in KINDS.items() if kind in present]
        axes.legend(handles=patches, loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
