"""Convolutions on packed data for VTA: data NCHWnc, weights OIHWoi, upstream's knobs.

Upstream's names of the knobs: tile_b, tile_co, tile_h, tile_w are the parts of the result's axes, tile_ci of the input
blocks, oc_nthread and h_nthread the virtual threads over output blocks and rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from tvm_ext.schedules.rule import new_schedule
from tvm_ext.schedules.vta_common import Axis, Tiling, choose_tiling, extents_of, find_blocks, schedule_product
from tvm_ext.vta.config import VTAConfig, config_of_target

ORDERS = {"co n y x": (1, 0, 2, 3), "n y x co": (0, 2, 3, 1), "n y co x": (0, 2, 1, 3)}
"""Orders of the loops over tiles, outermost first, by axis of the result."""


@dataclass(frozen=True)
class ConvKnobs:
    """Upstream's knobs; tiles that do not divide the axis are cut off at its end."""

    tile_b: int = 1
    tile_co: int = 1
    tile_h: int = 1
    tile_w: int = 1
    tile_ci: int = 1
    oc_nthread: int = 1
    h_nthread: int = 1


class Conv2d:
    """Schedule a convolution with the sums and element-wise blocks after it.

    Parameters
    ----------
    order : str
        A key of :data:`ORDERS`.
    knobs : ConvKnobs, optional
        Chosen by a rough count of cycles where left out.
    """

    def __init__(self, order: str = "co n y x", knobs: ConvKnobs | None = None) -> None:
        self.order = ORDERS[order]
        self.knobs = knobs
        self.name = f"vta.conv2d ({order})"

    def apply(self, func: PrimFunc, target: tvm.target.Target, tunable: bool = False) -> Schedule | None:
        """Schedule ``func`` when it is a convolution on packed data that fits the memories of the target."""
        schedule = new_schedule(func, tunable)
        blocks = find_blocks(schedule, summed=3)
        if blocks is None:
            return None
        extents = extents_of(schedule, blocks.anchor)
        if len(extents) != 10:
            return None
        data, weights = (region.source for region in schedule.get(blocks.anchor).reads)
        if [int(extent) for extent in weights.shape[2:4]] != extents[7:9]:
            data = weights  # the operands of the product the other way round
        knobs = self.knobs or choose_knobs(
            extents, [int(extent) for extent in data.shape[2:4]], config_of_target(target)
        )
        if knobs is None:
            return None
        batches, channels, height, width = extents[:4]
        axes = [
            Axis(batches, knobs.tile_b),
            Axis(channels, knobs.tile_co, knobs.oc_nthread),
            Axis(height, knobs.tile_h, knobs.h_nthread),
            Axis(width, knobs.tile_w),
        ]
        schedule_product(schedule, blocks, axes, self.order, knobs.tile_ci)
        return schedule


def choose_knobs(extents: Sequence[int], image: Sequence[int], config: VTAConfig) -> ConvKnobs | None:
    """Choose tiles for a convolution.

    Parameters
    ----------
    extents : sequence of int
        Of the axes (n, co, y, x, b, o, ci, ky, kx, i).
    image : sequence of int
        Rows and columns that are read, padding included.
    config : VTAConfig

    Returns
    -------
    ConvKnobs or None
        None if nothing fits.
    """
    batches, channels, height, width = extents[:4]
    in_blocks, window_y, window_x = extents[6:9]
    stride_y, stride_x = (
        max((read - window) // max(written - 1, 1), 1)
        for read, window, written in zip(image, (window_y, window_x), (height, width), strict=True)
    )
    reserved = {"inp": 1, "wgt": channels, "acc": 0}
    depths = {memory: config.depths[memory] - reserved[memory] for memory in reserved}

    def sizes(tiling: Tiling) -> dict[str, int]:
        n, co, y, x = tiling.tile
        return {
            "inp": n * tiling.reduction * ((y - 1) * stride_y + window_y) * ((x - 1) * stride_x + window_x),
            "wgt": co * tiling.reduction * window_y * window_x,
            "acc": n * co * y * x,
        }

    def cost(tiling: Tiling) -> float:
        n, co, y, x = tiling.tile
        tiles = batches * channels * height * width // (n * co * y * x)
        turns = tiles * in_blocks // tiling.reduction
        size = sizes(tiling)
        steps = turns * size["acc"] * tiling.reduction * window_y * window_x
        loaded = turns * (25 + size["inp"] * config.inp_bytes / 8)
        # Weights stay while the tiles of one block of channels are computed, if there is one part of them.
        weight_turns = turns if tiling.reduction < in_blocks else channels // co
        loaded += weight_turns * (25 + size["wgt"] * config.wgt_bytes / 8)
        return max(steps + 10 * turns + 40 * tiles, loaded) + 0.2 * min(steps, loaded)

    found = choose_tiling((batches, channels, height, width), in_blocks, sizes, depths, cost)
    if found is None:
        return None
    n, co, y, x = found.tile
    return ConvKnobs(tile_b=n, tile_co=co, tile_h=y, tile_w=x, tile_ci=found.reduction)
