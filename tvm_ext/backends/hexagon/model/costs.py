"""Packets of kernels, estimated from their extents: the costs that layouts are chosen by.

The packets of a kernel are a sum over its loops: how often each body runs, as extents tell, times what it takes, as was
measured. ``costs.json`` has the numbers of each kind of kernel in each layout; ``scripts/bench_hexagon.py costs``
measures kernels of drawn extents under the emulator and fits them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from tvm_ext.errors import CompileError
from tvm_ext.schedules.hexagon.panels import Panels
from tvm_ext.schedules.hexagon.product import TOGETHER, VECTORS
from tvm_ext.schedules.hexagon.relayout import CHANNELS, PIXELS
from tvm_ext.schedules.hexagon.window import Window

ROWS = Path(__file__).parent / "costs.json"
"""Packets of a round of each loop, by kinds of kernels and layouts."""


def _product(layout: Panels, rows: int, depth: int, columns: int) -> Sequence[float]:
    panels, vectors = layout.blocks(rows, columns)
    steps = -(-layout.blocks(rows, depth)[1] // VECTORS[layout])
    blocks = -(-vectors // TOGETHER[layout])
    return panels * vectors * steps, panels * blocks * steps, panels * vectors, panels, 1


def _gather(layout: Panels, window: Window, channels: int) -> Sequence[float]:
    source = layout.blocks(window.pixels, channels)
    places = layout.blocks(window.out_pixels, 1)[0] * window.taps
    return places * layout.rows * source[1], places * layout.rows, source[0] * source[1], places, 1


def _shift(layout: Panels, window: Window, channels: int) -> Sequence[float]:
    panels, vectors = layout.blocks(window.out_pixels, channels)
    return panels * window.taps * vectors, panels * window.taps, panels, 1


def _tapped(layout: Panels, pixels: int, channels: int, taps: int) -> Sequence[float]:
    panels, vectors = layout.blocks(pixels, channels)
    return panels * vectors * taps, panels * vectors, panels, 1


def _elementwise(layout: Panels, pixels: int, channels: int) -> Sequence[float]:
    panels, vectors = layout.blocks(pixels, channels)
    return panels * vectors, panels, 1


def _average(layout: Panels, pixels: int, channels: int) -> Sequence[float]:
    panels, vectors = layout.blocks(pixels, channels)
    return panels * vectors, vectors, 1


def _relayout(layout: Panels, pixels: int, channels: int) -> Sequence[float]:
    blocks = -(-pixels // PIXELS)
    return blocks * -(-channels // CHANNELS), blocks, 1


def _planes(layout: Panels, pixels: int, channels: int) -> Sequence[float]:
    return pixels // PIXELS * -(-channels // CHANNELS), pixels % PIXELS * channels, 1


FEATURES: dict[str, Callable[..., Sequence[float]]] = {
    "product": _product,
    "product of halves": _product,
    "gather": _gather,
    "shift": _shift,
    "depthwise": _tapped,
    "maximum": _tapped,
    "average": _average,
    "add": _elementwise,
    "multiply": _elementwise,
    "multiply by channel": _elementwise,
    "look_up": _elementwise,
    **{f"relayout from {source}": _relayout for source in ("vmpy", "vmpa", "vrmpy")},
    "from_planes": _planes,
    "to_planes": _planes,
}
"""How often each loop of a kernel runs, the innermost first, by its layout and extents."""


@functools.cache
def _rows() -> dict[str, dict[str, list[float]]]:
    return json.loads(ROWS.read_text(encoding="utf-8"))["packets"]


def packets(kind: str, layout: Panels, *extents: int | Window) -> int:
    """Estimate the packets of a kernel.

    Parameters
    ----------
    kind : str
        Of :data:`FEATURES`.
    layout : Panels
        Of its operands; of its result for changes of layout and ``from_planes``.
    *extents
        As the kernel takes them: rows (pixels), depth, columns (channels), taps, or a window.

    Raises
    ------
    CompileError
        If there is no such kind of kernel in this layout.
    """
    try:
        numbers = _rows()[kind][layout.instruction]
    except KeyError:
        raise CompileError(
            f"{ROWS.name} has no costs of kernel {kind!r} in the layout of {layout.instruction}"
        ) from None
    counts = FEATURES[kind](layout, *extents)
    return max(1, round(sum(number * count for number, count in zip(numbers, counts, strict=True))))


def windows(layout: Panels, window: Window, channels: int) -> int:
    """Estimate the packets that gather a picture's windows; none where they are the picture."""
    if window.is_pointwise:
        return 0
    if window.is_shift:
        return packets("shift", layout, window, channels)
    if window.is_phased:
        return packets("gather", layout, window.phases, channels) + packets("shift", layout, window, channels)
    return packets("gather", layout, window, channels)


def relayout(source: Panels | None, target: Panels, pixels: int, channels: int) -> int:
    """Estimate the packets of a change of layout; ``source`` is None for planes."""
    if source is None:
        return packets("from_planes", target, pixels, channels)
    return 0 if source == target else packets(f"relayout from {source.instruction}", target, pixels, channels)
